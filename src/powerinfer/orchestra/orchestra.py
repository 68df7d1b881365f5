"""`Orchestra`: a pool whose models are open, ready for tasks."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar, Unpack

from powerinfer.errors import PowerInferError
from powerinfer.options.llm_options import LLMOptions
from powerinfer.orchestra import primitives
from powerinfer.orchestra.measuring import measure_worker
from powerinfer.orchestra.policy import ModelPolicy
from powerinfer.orchestra.pool import Cost, Pool, default_pool, read_pool
from powerinfer.orchestra.primitives.primitive import Permissions
from powerinfer.orchestra.runtime import Outcome, Players, Tell, run_task
from powerinfer.orchestra.workers.local import LocalWorker, model_source
from powerinfer.orchestra.workers.remote import RemoteWorker
from powerinfer.orchestra.workers.worker import Worker
from powerinfer.serve.context import ServerContext
from powerinfer.serve.model_source import ModelSource
from powerinfer.serve.settings import ServerSettings

__all__ = ["Orchestra", "open_pool", "players_of", "pool_sources"]

T = TypeVar("T")

# Calls that run side by side on one model; more wait.
_PARALLEL = 4


def open_pool(path: Path | None, model: str | None = None) -> Pool:
    """Read a pool file; without one, make the pool of a model and the tools.

    Raises:
        PoolError: the file is malformed.
    """
    known = primitives.load()
    return default_pool(model, known) if path is None else read_pool(path, known)


def pool_sources(pool: Pool, options: LLMOptions) -> list[ModelSource]:
    """Describe the models of this machine to a server's context; one of each file.

    Raises:
        PowerInferError: a model does not exist.
    """
    names: dict[str, list[str]] = {}
    for entry in pool.workers:
        if entry.is_local_model:
            names.setdefault(entry.model or "", []).append(entry.name)
    return [model_source(tuple(each), model, options) for model, each in names.items()]


def players_of(
    pool: Pool,
    context: ServerContext,
    permissions: Permissions,
    *,
    temperature: float = 0.0,
    seed: int | None = None,
) -> Players:
    """Gather who takes part, with the models of a server's context.

    Raises:
        PowerInferError: a worker elsewhere has no key, or needs a package that is missing.
    """
    workers: dict[str, Worker] = {}
    for entry in pool.workers:
        if entry.is_elsewhere:
            workers[entry.name] = RemoteWorker(entry)
        elif entry.is_local_model:
            workers[entry.name] = LocalWorker(context, entry.name)
    known = primitives.load()
    policy = ModelPolicy(
        workers[pool.policy], pool, known, permissions, temperature=temperature, seed=seed
    )
    return Players(
        pool=pool, policy=policy, workers=workers, primitives=known, permissions=permissions
    )


class Orchestra:
    """Does tasks with the models and tools of a pool.

    ::

        with Orchestra("pool.toml") as orchestra:
            print(orchestra.run("What is 17 times 23?").answer)

    Use `run` from one thread, or `arun` within one event loop, but not both. Models load when they
    are first asked.

    Attributes:
        pool: the workers.
        players: everyone who takes part.
    """

    def __init__(
        self,
        pool: Pool | Path | str | None = None,
        *,
        model: str | None = None,
        permissions: Permissions | None = None,
        temperature: float = 0.0,
        seed: int | None = None,
        **options: Unpack[LLMOptions],
    ) -> None:
        """Open a pool.

        Args:
            pool: a pool, or its file; None for a default one: `model` and the tools.
            model: file or name of the model of the default pool; None for the embedded model.
            permissions: what is allowed besides answering; by default nothing.
            temperature: of the policy; 0 takes the likeliest action.
            seed: of the policy.
            **options: of the models of this machine, as `LLM` takes them.

        Raises:
            PoolError: the pool's file is malformed.
            PowerInferError: a model does not exist, a key is not set, or a package is missing.
        """
        if pool is not None and model is not None:
            raise PowerInferError("a pool names its models: give either pool or model")
        self.pool = pool if isinstance(pool, Pool) else open_pool(_path(pool), model)
        options.setdefault("parallel", _PARALLEL)
        sources = pool_sources(self.pool, options)
        settings = ServerSettings(parallel=options["parallel"])
        self._context = ServerContext(settings, sources)
        # A large model may take longer than a client of a server would wait.
        self._context.models.longest_wait_s = 3600.0
        self._runner: asyncio.Runner | None = None
        self.players = players_of(
            self.pool,
            self._context,
            permissions or Permissions(),
            temperature=temperature,
            seed=seed,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, task: str, tell: Tell = lambda _: None) -> Outcome:
        """Do a task; see `arun`.

        Args:
            task: in words.
            tell: called with each event as it happens.
        """
        return self._run(self.arun(task, tell))

    async def arun(self, task: str, tell: Tell = lambda _: None) -> Outcome:
        """Do a task: plan, route, verify and answer.

        Errors of workers become observations of the policy. If the policy itself fails, the outcome
        has an `error`.

        Args:
            task: in words.
            tell: called with each event as it happens.
        """
        return await run_task(task, self.players, tell)

    def measure(self, name: str) -> Cost | None:
        """Measure what a worker costs; None for tools, whose calls differ too much.

        Args:
            name: of the worker.

        Raises:
            WorkerError: the worker cannot answer.
        """
        entry = self.pool[name]
        if entry.is_tool:
            return None
        source = self._context.models.find(name).source if entry.is_local_model else None
        num_bytes = source.facts().needed_bytes if source else 0
        work = measure_worker(self.players.workers[name], entry, resident_bytes=num_bytes)
        return self._run(work)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run on the event loop that all calls share."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(work)

    def close(self) -> None:
        """Free the models, and close connections of `run`."""
        runner, self._runner = self._runner, None
        if runner is not None:
            for worker in self.players.workers.values():
                if isinstance(worker, RemoteWorker):
                    runner.run(worker.aclose())
        # While the loop is there, as the thread that computes reports to it.
        self._context.close()
        if runner is not None:
            runner.close()


def _path(pool: Path | str | None) -> Path | None:
    return None if pool is None else Path(pool)
