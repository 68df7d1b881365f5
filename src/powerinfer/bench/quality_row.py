"""Plan of `powerinfer.bench.quality`, and the figures of one setting."""

import math
from dataclasses import dataclass

from powerinfer.sidecar import Field

__all__ = ["DECODE_PROMPT_LENGTH", "QualityPlan", "QualityRow", "read_row"]

# Decoding starts after this many tokens, so that attention has something to do.
DECODE_PROMPT_LENGTH = 32

_NUMBERS = (
    *("decode_tokens_per_s", "speedup", "bytes_per_token", "gb_per_s"),
    *("perplexity", "standard_error", "perplexity_ratio", "agreement"),
)


@dataclass(frozen=True, slots=True)
class QualityPlan:
    """Settings, windows and repeats to measure.

    Attributes:
        settings: names; empty for off, exact, the default, and every kind the file supports.
        errors: values of --max-ffn-error at which every predictor kind is measured as well; None
            for the default threshold of the kind, even with a calibration, in place of the row
            without a dial.
        repeats: decoding repeats, after one warm-up.
    """

    settings: tuple[str, ...] = ()
    errors: tuple[float | None, ...] = ()
    window: int = 512
    num_windows: int = 16
    decode_steps: int = 32
    repeats: int = 5

    @property
    def context_length(self) -> int:
        """Context length that the measurement needs."""
        return max(self.window, DECODE_PROMPT_LENGTH + self.decode_steps)


@dataclass(frozen=True, slots=True)
class QualityRow:
    """Figures of one setting; tuples hold a value per layer or per repeat.

    Attributes:
        decode_tokens_per_s: median over the repeats for the dense model; for others that rate times
            their speedup, so that the two cannot contradict each other on a machine whose speed
            changes. `decode_s` has the raw times.
        speedup: over dense decoding run in turns with it, median over the repeats; 1 for the dense
            model.
        speedup_range: smallest and largest of the repeats.
        bytes_per_token: read by a decode step, KV included.
        predictor_bytes_per_token: the predictors' part of it; None without predictors.
        gb_per_s: bytes read per second at that rate, in 10^9.
        active_share: share of the neurons used on the text.
        predicted_share: share selected by predictors; None without predictors.
        recall: pooled over the tokens of the text.
        ffn_error: relative error of each layer's FFN output.
        agreement: share of the scored positions whose most likely token is the dense model's.
        decode_s: seconds per step of each repeat.
        dense_decode_s: the dense model's, each the mean of the runs before and after.
    """

    setting: str
    sparsity: str
    layer_kinds: tuple[str, ...]
    decode_tokens_per_s: float
    speedup: float
    speedup_range: tuple[float, float]
    bytes_per_token: float
    predictor_bytes_per_token: float | None
    gb_per_s: float
    active_share: float | None
    predicted_share: float | None
    recall: tuple[float | None, ...]
    ffn_error: tuple[float | None, ...]
    perplexity: float
    standard_error: float
    perplexity_ratio: float
    agreement: float
    decode_s: tuple[float, ...]
    dense_decode_s: tuple[float, ...]

    @property
    def worst_recall(self) -> float | None:
        """Recall of the layer that misses most."""
        return min((value for value in self.recall if value is not None), default=None)

    @property
    def worst_ffn_error(self) -> float | None:
        """FFN error of the layer that loses most."""
        return max((value for value in self.ffn_error if value is not None), default=None)


def read_row(found: Field) -> QualityRow:
    """Read a row from the values of its fields, ignoring unknown keys."""

    def numbers(name: str) -> tuple[float, ...]:
        return tuple(found[name].numbers(0, math.inf).tolist())

    def per_layer(name: str) -> tuple[float | None, ...]:
        return tuple(layer.number_or_null(0) for layer in found[name].items())

    if len(found["speedup_range"].items()) != 2:
        found["speedup_range"].fail("is not a list of two numbers")
    low, high = numbers("speedup_range")
    return QualityRow(
        setting=found["setting"].text(),
        sparsity=found["sparsity"].text(),
        layer_kinds=tuple(layer.text() for layer in found["layer_kinds"].items()),
        speedup_range=(low, high),
        predictor_bytes_per_token=found["predictor_bytes_per_token"].number_or_null(0),
        active_share=found["active_share"].number_or_null(0),
        predicted_share=found["predicted_share"].number_or_null(0),
        recall=per_layer("recall"),
        ffn_error=per_layer("ffn_error"),
        decode_s=numbers("decode_s"),
        dense_decode_s=numbers("dense_decode_s"),
        **{name: found[name].number(0) for name in _NUMBERS},
    )
