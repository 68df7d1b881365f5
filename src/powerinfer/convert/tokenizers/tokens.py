"""List of a GGUF file's tokens: base tokens, added tokens, padding."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from powerinfer.convert.tokenizers.added_tokens import AddedToken
from powerinfer.convert.tokenizers.files import check_unicode
from powerinfer.errors import TokenizerError
from powerinfer.gguf import keys
from powerinfer.tokenizer.vocabulary import TokenType

__all__ = ["Token", "token_metadata", "with_added_tokens"]

_log = logging.getLogger(__name__)

# llama.cpp's scores of tokens made by no merge: they only have to be low.
_ADDED_SCORE = -1000.0
_PADDING_SCORE = -10000.0


@dataclass(frozen=True)
class Token:
    """A token as stored in a file; the score orders merges in SentencePiece vocabularies."""

    text: str
    type: TokenType
    score: float = 0.0


def with_added_tokens(
    base: Mapping[int, Token],
    added: Mapping[int, AddedToken],
    num_rows: int,
    path: Path,
    *,
    has_visible_spaces: bool = False,
) -> dict[int, Token]:
    """Insert added tokens; special ones become control tokens.

    Args:
        added: added tokens by id; those without a row in the embedding are dropped.
        has_visible_spaces: spaces are written as U+2581 in `base` and in texts of `added`;
            user-defined tokens are stored with the space they match.
    """
    tokens = dict(base)
    left_out = [token_id for token_id in added if token_id >= num_rows]
    if left_out:
        _log.warning(
            "%s: %d added tokens, from id %d on, have no row in the embedding of %d; dropped",
            *(path, len(left_out), min(left_out), num_rows),
        )
    for token_id, token in added.items():
        if token_id >= num_rows:
            continue
        old = base.get(token_id)
        text, score = token.text, _ADDED_SCORE if old is None else old.score
        token_type = TokenType.CONTROL if token.special else TokenType.USER_DEFINED
        if old is not None and old.type is TokenType.UNKNOWN and old.text == text:
            token_type = TokenType.UNKNOWN
        elif has_visible_spaces and not token.special:
            text = text.replace("\u2581", " ")
        tokens[token_id] = Token(text, token_type, score)
    return tokens


def token_metadata(
    tokens: Mapping[int, Token], num_rows: int, path: Path, *, has_scores: bool
) -> dict[str, object]:
    """Texts, types and scores of ids from 0 to `num_rows`; gaps become unused tokens."""
    last = max(tokens)
    if last >= num_rows:
        raise TokenizerError(
            f"{path}: token {tokens[last].text!r:.40} has the id {last}; the embedding has "
            f"{num_rows} rows"
        )
    filled = [
        tokens.get(token_id) or Token(f"[PAD{token_id}]", TokenType.UNUSED, _PADDING_SCORE)
        for token_id in range(num_rows)
    ]
    texts = [token.text for token in filled]
    check_unicode("".join(texts), path, "a token")
    metadata: dict[str, object] = {
        keys.TOKENS: texts,
        keys.TOKEN_TYPES: np.array([int(token.type) for token in filled], np.int32),
    }
    if has_scores:
        metadata[keys.TOKEN_SCORES] = np.array([token.score for token in filled], np.float32)
    return metadata
