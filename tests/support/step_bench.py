"""Steps over blocks whose neurons are all the CPU's, recorded on a device made of threads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fake_stream import FakeDriver, FakeRecorder, Machine
from powerinfer.errors import DeviceError
from powerinfer.ops.gpu.recorder import Activations
from powerinfer.ops.hybrid.handoff.choice import HandoffChoice, HandoffFigures, HandoffKind
from powerinfer.ops.hybrid.handoff.methods import (
    EagerHandoff,
    HostFunctionHandoff,
    MemoryOperationHandoff,
)
from powerinfer.ops.hybrid.step_graphs import Counting, StepGraphs
from powerinfer.values import Batch, FloatArray
from split_ffn import HIDDEN, SplitLayers

__all__ = ["COSTS", "LAYERS", "Key", "StepBench", "batch_of", "step_bench"]

LAYERS = (0, 2, 1)
COSTS = {"memory_operations": 1.0, "memory_nodes": 1.0, "host_functions": 2.0}


class Key:
    """Stands in for a KV cache."""


@dataclass
class StepBench:
    """`StepGraphs` on a device made of threads, and what its steps are made of."""

    machine: Machine
    layers: SplitLayers
    graphs: StepGraphs
    recorder: FakeRecorder
    costs: dict[str, float]
    key: Key = field(default_factory=Key)
    order: tuple[int, ...] = LAYERS
    num_counted: int = 0
    num_run: int = 0

    def step(self, seed: int = 0, num_tokens: int = 1, key: Any = "own") -> None:
        """Do a step of these layers and check its result."""
        random = np.random.default_rng(seed)
        x = random.standard_normal((num_tokens, HIDDEN)).astype(np.float32)
        expected = self.layers.expected(x, self.order)
        chosen = self.key if key == "own" else key
        before = self.num_counted
        result = self.run(x, chosen)
        np.testing.assert_array_equal(result, expected)
        assert self.num_counted == before + 1

    def run(self, x: FloatArray, key: Any, queue: Any = None) -> FloatArray:
        """Do a step of these layers."""
        batch = batch_of(len(x))
        return self.graphs.run(x, batch, queue or self.queue, key, layers=self.order)

    def queue(self, x: Activations, batch: object, handoff: Any) -> FloatArray:
        """Queue the layers of a step."""
        assert isinstance(x, np.ndarray)

        def count() -> None:
            self.num_counted += 1

        self.num_run += 1
        self.machine.queue(count)
        return self.layers.run(x, self.order, handoff, self.machine.queue)

    def save_counts(self) -> Callable[[], None]:
        saved = self.num_counted

        def restore() -> None:
            self.machine.main.synchronize()
            self.num_counted = saved

        return restore

    @property
    def handoff(self) -> str:
        """Name of the last step's."""
        return self.graphs.handoff.name

    def measure(self, handoff: Any) -> HandoffFigures:
        cost = self.costs[handoff.name]
        if cost < 0:
            raise DeviceError(f"{handoff.name} does not work")
        return HandoffFigures(cost, 2 * cost)


def batch_of(num_tokens: int, num_sequences: int = 1) -> Batch:
    zeros = np.zeros(num_tokens, np.int32)
    return Batch(zeros, zeros, zeros, np.zeros((num_sequences, 1), np.int32))


def step_bench(machine: Machine, *, records: bool = True, **options: Any) -> StepBench:
    """Make one; options are those of `StepGraphs`, and `watchdog_s`."""
    layers = SplitLayers(watchdog_s=options.pop("watchdog_s", 20.0))
    driver, recorder = FakeDriver(machine), FakeRecorder(machine)
    exchange, flags = layers.exchange, layers.flags
    kinds: Sequence[HandoffKind] = (
        HandoffKind("memory_operations", lambda: MemoryOperationHandoff(exchange, driver, flags)),
        HandoffKind(
            "memory_nodes",
            lambda: MemoryOperationHandoff(exchange, driver, flags, as_nodes=True),
            substitute_for="memory_operations",
        ),
        HandoffKind("host_functions", lambda: HostFunctionHandoff(exchange, driver)),
    )
    eager = EagerHandoff(exchange, is_cuda=True)
    bench: StepBench
    choice = HandoffChoice(kinds, eager if records else None, lambda found: bench.measure(found))
    counting = Counting(save=lambda: bench.save_counts())
    fake: Any = recorder
    graphs = StepGraphs(fake, eager, choice, counting=counting, **options)
    bench = StepBench(machine, layers, graphs, recorder, dict(COSTS))
    return bench
