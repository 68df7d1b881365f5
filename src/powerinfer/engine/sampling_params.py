"""How the next token is chosen and when generation stops: the values a caller sets."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from powerinfer.errors import PromptError

__all__ = ["SamplingParams"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters, checked when they are made; names and defaults as in llama.cpp.

    The steps are applied in this order: penalties, top-k, top-p, min-p, temperature, draw.

    Attributes:
        temperature: divides the logits; 0 takes the likeliest token, the lowest id among equals.
        top_k: keep the k likeliest tokens; 0 keeps all.
        top_p: keep the likeliest tokens that together reach this probability, in (0, 1].
        min_p: drop tokens less likely than this times the likeliest, in [0, 1].
        repeat_penalty: a recent token's logit is divided by it if positive, else multiplied; from
            0.001 to 1000.
        repeat_last_n: how many of the last tokens, prompt included, the penalty sees.
        seed: of the random generator; None draws one, which `Generation.seed` reports.
        max_tokens: most tokens to generate; None stops at the end of the context.
        stop: texts before which generation stops; they are not part of the result.
        ignore_eos: never choose a token that ends the generation.

    Raises:
        PromptError: a value is out of its range.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    seed: int | None = None
    max_tokens: int | None = 128
    stop: str | Sequence[str] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        _check(
            _is_number(self.temperature) and self.temperature >= 0,
            "temperature",
            "a finite number, 0 or more",
        )
        _check(_is_count(self.top_k), "top_k", "a whole number, 0 or more (0 keeps all)")
        _check(_is_number(self.top_p) and 0 < self.top_p <= 1, "top_p", "above 0 and at most 1")
        _check(_is_number(self.min_p) and 0 <= self.min_p <= 1, "min_p", "from 0 to 1")
        _check(
            _is_number(self.repeat_penalty) and 1e-3 <= self.repeat_penalty <= 1e3,
            "repeat_penalty",
            "from 0.001 to 1000 (1 changes nothing)",
        )
        _check(_is_count(self.repeat_last_n), "repeat_last_n", "a whole number, 0 or more")
        _check(self.seed is None or _is_count(self.seed), "seed", "a whole number, 0 or more")
        _check(
            self.max_tokens is None or _is_count(self.max_tokens),
            "max_tokens",
            "a whole number, 0 or more, or None for no limit",
        )
        is_list = isinstance(self.stop, Sequence) and all(isinstance(s, str) for s in self.stop)
        _check(is_list, "stop", "a text or a list of texts")
        _check(
            all(self.stop_strings),
            "stop",
            "not empty: an empty text would stop before the first token",
        )

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0


def _check(is_valid: bool, name: str, wanted: str) -> None:  # noqa: FBT001
    if not is_valid:
        raise PromptError(f"sampling parameter {name} must be {wanted}")


def _is_number(value: object) -> bool:
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    return is_real and math.isfinite(value)  # type: ignore[arg-type]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
