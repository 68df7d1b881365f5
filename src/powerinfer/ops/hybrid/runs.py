"""The layers of a plan as runs: those that follow each other on one device."""

from dataclasses import dataclass, replace
from itertools import groupby

from powerinfer.ops.hybrid.plan import Plan
from powerinfer.ops.protocol import ArrayT, LayerProgram
from powerinfer.values import Batch

__all__ = ["LayerRun", "layer_runs"]


@dataclass(frozen=True, slots=True)
class LayerRun:
    """Layers [first, last), which may be none, and perhaps the end of the step behind them.

    Attributes:
        number: of the run in a step.
        first: its first layer.
        last: the layer behind its last.
        is_on_device: their attention is on the GPU, and the output head if the end is in the run.
        has_end: final norm and output head are in the run.
    """

    number: int
    first: int
    last: int
    is_on_device: bool
    has_end: bool = False

    def execute(self, program: LayerProgram[ArrayT], x: ArrayT, batch: Batch) -> ArrayT:
        """Call what the run holds of a program."""
        if self.first < self.last:
            x = program.layers(x, batch, self.first, self.last)
        return program.end(x) if self.has_end else x


def layer_runs(plan: Plan) -> tuple[LayerRun, ...]:
    """The runs of a step, in order; the last one ends it."""
    runs: list[LayerRun] = []
    for is_on_device, layers in groupby(layer.has_attention for layer in plan.layers):
        first = runs[-1].last if runs else 0
        runs.append(LayerRun(len(runs), first, first + len(list(layers)), is_on_device))
    if runs and runs[-1].is_on_device == plan.has_output:
        runs[-1] = replace(runs[-1], has_end=True)
    else:
        behind = len(plan.layers)
        runs.append(LayerRun(len(runs), behind, behind, plan.has_output, has_end=True))
    return tuple(runs)
