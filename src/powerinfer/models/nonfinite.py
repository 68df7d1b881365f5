"""Diagnostic second pass after NaN or infinite logits, to find the failing layer.

Weights are not scanned at load (that would read the whole file); this pass costs one prefill and
runs only when something is already wrong.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np

from powerinfer.models.blocks import Stage, StepControl
from powerinfer.models.model import Model
from powerinfer.ops.protocol import KVType
from powerinfer.values import FloatArray

__all__ = ["find_nonfinite_layer"]

# With the cache, prefill in pieces gives the same result and bounds the memory it takes.
_TOKENS_PER_STEP = 512


def find_nonfinite_layer(
    model: Model,
    token_ids: Sequence[int],
    kv_type: KVType = KVType.F16,
    is_prompt: Sequence[bool] | None = None,
) -> str | None:
    """Run the tokens again from an empty cache and name the first part that is not finite.

    Args:
        token_ids: the whole sequence up to the token whose logits were bad.
        is_prompt: one flag per token; None if all are prompt.

    Returns:
        For example `layer 3 (FFN)`, `token embedding` or `output head`; None if all was finite.
    """
    cache = model.new_cache(max(1, len(token_ids)), kv_type)
    for start, end, kind in _steps([True] * len(token_ids) if is_prompt is None else is_prompt):
        found = _Check()
        batch = cache.batch([(0, token_ids[start:end], start)], [kind])
        if not np.isfinite(model.ops.to_host(model.embed(batch))).all():
            return "token embedding"
        logits = model.forward(batch, cache, observe=found)
        if found.name is not None:
            return found.name
        if not np.isfinite(logits).all():
            return "output head"
    return None


def _steps(kinds: Sequence[bool]) -> Iterator[tuple[int, int, bool]]:
    """First token, end and kind of each step."""
    start = 0
    for kind, group in groupby(kinds):
        end = start + sum(1 for _ in group)
        for first in range(start, end, _TOKENS_PER_STEP):
            yield first, min(first + _TOKENS_PER_STEP, end), kind
        start = end


# A part's inputs are derived from the stream, so the stream alone shows which part failed.
_STAGES = (Stage.ATTENTION, Stage.FFN)


class _Check:
    """Observer that remembers the first stage with a non-finite number."""

    def __init__(self) -> None:
        self.name: str | None = None

    def __call__(self, stage: Stage, layer: int, x: FloatArray) -> StepControl | None:
        if self.name is None and stage in _STAGES and not np.isfinite(x).all():
            self.name = f"layer {layer} ({stage})"
        return None if self.name is None else StepControl.STOP
