"""Tokenizers of one token per byte that have the chat templates of well-known models."""

from functools import cache

from powerinfer.tokenizer import Tokenizer
from powerinfer.tokenizer.pieces import BYTE_CHARACTERS
from template_cases import TEMPLATES
from tokenizer_metadata import byte_level

__all__ = ["chat_tokenizer"]

_HARMONY = (
    *("<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|return|>", "<|call|>"),
    "<|constrain|>",
)
_SPECIAL = ("<|im_end|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>")


@cache
def chat_tokenizer(template: str) -> Tokenizer:
    """A tokenizer with a template, given by its name in `template_cases` or by its source."""
    is_harmony = "gpt-oss" in template
    special = _HARMONY if is_harmony else _SPECIAL
    keys = {"eos_token_id": 260 if is_harmony else 256}
    metadata = byte_level(BYTE_CHARACTERS, special=special, keys=keys)
    metadata["tokenizer.chat_template"] = TEMPLATES.get(template, template)
    return Tokenizer.from_metadata(metadata)
