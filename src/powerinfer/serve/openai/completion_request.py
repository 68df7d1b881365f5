"""The body of `/v1/completions`, read and checked."""

from dataclasses import dataclass

from powerinfer.errors import PromptError
from powerinfer.prompts.long_prompts import encode_prompt, too_long
from powerinfer.prompts.prompts import bos_alone, read_ids
from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.serve.errors import bad_request, from_engine
from powerinfer.serve.fields import Fields
from powerinfer.serve.openai.options import Streaming, check_model, read_streaming
from powerinfer.serve.openai.sampling import MAX_TOKENS, read_response_format, read_sampling
from powerinfer.serve.served_model import ModelContext
from powerinfer.values import JSON, JSONObject

__all__ = ["CompletionPrompt", "CompletionRequest", "read_completion", "read_prompts"]

DEFAULT_MAX_TOKENS = 16
MAX_LOGPROBS = 5
MAX_TEXTS = 2048


@dataclass(frozen=True, slots=True)
class CompletionPrompt:
    """A prompt; its first `num_added` tokens, BOS, do not belong to the text."""

    token_ids: list[int]
    num_added: int
    text: str


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A request to `/v1/completions`; with `echo`, texts begin with their prompts."""

    model: str
    prompts: list[CompletionPrompt]
    params: SamplingParams
    echo: bool
    streaming: Streaming


def read_completion(body: JSONObject, context: ModelContext) -> CompletionRequest:
    """Read a body and tokenize its prompts, which is slow; unknown fields are ignored."""
    fields = Fields(body)
    model = check_model(fields, context)
    streaming = read_streaming(fields)
    fields.refuse("suffix")
    given = read_response_format(fields)
    limit = fields.whole("max_tokens", 0, MAX_TOKENS)
    given["max_tokens"] = DEFAULT_MAX_TOKENS if limit is None else limit
    given["logprobs"] = fields.whole("logprobs", 0, MAX_LOGPROBS)
    params = read_sampling(fields, context, **given)
    _check_best_of(fields, params.n)
    prompts = read_prompts(fields, context)
    if len(prompts) * params.n > MAX_TEXTS:
        wanted = f"at most {MAX_TEXTS} texts, prompts times n"
        raise fields.error("prompt", wanted, "array_above_max_length")
    return CompletionRequest(model, prompts, params, fields.switch("echo"), streaming)


def read_prompts(
    fields: Fields, context: ModelContext, name: str = "prompt"
) -> list[CompletionPrompt]:
    """Read a text, a list of token ids, or a list of either, from the field `name`."""
    value = fields.required(name)
    path = fields.path(name)
    if not isinstance(value, list):
        return [_prompt(value, path, context)]
    if not value:
        raise fields.error(name, "a text or token ids, or a list of them", "empty_array")
    if isinstance(value[0], int):
        return [_prompt(value, path, context)]
    if len(value) > MAX_TEXTS:
        raise fields.error(name, f"at most {MAX_TEXTS} prompts", "array_above_max_length")
    return [_prompt(each, f"{path}[{i}]", context) for i, each in enumerate(value)]


def _prompt(value: JSON, path: str, context: ModelContext) -> CompletionPrompt:
    tokenizer = context.tokenizer
    if isinstance(value, str):
        try:
            token_ids = encode_prompt(tokenizer, value, context.model.context_length, name=path)
        except PromptError as error:
            raise from_engine(error, path) from None
        token_ids = token_ids or bos_alone(tokenizer)
        if not token_ids:
            raise bad_request(f"{path} is empty", path, "invalid_value")
        return CompletionPrompt(token_ids, int(token_ids[0] == tokenizer.bos_id), value)
    if not isinstance(value, list):
        shown = repr(value)[:60]
        message = f"{path} must be a text or a list of token ids, got {shown}"
        raise bad_request(message, path, "invalid_type")
    token_ids = _checked_ids(value, path, context)
    return CompletionPrompt(token_ids, 0, tokenizer.decode(token_ids))


def _checked_ids(value: list[JSON], path: str, context: ModelContext) -> list[int]:
    tokenizer, longest = context.tokenizer, context.model.context_length
    if not value:
        raise bad_request(f"{path} is empty", path, "empty_array")
    if len(value) > longest:
        raise from_engine(too_long(str(len(value)), longest, path), path)
    try:
        return read_ids(value, tokenizer.vocab_size)
    except PromptError as error:
        raise bad_request(f"{path}: {error}", path, "invalid_value") from None


def _check_best_of(fields: Fields, n: int) -> None:
    """Refuse to generate more texts than are returned."""
    best_of = fields.whole("best_of", 1, 20)
    if best_of is None or best_of == n:
        return
    if best_of < n:
        raise fields.fault("best_of", f" must be at least n, {n}")
    text = " above n is not supported: there is no choice among more texts"
    raise fields.fault("best_of", text, "unsupported_value")
