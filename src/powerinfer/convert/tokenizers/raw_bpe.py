"""Gemma 4's BPE on characters as metadata of a ``gemma4`` vocabulary, which keeps the merges."""

from dataclasses import replace
from pathlib import Path

from powerinfer.convert.tokenizers.byte_fallback import spaces_of
from powerinfer.convert.tokenizers.files import optional_object
from powerinfer.convert.tokenizers.tokenizer_json import TokenizerJson, merge_lines
from powerinfer.convert.tokenizers.tokens import Token, token_metadata, with_added_tokens
from powerinfer.errors import UnsupportedError
from powerinfer.gguf import keys
from powerinfer.tokenizer.vocabulary import RAW_BPE, TokenType, byte_value

__all__ = ["is_raw_bpe", "raw_bpe_metadata"]

_MODELS = ("gemma4", "gemma4_text")
# Marks of reasoning and tool calls, which llama.cpp shows only if they are no control tokens.
_MARKS = frozenset(
    (
        *("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>'),
        *("<|tool_response>", "<tool_response|>"),
    )
)


def is_raw_bpe(folder: Path) -> bool:
    """Return whether GGUF files of a checkpoint's family have a ``gemma4`` vocabulary."""
    return optional_object(folder / "config.json").get("model_type") in _MODELS


def raw_bpe_metadata(source: TokenizerJson, num_rows: int) -> dict[str, object]:
    """Convert the vocabulary: tokens, types, merges.

    Raises:
        UnsupportedError: a space is put before texts, or spaces are treated in an unknown way.
    """
    if spaces_of(source).add_prefix:
        raise UnsupportedError(
            f"{source.path}: a space is put before texts; a gemma4 vocabulary has no key for it"
        )
    base = {
        token_id: Token(text, TokenType.NORMAL if byte_value(text) is None else TokenType.BYTE)
        for text, token_id in source.vocab.items()
    }
    tokens = with_added_tokens(base, source.added, num_rows, source.path)
    for token_id, token in tokens.items():
        if token.text in _MARKS and token.type is TokenType.CONTROL:
            tokens[token_id] = replace(token, type=TokenType.USER_DEFINED)
    return {
        keys.TOKENIZER_MODEL: RAW_BPE,
        **token_metadata(tokens, num_rows, source.path, has_scores=False),
        keys.MERGES: merge_lines(source),
        keys.ADD_SPACE_PREFIX: False,
    }
