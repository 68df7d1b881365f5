"""Sampling parameters in OpenAI's ranges, and this server's own."""

from dataclasses import replace
from typing import Any

from powerinfer.errors import PromptError, UnsupportedError
from powerinfer.options.option_kinds import read_draft
from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.serve.errors import bad_request
from powerinfer.serve.fields import Fields
from powerinfer.serve.served_model import ModelContext

__all__ = ["MAX_CHOICES", "MAX_TOKENS", "read_response_format", "read_sampling", "read_seed"]

MAX_CHOICES = 128
MAX_TOKENS = (1 << 31) - 1
MAX_STOPS = 4
_MAX_SEED = (1 << 64) - 1
# Takes the likeliest token, like 0 in OpenAI's API.
_LEAST_TOP_P = 1e-9


def read_sampling(fields: Fields, context: ModelContext, **given: Any) -> SamplingParams:
    """Read sampling parameters; defaults are the server's, `given` were read by the caller."""
    top_p = fields.number("top_p", 0, 1)
    named: dict[str, Any] = {
        "temperature": fields.number("temperature", 0, 2),
        "top_p": None if top_p is None else max(top_p, _LEAST_TOP_P),
        "presence_penalty": fields.number("presence_penalty", -2, 2),
        "frequency_penalty": fields.number("frequency_penalty", -2, 2),
        "n": fields.whole("n", 1, MAX_CHOICES),
        "seed": read_seed(fields),
        "stop": _read_stop(fields),
        "logit_bias": _read_logit_bias(fields, context.tokenizer.vocab_size),
        "top_k": _read_top_k(fields),
        "min_p": fields.number("min_p", 0, 1),
        "repeat_penalty": fields.number("repeat_penalty", 1e-3, 1e3),
        "repeat_last_n": fields.whole("repeat_last_n", 0, MAX_TOKENS),
        "ignore_eos": fields.switch("ignore_eos") if "ignore_eos" in fields else None,
        "draft": _read_draft(fields),
    }
    values = {name: value for name, value in named.items() if value is not None}
    try:
        # The parameters check their values and types once more.
        return replace(context.settings.sampling, **(values | given))
    except (PromptError, UnsupportedError) as error:
        raise bad_request(str(error), code="invalid_value") from None


def _read_draft(fields: Fields) -> str | None:
    """Read the kind of drafts."""
    draft = fields.text("draft")
    try:
        return None if draft is None else read_draft(draft)
    except ValueError as error:
        raise fields.error("draft", str(error), "invalid_value") from None


def _read_stop(fields: Fields) -> tuple[str, ...] | None:
    """Read one or several stop strings."""
    stops = fields.texts("stop")
    if stops is None:
        return None
    if len(stops) > MAX_STOPS:
        wanted = f"at most {MAX_STOPS} texts"
        raise fields.error("stop", wanted, "array_above_max_length")
    if not all(stops):
        raise fields.error("stop", "texts that are not empty", "invalid_value")
    return tuple(stops)


def _read_logit_bias(fields: Fields, vocab_size: int) -> dict[int, float] | None:
    """Read what is added to the logits, by token id."""
    biases = fields.object("logit_bias")
    if biases is None:
        return None
    read = {}
    for name in biases.values:
        bias = biases.number(name, -100, 100)
        # A few characters suffice for any id.
        is_id = name.isascii() and name.isdecimal() and len(name) <= 10
        if not is_id or int(name) >= vocab_size:
            ids = f"token ids, from 0 to {vocab_size - 1}"
            text = f" must have {ids}, for names, got {name[:60]!r}"
            raise fields.fault("logit_bias", text)
        if bias is not None:
            read[int(name)] = bias
    return read


def read_seed(fields: Fields) -> int | None:
    """Read a signed or unsigned number of 64 bits; -1 requests a random seed."""
    seed = fields.whole("seed", -(1 << 63), _MAX_SEED)
    return None if seed is None or seed == -1 else seed & _MAX_SEED


def _read_top_k(fields: Fields) -> int | None:
    """Read `top_k`; 0 and -1 keep all tokens, as other servers use either."""
    top_k = fields.whole("top_k", -1, MAX_TOKENS)
    return None if top_k is None else max(top_k, 0)


def read_response_format(fields: Fields) -> dict[str, object]:
    """Read the sampling parameter that enforces the format; empty for plain text."""
    wanted = fields.object("response_format")
    if wanted is None:
        return {}
    kind = wanted.required_choice("type", ("text", "json_object", "json_schema"))
    if kind == "text":
        return {}
    if kind == "json_object":
        # llama-server also takes a schema here.
        schema = wanted.object("schema")
        return {"json_schema": {"type": "object"} if schema is None else dict(schema.values)}
    named = wanted.required_object("json_schema")
    return {"json_schema": dict(named.required_object("schema").values)}
