"""Steps over blocks whose neurons are all the CPU's, recorded on a device made of threads."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fake_stream import FakeDriver, FakeRecorder, Machine
from powerinfer.errors import DeviceError
from powerinfer.ops.gpu.recorder import Activations
from powerinfer.ops.hybrid.handoff import (
    EagerHandoff,
    HandoffChoice,
    MemoryOperationHandoff,
)
from powerinfer.ops.hybrid.step_graphs import Counting, StepGraphs
from powerinfer.values import Batch, FloatArray
from split_ffn import HIDDEN, SplitLayers

__all__ = ["LAYERS", "Key", "StepBench", "batch_of", "step_bench"]

LAYERS = (0, 2, 1)


class Key:
    """Stands in for a KV cache."""


@dataclass
class StepBench:
    """`StepGraphs` on a device made of threads, and what its steps are made of.

    Attributes:
        is_working: whether hand-offs can be made.
        num_made: hand-offs made or tried.
    """

    machine: Machine
    layers: SplitLayers
    graphs: StepGraphs
    recorder: FakeRecorder
    is_working: bool = True
    num_made: int = 0
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

    def make(self) -> MemoryOperationHandoff:
        self.num_made += 1
        if not self.is_working:
            raise DeviceError("memory operations do not work here")
        return MemoryOperationHandoff(self.layers.exchange, FakeDriver(self.machine))


def batch_of(num_tokens: int, num_sequences: int = 1) -> Batch:
    zeros = np.zeros(num_tokens, np.int32)
    return Batch(zeros, zeros, zeros, np.zeros((num_sequences, 1), np.int32))


def step_bench(machine: Machine, *, records: bool = True, **options: Any) -> StepBench:
    """Make one; options are those of `StepGraphs`, and `watchdog_s`."""
    layers = SplitLayers(watchdog_s=options.pop("watchdog_s", 20.0))
    recorder = FakeRecorder(machine)
    eager = EagerHandoff(layers.exchange, is_cuda=True)
    bench: StepBench
    choice = HandoffChoice(lambda: bench.make(), eager if records else None)
    counting = Counting(save=lambda: bench.save_counts())
    fake: Any = recorder
    graphs = StepGraphs(fake, eager, choice, counting=counting, **options)
    bench = StepBench(machine, layers, graphs, recorder)
    return bench
