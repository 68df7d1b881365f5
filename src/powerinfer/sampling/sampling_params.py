"""Parameters for choosing tokens and for ending a text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Protocol

from powerinfer.errors import PromptError
from powerinfer.options import option_kinds as kinds
from powerinfer.options.option import Option, OptionTable
from powerinfer.sampling.grammar.option_kinds import read_grammar, read_json_schema, read_regex

if TYPE_CHECKING:
    from powerinfer.values import FloatArray

__all__ = ["FORMS", "LogitsProcessor", "SamplingParams"]


class LogitsProcessor(Protocol):
    """Function that changes logits."""

    # FloatArray is quoted, because importing numpy would slow `--help` down.
    def __call__(self, token_ids: Sequence[int], logits: "FloatArray", /) -> "FloatArray":
        """Change the logits for the next token.

        Args:
            token_ids: all tokens so far, including the prompt's; a fresh list.
            logits: f32[vocab_size], a fresh array; minus infinity for banned tokens.

        Returns:
            The logits to use instead, f32[vocab_size]; minus infinity bans a token.
        """
        ...


# At most one of them may be given.
FORMS = ("json_schema", "regex", "grammar")
_PENALTY = kinds.Number(-1e3, 1e3, "from -1000 to 1000 (0 changes nothing)")


@dataclass(frozen=True)
class SamplingParams(OptionTable):
    """Sampling parameters, checked on creation; names and defaults follow llama.cpp.

    They apply in this order: `logit_bias` and `ignore_eos`, penalties, `logits_processors`, the
    form (`json_schema`, `regex` or `grammar`), top-k, top-p, min-p, temperature, draw. NumPy
    scalars are accepted and stored as Python numbers.

    Attributes:
        temperature: divisor of the logits; 0 takes the likeliest token, the lowest id among equals.
        top_k: keep the k likeliest tokens; 0 keeps all.
        top_p: keep the likeliest tokens that together reach this probability, in (0, 1].
        min_p: drop tokens less likely than this times the likeliest, in [0, 1].
        repeat_penalty: divide a recent token's logit by this if it is positive, else multiply;
            from 0.001 to 1000.
        repeat_last_n: number of recent tokens that the penalties see, including the prompt's.
        presence_penalty: subtracted from the logit of each recent token, from -1000 to 1000; OpenAI
            allows -2 to 2.
        frequency_penalty: the same, multiplied by the token's number of recent occurrences.
        logit_bias: bias by token id, added to the logit before everything else; minus infinity bans
            the token. None changes nothing.
        logits_processors: functions that change the logits, called in order.
        logprobs: report the log probability of each generated token and of this many likeliest
            tokens at its position; 0 reports the generated token only, None nothing. See
            `Generation.logprobs`.
        n: number of texts to generate from the prompt.
        seed: seed of the random generator; None draws one, which `Generation.seed` reports.
        max_tokens: largest number of tokens to generate; None continues to the end of the context.
        stop: texts that end the generation; they are not part of the result.
        ignore_eos: never choose a token that ends the generation.
        json_schema: generate JSON that this schema allows, without white space, and nothing after
            it; a dictionary or its text, stored as text.
        regex: generate a text that matches this expression as a whole, in the syntax of Rust's
            `regex`.
        grammar: generate a text that follows this grammar: GBNF, or llguidance's Lark if the first
            word is `%llguidance`. At most one of the three may be given.
        draft: `off`, `auto`, `ngram` or `ngram:N`, the model's option `draft` for this text; None
            leaves it. Its tokens do not depend on it.

    Raises:
        PromptError: a value is out of its range, or two forms are given.
        UnsupportedError: there is no parameter of that name.
    """

    _what = "sampling parameter"

    temperature: Annotated[
        float,
        Option(
            kinds.Number(0.0, None, "a finite number, 0 or more"),
            "--temp --temperature T",
            "Sampling temperature; 0 always takes the likeliest token.",
        ),
    ] = 0.8
    top_k: Annotated[
        int,
        Option(
            kinds.WholeNumber(0, note=" (0 keeps all)"),
            "--top-k K",
            "Keep the K likeliest tokens; 0 keeps all.",
        ),
    ] = 40
    top_p: Annotated[
        float,
        Option(
            kinds.Number(0.0, 1.0, "above 0 and at most 1", is_open=True),
            "--top-p P",
            "Keep the likeliest tokens whose probabilities add up to P.",
        ),
    ] = 0.95
    min_p: Annotated[
        float,
        Option(
            kinds.Number(0.0, 1.0, "from 0 to 1"),
            "--min-p P",
            "Drop tokens less likely than P times the likeliest.",
        ),
    ] = 0.05
    repeat_penalty: Annotated[
        float,
        Option(
            kinds.Number(1e-3, 1e3, "from 0.001 to 1000 (1 changes nothing)"),
            "--repeat-penalty X",
            "Divide the scores of recent tokens by X; 1 changes nothing.",
        ),
    ] = 1.0
    repeat_last_n: Annotated[
        int,
        Option(
            kinds.WholeNumber(0),
            "--repeat-last-n N",
            "Number of recent tokens that the penalties see.",
        ),
    ] = 64
    presence_penalty: Annotated[
        float,
        Option(
            _PENALTY,
            "--presence-penalty X",
            "Subtract X from the scores of recent tokens; 0 changes nothing.",
        ),
    ] = 0.0
    frequency_penalty: Annotated[
        float,
        Option(
            _PENALTY,
            "--frequency-penalty X",
            "Subtract X from a recent token's score for each time it occurs; 0 changes nothing.",
        ),
    ] = 0.0
    # Mappings have no hash, so it does not contribute to that of the parameters.
    logit_bias: Annotated[Mapping[int, float] | None, Option(kinds.read_logit_bias)] = field(
        default=None, hash=False
    )
    logits_processors: Annotated[Sequence[LogitsProcessor], Option(kinds.read_functions)] = ()
    logprobs: Annotated[
        int | None,
        Option(
            kinds.WholeNumber(0, note=", or None for no log probabilities"),
            "--logprobs N",
            "Add to --json the log probability of each token and of the N likeliest at its "
            "position.",
        ),
    ] = None
    n: Annotated[int, Option(kinds.WholeNumber(1))] = 1
    seed: Annotated[
        int | None,
        Option(
            kinds.WholeNumber(0, note=", or None for a random one"),
            "-s --seed N",
            "Seed of the sampler; the same seed gives the same text. [default: -1, a random one]",
            none=-1,
        ),
    ] = None
    max_tokens: Annotated[
        int | None,
        Option(
            kinds.WholeNumber(0, note=", or None for no limit"),
            "-n --max-tokens --n-predict --predict N",
            "Most tokens to generate; 0 only computes the prompt, -1 means no limit.",
            none=-1,
        ),
    ] = 128
    stop: Annotated[
        str | Sequence[str],
        Option(kinds.read_texts, "--stop TEXT", "Stop before this text; repeatable."),
    ] = ()
    ignore_eos: Annotated[
        bool,
        Option(kinds.read_switch, "--ignore-eos", "Never choose a token that ends the generation."),
    ] = False
    json_schema: Annotated[
        str | Mapping[str, object] | None,
        Option(
            read_json_schema,
            "--json-schema FILE",
            "Generate JSON that the JSON schema in FILE allows, without white space.",
        ),
    ] = None
    regex: Annotated[
        str | None,
        Option(
            read_regex,
            "--regex REGEX",
            "Generate a text that matches the regular expression REGEX as a whole.",
        ),
    ] = None
    grammar: Annotated[
        str | None,
        Option(
            read_grammar,
            "--grammar FILE",
            "Generate a text that the grammar in FILE allows: GBNF, or Lark after %llguidance.",
        ),
    ] = None
    draft: Annotated[str | None, Option(kinds.read_draft)] = None

    def __post_init__(self) -> None:
        super().__post_init__()
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
        """True if a schema, an expression or a grammar prescribes the form of the text."""
        return any(getattr(self, name) is not None for name in FORMS)

    @property
    def is_greedy(self) -> bool:
        """True if the likeliest token is always chosen."""
        return self.temperature == 0
