"""Advice on the output head, and what a screened one computed."""

from typing import TYPE_CHECKING

from powerinfer.cli.report.tables import percent, print_paragraph

if TYPE_CHECKING:
    from powerinfer.loading.loader import LoadedModel
    from powerinfer.sampling.sampling_params import SamplingParams

__all__ = ["head_report", "offer_screened_head"]

# Of a token's bytes; less is not worth a line.
_LEAST_SHARE = 0.15
# Smaller heads stay in the caches, where nothing is gained by reading less.
_LEAST_BYTES = 16 << 20


def offer_screened_head(loaded: "LoadedModel", params: "SamplingParams") -> None:
    """Name `--head screened` on stderr, if the head is large and file and settings allow it."""
    advice = _advice(loaded, params)
    if advice is not None:
        print_paragraph(f"note: {advice}", err=True)


def _advice(loaded: "LoadedModel", params: "SamplingParams") -> str | None:
    from powerinfer.models.tensors.screened_head import copy_share, screening_obstacle
    from powerinfer.sampling.wanted_logits import wanted_logits

    if loaded.options.head != "exact" or not loaded.is_native_cpu:
        return None
    model, ops = loaded.model, loaded.model.ops
    head = model.weights.output
    num_bytes = ops.matrix_bytes(head.matrix)
    share = num_bytes / model.bytes_per_token(1)
    if share <= _LEAST_SHARE or num_bytes < _LEAST_BYTES:
        return None
    if wanted_logits(params, 0, model.config.vocab_size) is None:
        return None
    if screening_obstacle(ops, head, model.config.scales) is not None:
        return None
    return (
        f"the output head is {percent(share)} of a token's bytes; --head screened reads a copy of "
        f"{percent(copy_share(ops, head))} of its size instead, and changes no text (`powerinfer "
        "bench --head screened` shows whether it is faster)"
    )


def head_report(loaded: "LoadedModel") -> dict[str, object]:
    """Key of `run --json`: the share of its rows that a screened head computed; None without."""
    head = loaded.model.screened_head
    return {"head_computed_share": None if head is None else head.computed_share}
