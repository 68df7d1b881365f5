"""Byte-level BPE of ``tokenizer.json`` as metadata of a ``gpt2`` vocabulary."""

from collections.abc import Mapping

import tokenizers
from tokenizers import models

from powerinfer.convert.tokenizers.outside_errors import library_errors
from powerinfer.convert.tokenizers.pre_tokenizer import find_pre_tokenizers
from powerinfer.convert.tokenizers.tokenizer_json import (
    TokenizerJson,
    entries_of,
    merge_lines,
)
from powerinfer.convert.tokenizers.tokens import Token, token_metadata, with_added_tokens
from powerinfer.errors import TokenizerError, UnsupportedError
from powerinfer.gguf import keys
from powerinfer.tokenizer.vocabulary import BYTE_LEVEL, TokenType

__all__ = ["byte_level_metadata"]


def byte_level_metadata(source: TokenizerJson, num_rows: int) -> dict[str, object]:
    """Convert the vocabulary: tokens, types, merges, pre-tokenizer."""
    _check_normalizer(source)
    base = {token_id: Token(text, TokenType.NORMAL) for text, token_id in source.vocab.items()}
    tokens = with_added_tokens(base, source.added, num_rows, source.path)
    return {
        keys.TOKENIZER_MODEL: BYTE_LEVEL,
        keys.TOKENIZER_PRE: _pre(source),
        **token_metadata(tokens, num_rows, source.path, has_scores=False),
        keys.MERGES: merge_lines(source),
    }


def _check_normalizer(source: TokenizerJson) -> None:
    # NFC leaves nearly all texts unchanged; GGUF has no key for it.
    for step in entries_of(source.content.get("normalizer"), source.path, "normalizers"):
        if step.get("type") != "NFC":
            raise UnsupportedError(
                f"{source.path}: the normalizer {step.get('type')!r:.40} is not supported: GGUF "
                "has no key for it"
            )


def _pre(source: TokenizerJson) -> str:
    found = find_pre_tokenizers(source.content.get("pre_tokenizer"), source.path)
    wanted = source.model.get("ignore_merges") is True
    for name, pre in found:
        if pre.ignore_merges is wanted:
            return name
    if _merges_make_all_words(source):
        return found[0][0]
    raise UnsupportedError(
        f"{source.path}: ignore_merges is {str(wanted).lower()} beside the pre-tokenizer of "
        f"{found[0][0]}, which is not known, and the merges do not make all the tokens"
    )


def _merges_make_all_words(source: TokenizerJson) -> bool:
    """Return whether merges make each token of its text, so that `ignore_merges` has no effect."""
    words: Mapping[str, int] = {
        text: token_id for text, token_id in source.vocab.items() if token_id not in source.added
    }
    problem = f"{source.path}: the tokenizers library rejects the vocabulary"
    with library_errors(problem, TokenizerError):
        model = models.BPE(dict(source.vocab), list(source.merges), ignore_merges=False)
        found = tokenizers.Tokenizer(model).encode_batch(list(words), add_special_tokens=False)
    return all(each.ids == [token_id] for each, token_id in zip(found, words.values(), strict=True))
