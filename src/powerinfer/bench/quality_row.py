"""What `powerinfer.bench.quality` should measure, and the figures of one setting."""

import math
from dataclasses import asdict, dataclass

from powerinfer.sidecar import Field

__all__ = ["DECODE_PROMPT_LENGTH", "QualityPlan", "QualityRow", "read_row"]

# What decoding starts from, so that attention has something to do.
DECODE_PROMPT_LENGTH = 32


@dataclass(frozen=True, slots=True)
class QualityPlan:
    """What to measure.

    Attributes:
        settings: names; empty for off, exact, what runs by default, and every kind the file can
            serve.
        errors: values of --max-ffn-error at which every predictor kind is measured as well; None
            for the default threshold of the kind, even where there is a calibration, in place of
            the row without a dial.
        window: tokens of a window of text.
        num_windows: most windows to score.
        decode_steps: tokens decoded per repeat.
        repeats: how often decoding is repeated, after one uncounted time.
    """

    settings: tuple[str, ...] = ()
    errors: tuple[float | None, ...] = ()
    window: int = 512
    num_windows: int = 16
    decode_steps: int = 32
    repeats: int = 5

    @property
    def context_length(self) -> int:
        """Tokens of context it needs."""
        return max(self.window, DECODE_PROMPT_LENGTH + self.decode_steps)


@dataclass(frozen=True, slots=True)
class QualityRow:
    """Figures of one setting; lists hold a value per layer.

    Attributes:
        setting: as asked for.
        sparsity: what ran.
        layer_kinds: what decided in each layer.
        decode_tokens_per_s: of the dense model the median over the repeats, of others that times
            their speedup, so that the two cannot contradict each other on a machine whose speed
            changes; `decode_s` has what each repeat took.
        speedup: to dense decoding run in turns with it, median over the repeats; 1 for the dense
            model itself.
        speedup_range: smallest and largest of the repeats.
        bytes_per_token: read by a decode step, KV included.
        predictor_bytes_per_token: of those, bytes of predictors; None where there are none.
        gb_per_s: bytes read per second at that rate, in 10^9.
        active_share: share of the neurons used on the text.
        predicted_share: share that predictors let pass; None where there are none.
        recall: pooled over the tokens of the text.
        ffn_error: relative error of each layer's FFN output.
        perplexity: on the text.
        standard_error: of the perplexity.
        perplexity_ratio: to the dense perplexity.
        agreement: share of the scored positions whose likeliest token is the dense model's.
        decode_s: seconds per step of each repeat.
        dense_decode_s: those of the dense model, each the mean of the runs before and after.
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
        """Of the layer that misses most."""
        return min((value for value in self.recall if value is not None), default=None)

    @property
    def worst_ffn_error(self) -> float | None:
        """Of the layer that loses most."""
        return max((value for value in self.ffn_error if value is not None), default=None)

    def as_json(self) -> dict[str, object]:
        """All figures as JSON values."""
        return asdict(self)


def read_row(found: Field) -> QualityRow:
    """The row of a file, written by `QualityRow.as_json`; keys beside its own are ignored.

    Raises:
        PowerInferError: that of the file: anything is not as it must be.
    """

    def number(name: str) -> float:
        return found[name].number(0)

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
        decode_tokens_per_s=number("decode_tokens_per_s"),
        speedup=number("speedup"),
        speedup_range=(low, high),
        bytes_per_token=number("bytes_per_token"),
        predictor_bytes_per_token=found["predictor_bytes_per_token"].number_or_null(0),
        gb_per_s=number("gb_per_s"),
        active_share=found["active_share"].number_or_null(0),
        predicted_share=found["predicted_share"].number_or_null(0),
        recall=per_layer("recall"),
        ffn_error=per_layer("ffn_error"),
        perplexity=number("perplexity"),
        standard_error=number("standard_error"),
        perplexity_ratio=number("perplexity_ratio"),
        agreement=number("agreement"),
        decode_s=numbers("decode_s"),
        dense_decode_s=numbers("dense_decode_s"),
    )
