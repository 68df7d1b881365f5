"""Parts of a step: runs of layers on one device, and groups of tokens for the GPU."""

from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from powerinfer.placement.plan import PlacementPlan
from powerinfer.values import Batch

__all__ = ["LayerRun", "layer_runs", "token_groups"]


@dataclass(frozen=True, slots=True)
class LayerRun:
    """Layers [first, last), which may be none, and perhaps the end of the step.

    Attributes:
        number: its number in a step.
        is_on_device: their attention is on the GPU, and the output head if it is part of the run.
        has_end: final norm and output head are part of the run.
    """

    number: int
    first: int
    last: int
    is_on_device: bool
    has_end: bool = False


def layer_runs(plan: PlacementPlan) -> tuple[LayerRun, ...]:
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


def token_groups(batch: Batch, size: int) -> list[tuple[slice, Batch]]:
    """Split a batch of decode rows into groups of up to `size` tokens, full ones first.

    Rows of one sequence see each other, so a batch with several of them stays whole.

    Returns:
        Rows of the step, and their tokens as a batch of their own, by group.
    """
    num_tokens = batch.num_tokens
    if num_tokens <= size or len(np.unique(batch.sequences)) < num_tokens:
        return [(slice(None), batch)]
    groups = []
    for first in range(0, num_tokens, size):
        rows = slice(first, first + size)
        token_ids, tables = batch.token_ids[rows], batch.block_tables[batch.sequences[rows]]
        own_rows = np.arange(len(token_ids), dtype=np.int32)
        groups.append((rows, Batch(token_ids, batch.positions[rows], own_rows, tables)))
    return groups
