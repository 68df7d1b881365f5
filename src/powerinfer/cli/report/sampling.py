"""Messages at the end of a generation: its figures, and a full context."""

from typing import TYPE_CHECKING

import click

from powerinfer.cli.report.sparsity import describe_shares
from powerinfer.models.metrics import Metrics
from powerinfer.store.memory import format_bytes

if TYPE_CHECKING:
    from powerinfer import LLM, Generation, SamplingParams

__all__ = ["say_if_full", "summary"]


def say_if_full(llm: "LLM", generation: "Generation", params: "SamplingParams") -> None:
    """Tell on stderr that the context was full before all requested tokens were generated."""
    count, limit = len(generation.token_ids), params.max_tokens
    if generation.finish_reason != "length" or count == limit:
        return
    click.echo(
        f"(the context of {llm.loaded.model.context_length} tokens is full after {count} generated "
        "tokens: set a larger one with -c, or drop old text with --context-shift)",
        err=True,
    )


def summary(metrics: Metrics) -> str:
    """Figures of a generation as one line."""
    parts = [f"load {metrics.load_s:.2f} s"]
    if (rate := metrics.prefill_tokens_per_s) is not None:
        parts.append(f"prefill {metrics.prefill_tokens} tokens, {rate:.1f} tokens/s")
    if (rate := metrics.decode_tokens_per_s) is not None:
        parts.append(f"decode {metrics.decode_tokens} tokens, {rate:.1f} tokens/s")
    if (count := metrics.bytes_per_token) is not None:
        parts.append(f"{format_bytes(count)} per token, {metrics.gb_per_s or 0:.2f} GB/s")
    if metrics.active_share is not None:
        parts.append(describe_shares(metrics))
    return "; ".join(parts)
