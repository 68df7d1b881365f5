"""Records of whole models without a graph: a replay does the work again, on torch's cpu device."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from powerinfer.ops.cpu.exchange import NativeExchange
from powerinfer.ops.gpu.cache import DeviceBatch
from powerinfer.ops.gpu.ops import TorchGPU
from powerinfer.ops.hybrid import blocks as hybrid_blocks
from powerinfer.ops.hybrid.handoff import EagerHandoff, HandoffChoice
from powerinfer.ops.hybrid.step_graphs import Counting, StepGraphs
from powerinfer.values import Batch, FloatArray

__all__ = ["RepeatingRecorder", "graphs_of", "repeating"]


@dataclass
class RepeatingRecorder:
    """A `CudaRecorder` whose records do their work again.

    Attributes:
        failures: raised by the first records.
    """

    gpu: TorchGPU
    failures: list[BaseException]
    num_records: int = 0
    num_replays: int = 0
    is_replaying: bool = False

    def working(self) -> AbstractContextManager[None]:
        return nullcontext()

    def inputs(self, x: FloatArray, batch: Batch) -> DeviceBatch:
        return self.gpu.static_batch(batch, x.shape[1])

    def to_host(self, values: Any) -> FloatArray:
        return np.array(values if isinstance(values, np.ndarray) else values.numpy())

    def synchronize(self) -> None:
        pass

    def record(self, work: Callable[[], Any], shape: Any = None) -> "Recording":
        if self.failures:
            raise self.failures.pop(0)
        self.num_records += 1
        work()
        return Recording(self, work)


@dataclass
class Recording:
    """A `CudaRecording`."""

    recorder: RepeatingRecorder
    work: Callable[[], Any]
    output: Any = None

    def replay(self) -> None:
        self.recorder.num_replays += 1
        self.recorder.is_replaying = True
        try:
            self.output = self.work()
        finally:
            self.recorder.is_replaying = False

    def result(self) -> FloatArray:
        return self.recorder.to_host(self.output)

    def drop(self) -> None:
        pass


class InlineHandoff(EagerHandoff):
    """Stands in for a hand-off that can be recorded."""

    name = "inline"


def graphs_of(recorder: Any, exchange: NativeExchange, counting: Counting) -> StepGraphs:
    """Steps that are recorded by this recorder after one eager step; the CPU answers at once."""
    eager = EagerHandoff(exchange, is_cuda=False)
    choice = HandoffChoice(lambda: InlineHandoff(exchange, is_cuda=False), eager)
    return StepGraphs(recorder, eager, choice, counting=counting, num_warm_ups=1)


@contextmanager
def repeating(
    patch: pytest.MonkeyPatch, *failures: BaseException
) -> Iterator[list[RepeatingRecorder]]:
    """Let models that are placed in here record so; yields their recorders.

    Args:
        patch: undone at the end.
        failures: of the first records of the first model.
    """
    made: list[RepeatingRecorder] = []

    def make(gpu: TorchGPU, exchange: Any, *_: Any, counting: Any, **options: Any) -> StepGraphs:
        made.append(RepeatingRecorder(gpu, [] if made else list(failures)))
        return graphs_of(made[-1], exchange, counting)

    with patch.context() as context:
        context.setattr(hybrid_blocks, "make_step_graphs", make)
        yield made
