"""Vocabularies with byte tokens as metadata of a ``llama`` vocabulary, which merges by score."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from powerinfer.convert.tokenizers.added_tokens import AddedToken
from powerinfer.convert.tokenizers.sentencepiece_model import SentencePieceModel
from powerinfer.convert.tokenizers.tokenizer_json import TokenizerJson, entries_of
from powerinfer.convert.tokenizers.tokens import Token, token_metadata, with_added_tokens
from powerinfer.errors import UnsupportedError
from powerinfer.gguf import keys
from powerinfer.tokenizer.vocabulary import SENTENCEPIECE, TokenType, byte_value

__all__ = ["Spaces", "byte_fallback_metadata", "sentencepiece_metadata", "spaces_of"]

_SPACE_SIGN = "\u2581"
_SPACE = {"String": " "}


@dataclass(frozen=True)
class Spaces:
    """Treatment of spaces besides replacing them by U+2581.

    Attributes:
        add_prefix: a space is prepended to a text.
        is_first_only: not to text after a special token, unlike in GGUF vocabularies.
        unless_there: not to text that starts with a space, unlike in GGUF vocabularies.
    """

    add_prefix: bool
    is_first_only: bool = False
    unless_there: bool = False


def sentencepiece_metadata(
    model: SentencePieceModel, added: Mapping[int, AddedToken], num_rows: int
) -> dict[str, object]:
    """Convert the vocabulary of a ``tokenizer.model``."""
    base = {
        token_id: Token(piece.text, piece.type, piece.score)
        for token_id, piece in enumerate(model.pieces)
    }
    for token_id, token in base.items():
        if token.type is TokenType.USER_DEFINED:
            base[token_id] = Token(token.text.replace(_SPACE_SIGN, " "), token.type, token.score)
    return _metadata(base, added, num_rows, model.path) | {
        keys.ADD_SPACE_PREFIX: model.add_space_prefix
    }


def byte_fallback_metadata(
    source: TokenizerJson, num_rows: int, model: SentencePieceModel | None = None
) -> dict[str, object]:
    """Convert the vocabulary of a ``tokenizer.json`` with byte fallback.

    Args:
        model: ``tokenizer.model`` of the checkpoint, if any: its scores are used if it has the same
            tokens. Otherwise scores follow from the ranks of merges.
    """
    spaces = spaces_of(source)
    base = _tokens_of_model(source, model) or _tokens_of_merges(source)
    return _metadata(base, source.added, num_rows, source.path) | {
        keys.ADD_SPACE_PREFIX: spaces.add_prefix
    }


def _metadata(
    base: Mapping[int, Token], added: Mapping[int, AddedToken], num_rows: int, path: Path
) -> dict[str, object]:
    tokens = with_added_tokens(base, added, num_rows, path, has_visible_spaces=True)
    return {
        keys.TOKENIZER_MODEL: SENTENCEPIECE,
        keys.TOKENIZER_PRE: "default",
        **token_metadata(tokens, num_rows, path, has_scores=True),
    }


def _tokens_of_model(
    source: TokenizerJson, model: SentencePieceModel | None
) -> dict[int, Token] | None:
    if model is None:
        return None
    tokens = {}
    for text, token_id in source.vocab.items():
        if token_id < len(model.pieces) and model.pieces[token_id].text == text:
            piece = model.pieces[token_id]
            tokens[token_id] = Token(text, piece.type, piece.score)
        elif token_id not in source.added:
            return None
    for token_id, token in tokens.items():
        # The list of added tokens decides which of them are matched in text.
        if token.type is TokenType.USER_DEFINED:
            tokens[token_id] = Token(token.text, TokenType.NORMAL, token.score)
    return tokens


def _tokens_of_merges(source: TokenizerJson) -> dict[int, Token]:
    """Derive scores that fall with the rank of the first merge that makes a token.

    Tokens made by no merge (single characters) follow by id. This gives the scores of
    SentencePiece, which numbers tokens in this order.
    """
    made = [left + right for left, right in source.merges]
    order = {text: place for place, text in enumerate(dict.fromkeys(made))}
    rest = sorted(source.vocab.items(), key=lambda item: item[1])
    tokens: dict[int, Token] = {}
    for text, token_id in rest:
        if text == source.model.get("unk_token"):
            tokens[token_id] = Token(text, TokenType.UNKNOWN)
        elif byte_value(text) is not None and text not in order:
            tokens[token_id] = Token(text, TokenType.BYTE)
        else:
            score = -float(order.setdefault(text, len(order)))
            tokens[token_id] = Token(text, TokenType.NORMAL, score)
    return tokens


def spaces_of(source: TokenizerJson) -> Spaces:
    """Determine the treatment of spaces."""
    spaces, writes_sign, cuts_words = Spaces(add_prefix=False), False, False
    for step in entries_of(source.content.get("normalizer"), source.path, "normalizers"):
        if step.get("type") == "Prepend" and step.get("prepend") == _SPACE_SIGN:
            spaces = Spaces(add_prefix=True)
        elif step.get("type") == "Replace" and _replaces_spaces(step):
            writes_sign = True
        elif step.get("type") != "NFC":
            raise _unsupported(source, "normalizer", step)
    for step in entries_of(source.content.get("pre_tokenizer"), source.path, "pretokenizers"):
        if step.get("type") == "Metaspace" and step.get("replacement") == _SPACE_SIGN:
            writes_sign, cuts_words = True, step.get("split", True) is True
            spaces = _metaspace(step)
        # Splitting at spaces has no effect after they have been replaced.
        elif not (step.get("type") == "Split" and writes_sign and step.get("pattern") == _SPACE):
            raise _unsupported(source, "pre-tokenizer", step)
    if not writes_sign:
        raise UnsupportedError(f"{source.path}: spaces are not written as {_SPACE_SIGN}")
    if cuts_words and any(_SPACE_SIGN in text[1:] for text in source.vocab):
        raise UnsupportedError(
            f"{source.path}: text is split at spaces, but there are tokens with a space inside; "
            "GGUF has no key for that"
        )
    return spaces


def _metaspace(step: Mapping[str, object]) -> Spaces:
    default = "always" if step.get("add_prefix_space", True) is True else "never"
    scheme = step.get("prepend_scheme", default)
    adds = scheme != "never"
    return Spaces(adds, is_first_only=scheme == "first", unless_there=adds)


def _replaces_spaces(step: Mapping[str, object]) -> bool:
    return step.get("pattern") == _SPACE and step.get("content") == _SPACE_SIGN


def _unsupported(source: TokenizerJson, what: str, step: Mapping[str, object]) -> UnsupportedError:
    return UnsupportedError(
        f"{source.path}: the {what} {step.get('type')!r:.40} is not supported with byte "
        "fallback: GGUF has no key for it"
    )
