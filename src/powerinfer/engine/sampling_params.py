"""The values that a caller sets to choose tokens and to stop generation."""

from collections.abc import Sequence
from dataclasses import dataclass

from powerinfer.engine import option_kinds as kinds
from powerinfer.engine.option import check_options, option

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

    temperature: float = option(
        kinds.Number(0.0, None, "a finite number, 0 or more"),
        default=0.8,
        help="Temperature; 0 always takes the likeliest token.",
        flags="--temp",
        metavar="T",
    )
    top_k: int = option(
        kinds.WholeNumber(0, note=" (0 keeps all)"),
        default=40,
        help="Keep the K likeliest tokens; 0 keeps all.",
        flags="--top-k",
        metavar="K",
    )
    top_p: float = option(
        kinds.Number(0.0, 1.0, "above 0 and at most 1", is_open=True),
        default=0.95,
        help="Keep the likeliest tokens that together reach probability P.",
        flags="--top-p",
        metavar="P",
    )
    min_p: float = option(
        kinds.Number(0.0, 1.0, "from 0 to 1"),
        default=0.05,
        help="Drop tokens less likely than P times the likeliest.",
        flags="--min-p",
        metavar="P",
    )
    repeat_penalty: float = option(
        kinds.Number(1e-3, 1e3, "from 0.001 to 1000 (1 changes nothing)"),
        default=1.0,
        help="Divide the scores of recent tokens by X; 1 leaves them.",
        flags="--repeat-penalty",
        metavar="X",
    )
    repeat_last_n: int = option(
        kinds.WholeNumber(0),
        default=64,
        help="How many recent tokens the penalty sees.",
        flags="--repeat-last-n",
        metavar="N",
    )
    seed: int | None = option(
        kinds.WholeNumber(0),
        help="Seed of the sampler; the same seed gives the same text. [default: -1, a new one]",
        flags="-s --seed",
        metavar="N",
        none=-1,
    )
    max_tokens: int | None = option(
        kinds.WholeNumber(0, note=", or None for no limit"),
        default=128,
        help="Tokens to generate; 0 only reads the prompt, -1 has no limit.",
        flags="-n --max-tokens --n-predict",
        metavar="N",
        none=-1,
    )
    stop: str | Sequence[str] = option(
        kinds.Texts(),
        default=(),
        help="Stop before this text; may be given several times.",
        flags="--stop",
        metavar="TEXT",
    )
    ignore_eos: bool = option(
        kinds.Switch(),
        default=False,
        help="Never choose a token that ends the generation.",
        flags="--ignore-eos",
    )

    def __post_init__(self) -> None:
        check_options(self, "sampling parameter")

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0
