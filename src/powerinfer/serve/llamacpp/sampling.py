"""Sampling parameters under llama-server's names; samplers that this server lacks are refused."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from powerinfer.errors import PowerInferError
from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.serve.errors import from_engine
from powerinfer.serve.fields import Fields
from powerinfer.serve.openai.sampling import MAX_CHOICES, MAX_TOKENS, read_seed
from powerinfer.serve.served_model import ModelContext
from powerinfer.values import JSON

__all__ = ["check_samplers", "read_params"]

_LARGE = 1e6
# Values that switch off samplers that this server lacks.
_NEUTRAL: Mapping[str, Callable[[float], bool]] = {
    "adaptive_target": lambda value: value <= 0,
    "dry_multiplier": lambda value: value == 0,
    "dynatemp_range": lambda value: value == 0,
    "mirostat": lambda value: value == 0,
    "tfs_z": lambda value: value == 1,
    "top_n_sigma": lambda value: value <= 0,
    "typical_p": lambda value: value >= 1,
    "xtc_probability": lambda value: value == 0,
    "min_keep": lambda value: value <= 1,
}


def read_params(fields: Fields, context: ModelContext) -> SamplingParams:
    """Read sampling parameters; defaults are the server's."""
    top_p, top_k = fields.number("top_p", -_LARGE, _LARGE), fields.whole("top_k", -1, MAX_TOKENS)
    named: dict[str, Any] = {
        "temperature": _at_least(0.0, fields.number("temperature", -_LARGE, _LARGE)),
        "top_p": None if top_p is None else min(max(top_p, 1e-9), 1.0),
        "top_k": None if top_k is None else max(top_k, 0),
        "min_p": _at_least(0.0, fields.number("min_p", -_LARGE, 1)),
        "repeat_penalty": fields.number("repeat_penalty", 1e-3, 1e3),
        "repeat_last_n": _repeat_last_n(fields, context),
        "presence_penalty": fields.number("presence_penalty", -1e3, 1e3),
        "frequency_penalty": fields.number("frequency_penalty", -1e3, 1e3),
        "seed": read_seed(fields),
        "stop": _stop(fields),
        "ignore_eos": fields.switch("ignore_eos") if "ignore_eos" in fields else None,
        "logit_bias": _logit_bias(fields, context),
        "grammar": fields.text("grammar") or None,
        "json_schema": fields.values.get("json_schema"),
    }
    values = {name: each for name, each in named.items() if each is not None}
    values["max_tokens"] = _max_tokens(fields, context)
    values["logprobs"] = fields.whole("n_probs", 0, context.tokenizer.vocab_size) or None
    values["n"] = fields.whole("n_cmpl", 1, MAX_CHOICES) or 1
    try:
        return replace(context.settings.sampling, **values)
    except PowerInferError as error:
        raise from_engine(error) from None


def check_samplers(fields: Fields) -> None:
    """Refuse active samplers that this server lacks; values that switch them off are allowed."""
    for name, is_neutral in _NEUTRAL.items():
        value = fields.number(name, -1e38, 1e38)
        if value is not None and not is_neutral(value):
            text = f" {value:g} is not supported: this server has no such sampler"
            raise fields.fault(name, text, "unsupported_parameter")


def _at_least(low: float, value: float | None) -> float | None:
    return None if value is None else max(value, low)


def _repeat_last_n(fields: Fields, context: ModelContext) -> int | None:
    """Read `repeat_last_n`; -1 stands for the whole context."""
    count = fields.whole("repeat_last_n", -1, MAX_TOKENS)
    return context.model.context_length if count == -1 else count


def _max_tokens(fields: Fields, context: ModelContext) -> int | None:
    """Read the limit: -1, or -2 of older clients, means none; the default is the server's."""
    name = "n_predict" if "n_predict" in fields else "max_tokens"
    limit = fields.whole(name, -2, MAX_TOKENS)
    if limit is None:
        return context.settings.max_tokens
    return None if limit < 0 else limit


def _stop(fields: Fields) -> tuple[str, ...] | None:
    stops = fields.texts("stop")
    return None if stops is None else tuple(filter(None, stops))


def _logit_bias(fields: Fields, context: ModelContext) -> dict[int, float] | None:
    """Read `[[token, bias], ...]` or `{token: bias}`; tokens are ids or texts, false bans them."""
    value = fields.values.get("logit_bias")
    if value is None:
        return None
    biases: dict[int, float] = {}
    for token, bias in _pairs(value, fields):
        if bias is False:
            bias = -float("inf")
        if isinstance(bias, bool) or not isinstance(bias, int | float):
            raise fields.error("logit_bias", "biases that are numbers or false")
        for token_id in _token_ids(token, fields, context):
            biases[token_id] = float(bias)
    return biases


def _pairs(value: JSON, fields: Fields) -> list[tuple[JSON, JSON]]:
    if isinstance(value, dict):
        return list(value.items())
    listed = value if isinstance(value, list) else [value]
    pairs = [(each[0], each[1]) for each in listed if isinstance(each, list) and len(each) == 2]
    if len(pairs) < len(listed):
        raise fields.error("logit_bias", "a list of pairs of a token and its bias")
    return pairs


def _token_ids(token: JSON, fields: Fields, context: ModelContext) -> list[int]:
    if isinstance(token, str) and not (token.isascii() and token.isdecimal() and len(token) < 11):
        return context.tokenizer.encode(token, add_bos=False)
    if isinstance(token, bool) or not isinstance(token, int | str):
        raise fields.error("logit_bias", "tokens that are ids or texts")
    token_id = int(token)
    if not 0 <= token_id < context.tokenizer.vocab_size:
        raise fields.fault("logit_bias", f": there is no token {token_id}")
    return [token_id]
