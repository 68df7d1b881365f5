"""Runs of a plan: consecutive layers on the same device."""

from dataclasses import dataclass, replace
from itertools import groupby

from powerinfer.ops.hybrid.plan import Plan
from powerinfer.ops.protocol import ArrayT, LayerProgram
from powerinfer.values import Batch

__all__ = ["LayerRun", "layer_runs"]


@dataclass(frozen=True, slots=True)
class LayerRun:
    """Layers [first, last), which may be none, and perhaps the end of the step.

    Attributes:
        number: number of the run in a step.
        is_on_device: their attention is on the GPU, and the output head if it is part of the run.
        has_end: final norm and output head are part of the run.
    """

    number: int
    first: int
    last: int
    is_on_device: bool
    has_end: bool = False

    def execute(self, program: LayerProgram[ArrayT], x: ArrayT, batch: Batch) -> ArrayT:
        """Execute this part of a program."""
        if self.first < self.last:
            x = program.layers(x, batch, self.first, self.last)
        return program.end(x) if self.has_end else x


def layer_runs(plan: Plan) -> tuple[LayerRun, ...]:
    """Return the runs of a step, in order; the last one ends it."""
    runs: list[LayerRun] = []
    for is_on_device, layers in groupby(layer.has_attention for layer in plan.layers):
        first = runs[-1].last if runs else 0
        runs.append(LayerRun(len(runs), first, first + len(list(layers)), is_on_device))
    if runs and runs[-1].is_on_device == plan.has_output:
        runs[-1] = replace(runs[-1], has_end=True)
    else:
        end = len(plan.layers)
        runs.append(LayerRun(len(runs), end, end, plan.has_output, has_end=True))
    return tuple(runs)
