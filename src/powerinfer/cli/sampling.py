"""The figures of a generation as one line."""

from powerinfer.engine.memory import format_bytes
from powerinfer.engine.metrics import Metrics

__all__ = ["summary"]


def summary(metrics: Metrics) -> str:
    """The figures of a generation, for people."""
    parts = [f"load {metrics.load_s:.2f} s"]
    if (rate := metrics.prefill_tokens_per_s) is not None:
        parts.append(f"prefill {metrics.prefill_tokens} tokens, {rate:.1f} tokens/s")
    if (rate := metrics.decode_tokens_per_s) is not None:
        parts.append(f"decode {metrics.decode_tokens} tokens, {rate:.1f} tokens/s")
    if (count := metrics.bytes_per_token) is not None:
        parts.append(f"{format_bytes(count)} per token, {metrics.gb_per_s or 0:.2f} GB/s")
    if (share := metrics.active_share) is not None:
        parts.append(f"active neurons {100 * share:.1f} %")
    if (share := metrics.predicted_share) is not None:
        parts.append(f"predicted {100 * share:.1f} %")
    return "; ".join(parts)
