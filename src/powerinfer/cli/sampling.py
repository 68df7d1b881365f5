"""Sampling flags as `SamplingParams`, and the figures of a generation as one line."""

from typing import Any

from powerinfer.engine.memory import format_bytes
from powerinfer.engine.metrics import Metrics
from powerinfer.engine.sampling_params import SamplingParams

__all__ = ["sampling_params", "summary"]

# What llama.cpp's users write for a new seed.
RANDOM_SEED = -1


def sampling_params(flags: dict[str, Any]) -> SamplingParams:
    """Sampling parameters from the flags that `cli.options.sampling_options` and -n add.

    Raises:
        PromptError: a value is out of its range.
    """
    return SamplingParams(
        temperature=flags["temperature"],
        top_k=flags["top_k"],
        top_p=flags["top_p"],
        min_p=flags["min_p"],
        repeat_penalty=flags["repeat_penalty"],
        repeat_last_n=flags["repeat_last_n"],
        seed=None if flags["seed"] == RANDOM_SEED else flags["seed"],
        max_tokens=None if flags["max_tokens"] < 0 else flags["max_tokens"],
        stop=flags["stop"],
        ignore_eos=flags["ignore_eos"],
    )


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
