"""Stages: a pool of either kind, open and ready for runs."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Unpack

from powerinfer.options.llm_options import LLMOptions
from powerinfer.orchestra.evaluation.episodes import Run, real_run, simulated_run
from powerinfer.orchestra.evaluation.simulating import Simulation, simulated_workers
from powerinfer.orchestra.evaluation.task import Task
from powerinfer.orchestra.evaluation.truth import Arm, SimulatedPool
from powerinfer.orchestra.orchestra import Orchestra, open_pool
from powerinfer.orchestra.policy import ModelPolicy, Policy
from powerinfer.orchestra.pool import Pool, is_allowed
from powerinfer.orchestra.primitives.primitive import Permissions

__all__ = ["Stage", "real_stage", "simulated_stage"]

# Tasks bring documents and databases of their own.
_OF_ATTACHMENTS = ("read_document", "fact_check", "database_query")


@dataclass(frozen=True, slots=True)
class Stage:
    """What runs need.

    Attributes:
        arms: pairs of worker and primitive that are allowed.
        policy: the model that decides; None in a simulated pool without one.
    """

    run: Run
    pool: Pool
    arms: tuple[Arm, ...]
    policy: Policy | None = None


@contextmanager
def simulated_stage(
    pool: SimulatedPool, model: str | None = None, **options: Unpack[LLMOptions]
) -> Iterator[Stage]:
    """Open a simulated pool.

    Args:
        model: file or name of the model that decides, if one does.

    Raises:
        PowerInferError: the model cannot be opened.
    """
    entries = simulated_workers(pool)
    with asyncio.Runner() as runner:
        run = simulated_run(pool, runner)
        if model is None:
            yield Stage(run, entries, pool.arms)
            return
        with Orchestra(open_pool(None, model), **options) as orchestra:
            worker = orchestra.players.workers[orchestra.pool.policy]
            nobody = Task(id="", question="", gold="")
            primitives = Simulation(pool, nobody).players(orchestra.players.policy).primitives
            yield Stage(run, entries, pool.arms, ModelPolicy(worker, entries, primitives))


@contextmanager
def real_stage(
    pool: Pool, permissions: Permissions, seed: int, **options: Unpack[LLMOptions]
) -> Iterator[Stage]:
    """Open the workers of a pool.

    Raises:
        PowerInferError: a model or worker cannot be opened.
    """
    arms = tuple(
        Arm(worker.name, primitive)
        for worker in pool.workers
        for primitive in worker.primitives
        if primitive in _OF_ATTACHMENTS or is_allowed(primitive, permissions)
    )
    with (
        Orchestra(pool, permissions=permissions, seed=seed, **options) as orchestra,
        asyncio.Runner() as runner,
    ):
        yield Stage(real_run(orchestra.players, runner), pool, arms, orchestra.players.policy)
