"""Fields of Ollama's requests beside the prompt: options, form, reasoning, log probabilities."""

import re
from dataclasses import replace

from powerinfer.errors import PowerInferError
from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.serve.chat.reasoning import reasoning_marks
from powerinfer.serve.errors import from_engine
from powerinfer.serve.fields import Fields
from powerinfer.serve.llamacpp.sampling import check_samplers, read_params
from powerinfer.serve.openai.sampling import MAX_TOKENS
from powerinfer.serve.served_model import ModelContext
from powerinfer.values import JSONObject

__all__ = ["check_options", "read_keep_alive", "read_sampling", "read_think"]

MAX_TOP_LOGPROBS = 20
_SAMPLING = (
    *("temperature", "top_k", "top_p", "min_p", "seed", "stop", "repeat_penalty", "repeat_last_n"),
    *("presence_penalty", "frequency_penalty"),
)
"""Options with llama-server's names and meanings."""
_LEVELS = ("low", "medium", "high")
# Longer times are those of clients that mean "forever".
_LONGEST_STAY_S = 9e9
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d{1,20}(?:\.\d{0,20})?)(ns|us|µs|ms|s|m|h)")
_NUMBER = re.compile(r"\d{1,20}(?:\.\d{0,20})?")
_THINKING = re.compile(r"\b(enable_)?thinking\b")


def read_sampling(fields: Fields, context: ModelContext) -> SamplingParams:
    """Read `options`, `format` and `logprobs`; defaults are the server's."""
    options = fields.object("options") or Fields({}, "options")
    check_options(options, context)
    chosen: JSONObject = {
        name: options.values[name] for name in _SAMPLING if name in options.values
    }
    limit = options.whole("num_predict", -MAX_TOKENS, MAX_TOKENS)
    if limit is not None:
        # Of Ollama's limits only those above 0 end an answer.
        chosen["n_predict"] = limit if limit > 0 else -1
    params = read_params(Fields(chosen, "options"), context)
    try:
        return replace(params, logprobs=_logprobs(fields), json_schema=_schema(fields))
    except PowerInferError as error:
        raise from_engine(error, "format") from None


def check_options(options: Fields | None, context: ModelContext) -> None:
    """Refuse options that should change the answer and cannot; others than these are ignored."""
    if options is None:
        return
    check_samplers(options)
    options.refuse("vocab_only", "embedding_only")
    if not options.switch("penalize_newline", default=True):
        text = " false is not supported: penalties see line ends, too"
        raise options.fault("penalize_newline", text, "unsupported_parameter")
    wanted, served = options.whole("num_ctx", 1, MAX_TOKENS), context.model.context_length
    if wanted is not None and wanted > served:
        text = f" must be at most {served}, the context that this server was started with (-c)"
        raise options.fault("num_ctx", f"{text}, got {wanted}", "unsupported_value")


def _schema(fields: Fields) -> JSONObject | None:
    """Read `format`: "json" or a JSON schema."""
    value = fields.values.get("format")
    if value is None or value == "":
        return None
    if value == "json":
        return {"type": "object"}
    if not isinstance(value, dict):
        raise fields.error("format", '"json" or a JSON schema')
    return value


def _logprobs(fields: Fields) -> int | None:
    asked = fields.switch("logprobs")
    top = fields.whole("top_logprobs", 0, MAX_TOP_LOGPROBS)
    if top and not asked:
        raise fields.fault("top_logprobs", " needs logprobs to be true")
    return (top or 0) if asked else None


def read_think(fields: Fields, context: ModelContext) -> dict[str, object]:
    """Read `think` as variables of the chat template; without it the template decides.

    Raises:
        ApiError: 400, the model cannot do as asked.
    """
    value = fields.values.get("think")
    if value is None:
        return {}
    if not isinstance(value, bool) and value not in _LEVELS:
        raise fields.error("think", f"true, false, {', '.join(_LEVELS)}")
    template = context.tokenizer.chat_template or ""
    has_levels = context.tokenizer.is_harmony or "reasoning_effort" in template
    if isinstance(value, str) and has_levels:
        return {"reasoning_effort": value}
    if context.tokenizer.is_harmony and value is False:
        raise _cannot(fields, "this model always reasons: give low, medium or high")
    if isinstance(value, str):
        raise _cannot(fields, "this model's chat template has no levels: give true or false")
    if context.settings.is_story_model or reasoning_marks(template) is None:
        if value and not context.tokenizer.is_harmony:
            raise _cannot(fields, "this model's chat template knows no reasoning")
        return {}
    if not value and not _THINKING.search(template):
        raise _cannot(fields, "this model's chat template cannot switch reasoning off")
    return {"enable_thinking": value, "thinking": value}


def _cannot(fields: Fields, reason: str) -> Exception:
    value = str(fields.values["think"]).lower()
    return fields.fault("think", f" {value} is not supported: {reason}", "unsupported_value")


def read_keep_alive(fields: Fields) -> float | None:
    """Read `keep_alive`, seconds or a duration such as "5m", as seconds; a negative one as inf."""
    value = fields.values.get("keep_alive")
    if value is None:
        return None
    seconds = (
        _seconds(value) if isinstance(value, str) else fields.number("keep_alive", -1e300, 1e300)
    )
    if seconds is None:
        raise fields.error("keep_alive", 'seconds or a duration such as "5m" or "1h30m"')
    return float("inf") if seconds < 0 or seconds > _LONGEST_STAY_S else seconds


def _seconds(text: str) -> float | None:
    """Parse a duration of Go, or a number of seconds; None for another text."""
    sign, rest = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if _NUMBER.fullmatch(rest):
        return sign * float(rest)
    parts = _PART.findall(rest)
    if not parts or "".join(number + unit for number, unit in parts) != rest:
        return None
    return sign * sum(float(number) * _UNITS[unit] for number, unit in parts)
