"""Prompts in llama-server's form: texts, token ids, or both in one list."""

from powerinfer.errors import PowerInferError
from powerinfer.prompts.long_prompts import encode_prompt, too_long
from powerinfer.prompts.prompts import bos_alone, read_ids
from powerinfer.serve.context import ServerContext
from powerinfer.serve.errors import from_engine
from powerinfer.serve.fields import Fields
from powerinfer.values import JSON

__all__ = ["read_prompts"]

MAX_PROMPTS = 2048
_WANTED = "a text, a list of token ids and texts, or a list of them"


def read_prompts(fields: Fields, context: ServerContext) -> tuple[list[list[int]], bool]:
    """Read the token ids of each prompt, and whether the request has a list of prompts.

    Raises:
        ApiError: the prompt has another type, is empty or too long.
    """
    value = fields.required("prompt")
    if not isinstance(value, list) or not _holds_prompts(value):
        return [_prompt(value, fields, context)], False
    if len(value) > MAX_PROMPTS:
        raise fields.error("prompt", f"at most {MAX_PROMPTS} prompts", "array_above_max_length")
    return [_prompt(each, fields, context) for each in value], True


def _holds_prompts(value: list[JSON]) -> bool:
    """Return whether a list holds prompts; texts among token ids are parts of one prompt."""
    return bool(value) and all(isinstance(each, str | list | dict) for each in value)


def _prompt(value: JSON, fields: Fields, context: ServerContext) -> list[int]:
    if isinstance(value, dict):
        if value.get("multimodal_data"):
            raise fields.error("prompt", "text: this model reads nothing else")
        value = value.get("prompt_string")
    if not isinstance(value, str | list):
        raise fields.error("prompt", _WANTED)
    parts = value if isinstance(value, list) else [value]
    longest = context.model.context_length
    token_ids: list[int] = []
    try:
        for index, part in enumerate(parts):
            token_ids += _part_ids(part, context, add_bos=None if index == 0 else False)
            if len(token_ids) > longest:
                raise too_long(f"more than {longest}", longest)
    except PowerInferError as error:
        raise from_engine(error, fields.path("prompt")) from None
    except TypeError:
        raise fields.error("prompt", _WANTED) from None
    if not token_ids and value == "":
        token_ids = bos_alone(context.tokenizer)
    if not token_ids:
        raise fields.fault("prompt", " is empty")
    return token_ids


def _part_ids(part: JSON, context: ServerContext, *, add_bos: bool | None) -> list[int]:
    tokenizer = context.tokenizer
    if isinstance(part, str):
        return encode_prompt(tokenizer, part, context.model.context_length, add_bos=add_bos)
    if isinstance(part, bool) or not isinstance(part, int):
        raise TypeError
    return read_ids([part], tokenizer.vocab_size)
