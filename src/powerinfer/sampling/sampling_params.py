"""The values that a caller sets to choose tokens and to stop generation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from powerinfer.errors import PromptError
from powerinfer.options import option_kinds as kinds
from powerinfer.options.option import checks_names, option, read_in_place
from powerinfer.sampling.grammar.option_kinds import GrammarSource, JsonSchema, Regex

if TYPE_CHECKING:
    from powerinfer.values import FloatArray

__all__ = ["FORMS", "LogitsProcessor", "SamplingParams"]


class LogitsProcessor(Protocol):
    """A function that changes logits."""

    # The type is a text, because importing numpy for it would slow `--help` down.
    def __call__(self, token_ids: Sequence[int], logits: "FloatArray", /) -> "FloatArray":
        """Change the logits of one place.

        Args:
            token_ids: so far, the prompt's included; a list of its own.
            logits: f32[vocab_size] of its own; minus infinity for banned tokens.

        Returns:
            The logits to go on with, f32[vocab_size]; minus infinity bans a token.
        """
        ...


# A text follows one of them at most.
FORMS = ("json_schema", "regex", "grammar")
_PENALTY = "from -1000 to 1000 (0 changes nothing)"


@checks_names("sampling parameter")
@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters, checked when they are made; names and defaults as in llama.cpp.

    The steps are applied in this order: `logit_bias` and `ignore_eos`, penalties,
    `logits_processors`, the form (`json_schema`, `regex` or `grammar`), top-k, top-p, min-p,
    temperature, draw. Numbers may be numpy's scalars;
    what is kept are Python's own.

    Attributes:
        temperature: divides the logits; 0 takes the likeliest token, the lowest id among equals.
        top_k: keep the k likeliest tokens; 0 keeps all.
        top_p: keep the likeliest tokens that together reach this probability, in (0, 1].
        min_p: drop tokens less likely than this times the likeliest, in [0, 1].
        repeat_penalty: a recent token's logit is divided by it if positive, else multiplied; from
            0.001 to 1000.
        repeat_last_n: how many of the last tokens, prompt included, the penalties see.
        presence_penalty: subtracted from the logit of each recent token; OpenAI allows -2 to 2, we
            -1000 to 1000.
        frequency_penalty: the same, times how often the token occurs among the recent ones.
        logit_bias: by token id, what is added to its logit before anything else; minus infinity
            bans the token. None changes nothing.
        logits_processors: functions that change the logits, called one after the other.
        logprobs: report the log probability of each generated token, and as many of the likeliest
            tokens in its place; 0 reports the chosen one alone, None nothing. See
            `Generation.logprobs`.
        n: how many texts to generate from the prompt.
        seed: of the random generator; None draws one, which `Generation.seed` reports.
        max_tokens: most tokens to generate; None stops at the end of the context.
        stop: texts before which generation stops; they are not part of the result.
        ignore_eos: never choose a token that ends the generation.
        json_schema: the text is JSON without white space that this schema allows, and ends with it;
            a dictionary or its text, kept as text.
        regex: the whole text matches this expression, in the syntax of Rust's `regex`.
        grammar: the text follows this grammar: GBNF, or Lark as llguidance writes it if the first
            word is `%llguidance`. Of the three at most one is given.

    Raises:
        PromptError: a value is out of its range, or two forms are given.
        UnsupportedError: there is no parameter of that name.
    """

    temperature: float = option(
        kinds.Number(0.0, None, "a finite number, 0 or more"),
        default=0.8,
        help="Temperature; 0 always takes the likeliest token.",
        flags="--temp --temperature",
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
        help="How many recent tokens the penalties see.",
        flags="--repeat-last-n",
        metavar="N",
    )
    presence_penalty: float = option(
        kinds.Number(-1e3, 1e3, _PENALTY),
        default=0.0,
        help="Subtract X from the scores of recent tokens; 0 leaves them.",
        flags="--presence-penalty",
        metavar="X",
    )
    frequency_penalty: float = option(
        kinds.Number(-1e3, 1e3, _PENALTY),
        default=0.0,
        help="Subtract X from the score of a token for each time it occurs among the recent ones; "
        "0 leaves it.",
        flags="--frequency-penalty",
        metavar="X",
    )
    logit_bias: Mapping[int, float] | None = option(
        kinds.LogitBias(), help="What is added to the logits of some tokens."
    )
    logits_processors: Sequence[LogitsProcessor] = option(
        kinds.Functions[LogitsProcessor](),
        default=(),
        help="Functions that change the logits.",
    )
    logprobs: int | None = option(
        kinds.WholeNumber(0, note=", or None for no log probabilities"),
        help="Add the log probability of each token to --json, and the N likeliest in its place.",
        flags="--logprobs",
        metavar="N",
    )
    n: int = option(
        kinds.WholeNumber(1), default=1, help="How many texts to generate from a prompt."
    )
    seed: int | None = option(
        kinds.WholeNumber(0, note=", or None for a random one"),
        help="Seed of the sampler; the same seed gives the same text. [default: -1, a new one]",
        flags="-s --seed",
        metavar="N",
        none=-1,
    )
    max_tokens: int | None = option(
        kinds.WholeNumber(0, note=", or None for no limit"),
        default=128,
        help="Tokens to generate; 0 only reads the prompt, -1 has no limit.",
        flags="-n --max-tokens --n-predict --predict",
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
    json_schema: str | Mapping[str, object] | None = option(
        JsonSchema(),
        help="Generate JSON that the JSON schema in FILE allows, without white space.",
        flags="--json-schema",
        metavar="FILE",
    )
    regex: str | None = option(
        Regex(),
        help="Generate a text that matches the regular expression REGEX as a whole.",
        flags="--regex",
        metavar="REGEX",
    )
    grammar: str | None = option(
        GrammarSource(),
        help="Generate a text that the grammar in FILE allows: GBNF, or Lark after %llguidance.",
        flags="--grammar",
        metavar="FILE",
    )

    def __post_init__(self) -> None:
        read_in_place(self, "sampling parameter")
        given = [name for name in FORMS if getattr(self, name) is not None]
        if len(given) > 1:
            raise PromptError(
                f"{' and '.join(given)} are given together; a text can follow one of them",
                remedy=f"give only one ({{{given[0]}}} or {{{given[1]}}})",
            )

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def has_form(self) -> bool:
        """Whether the text must follow a schema, an expression or a grammar."""
        return any(getattr(self, name) is not None for name in FORMS)

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0
