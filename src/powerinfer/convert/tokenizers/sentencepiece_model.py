"""Pieces and switches of a ``tokenizer.model``, a message of `sentencepiece_model.proto`.

The library exposes neither user-defined pieces nor training settings, so the few fields needed are
read here.
"""

import struct
from dataclasses import dataclass
from pathlib import Path

from powerinfer.convert.tokenizers.files import read_bytes
from powerinfer.errors import TokenizerError, UnsupportedError
from powerinfer.tokenizer.vocabulary import TokenType

__all__ = ["Piece", "SentencePieceModel", "is_sentencepiece", "load_sentencepiece"]

# Field numbers of the message and its nested messages.
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_TEXT, _SCORE, _TYPE = 1, 2, 3
_MODEL_TYPE, _WHITESPACE_AS_SUFFIX, _UNK, _BOS, _EOS, _PAD = 3, 24, 40, 41, 42, 43
_NAME, _CHARSMAP, _DUMMY_PREFIX, _REMOVE_SPACES, _ESCAPE_SPACES = 1, 2, 3, 4, 5
_KINDS = {1: "Unigram", 2: "BPE", 3: "Word", 4: "Character"}
# Types of pieces have the same numbers in GGUF.
_TYPES = {int(token_type): token_type for token_type in TokenType if token_type}
_VARINT, _LENGTH = 0, 2
# Bytes of wire types without a length.
_SIZES = {1: 8, 5: 4}

_Field = tuple[int, int | bytes]


@dataclass(frozen=True)
class Piece:
    """A token: its text with visible spaces, its score and type."""

    text: str
    score: float
    type: TokenType


@dataclass(frozen=True)
class SentencePieceModel:
    """A BPE model that changes only spaces of a text.

    Attributes:
        ids: ids of ``unk``, ``bos``, ``eos`` and ``pad``, if present.
    """

    path: Path
    pieces: tuple[Piece, ...]
    ids: dict[str, int]
    add_space_prefix: bool

    @property
    def prefix_switch(self) -> bytes:
        """Bytes to append to the file to set the switch to `add_space_prefix`."""
        field = bytes((_DUMMY_PREFIX << 3 | _VARINT, self.add_space_prefix))
        return bytes((_NORMALIZER << 3 | _LENGTH, len(field))) + field


def is_sentencepiece(path: Path) -> bool:
    """Return whether a file starts like a model; Llama 3's file of the same name is text."""
    try:
        with path.open("rb") as file:
            return file.read(1) == bytes([_PIECES << 3 | _LENGTH])
    except OSError:
        return False


def load_sentencepiece(path: Path) -> SentencePieceModel:
    """Read a model."""
    pieces: list[Piece] = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    for number, value in _fields(read_bytes(path), path):
        if number == _PIECES:
            pieces.append(_piece(_message(value, path), len(pieces), path))
        elif number == _TRAINER:
            trainer = dict(_fields(_message(value, path), path))
        elif number == _NORMALIZER:
            normalizer = dict(_fields(_message(value, path), path))
    if not pieces:
        raise TokenizerError(f"{path}: damaged: a model without pieces")
    _check_kind(trainer, normalizer, path)
    defaults = {"unk": (_UNK, 0), "bos": (_BOS, 1), "eos": (_EOS, 2), "pad": (_PAD, -1)}
    found = {
        name: _signed(trainer.get(field, default)) for name, (field, default) in defaults.items()
    }
    ids = {name: each for name, each in found.items() if 0 <= each < len(pieces)}
    return SentencePieceModel(path, tuple(pieces), ids, normalizer.get(_DUMMY_PREFIX, 1) != 0)


def _check_kind(
    trainer: dict[int, int | bytes], normalizer: dict[int, int | bytes], path: Path
) -> None:
    kind = trainer.get(_MODEL_TYPE, 1)
    if kind != 2:
        name = _KINDS.get(kind, str(kind)) if isinstance(kind, int) else "unknown"
        raise UnsupportedError(f"{path}: a tokenizer of kind {name} is not supported; BPE is")
    changes = {
        "normalizes text": bool(normalizer.get(_CHARSMAP)),
        "removes extra spaces": normalizer.get(_REMOVE_SPACES, 1) != 0,
        "does not write spaces as \u2581": normalizer.get(_ESCAPE_SPACES, 1) == 0,
        "appends spaces to words": trainer.get(_WHITESPACE_AS_SUFFIX, 0) != 0,
    }
    for change, is_so in changes.items():
        if is_so:
            raise UnsupportedError(f"{path}: the tokenizer {change}; GGUF has no key for it")


def _piece(message: bytes, index: int, path: Path) -> Piece:
    fields = dict(_fields(message, path))
    text, score, kind = fields.get(_TEXT), fields.get(_SCORE, b"\0\0\0\0"), fields.get(_TYPE, 1)
    if not isinstance(text, bytes) or not isinstance(score, bytes) or len(score) != 4:
        raise TokenizerError(f"{path}: damaged: piece {index} has no text or no score")
    if not isinstance(kind, int) or kind not in _TYPES:
        raise TokenizerError(f"{path}: damaged: piece {index} has the type {kind!r:.20}")
    try:
        return Piece(text.decode("utf-8"), struct.unpack("<f", score)[0], _TYPES[kind])
    except UnicodeDecodeError:
        raise TokenizerError(f"{path}: damaged: piece {index} is not UTF-8") from None


def _fields(data: bytes, path: Path) -> list[_Field]:
    """Number and value of each field: numbers as int, everything else as bytes."""
    fields: list[_Field] = []
    at = 0
    while at < len(data):
        tag, at = _varint(data, at, path)
        wire = tag & 7
        size = _SIZES.get(wire)
        if size is None:
            size, at = _varint(data, at, path)
        if wire == _VARINT:
            fields.append((tag >> 3, size))
            continue
        if wire not in (*_SIZES, _LENGTH) or size > len(data) - at:
            raise TokenizerError(f"{path}: damaged: no SentencePiece model at byte {at:,}")
        fields.append((tag >> 3, data[at : at + size]))
        at += size
    return fields


def _varint(data: bytes, at: int, path: Path) -> tuple[int, int]:
    if at < len(data) and data[at] < 0x80:
        return data[at], at + 1
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise TokenizerError(f"{path}: damaged: no SentencePiece model at byte {at:,}")


def _message(value: int | bytes, path: Path) -> bytes:
    if isinstance(value, int):
        raise TokenizerError(f"{path}: damaged: a number instead of a message")
    return value


def _signed(value: int | bytes) -> int:
    """Convert an int32, stored as 64 bits by the format."""
    if isinstance(value, bytes):
        return -1
    return value - (1 << 64) if value >= 1 << 63 else value
