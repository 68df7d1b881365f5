"""SentencePiece BPE (Llama 1 and 2, Mistral, Phi-3 ...) on the `sentencepiece` library.

Such a vocabulary merges the adjacent pair whose concatenation has the highest score, the leftmost
of equals. The ranked merges of the `tokenizers` library cannot express ties (vocabularies converted
without scores have only ties), and deriving them takes longer than the whole load may. So the
reference implementation encodes, given a model file made in memory.
"""

import re
import struct
from collections.abc import Sequence

import sentencepiece

from powerinfer._program_end import library_call
from powerinfer.errors import TokenizerError
from powerinfer.tokenizer.vocabulary import TokenType, Vocabulary, byte_value

__all__ = ["SPACE_SIGN", "SentencePieceEncoder", "safe_cut"]

SPACE_SIGN = "\u2581"
"""Written in place of a space."""

# Characters per call of the library, split where that changes nothing: its memory grows with the
# length, and its heap is faster on short text.
_STRETCH = 1 << 14

# Piece types, field numbers and wire types of sentencepiece_model.proto.
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
_BPE_MODEL = 2
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_MODEL_TYPE, _BYTE_FALLBACK = 3, 35
_ADD_DUMMY_PREFIX, _REMOVE_EXTRA_SPACES, _ESCAPE_SPACES = 3, 4, 5
_VARINT, _LENGTH = 0, 2
# Unique name of a piece that no text becomes.
_STAND_IN = b"\x01stand-in %d"


class SentencePieceEncoder:
    """Merges by score; text in no token falls back to byte tokens.

    Attributes:
        byte_ids: ids for each byte value: its byte token, else the unknown token, else none.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Hand the vocabulary to the library.

        Raises:
            TokenizerError: the library refuses the vocabulary.
        """
        unknown = [] if vocabulary.unknown_id is None else [vocabulary.unknown_id]
        byte_tokens = {
            value: token_id
            for token_id, text in enumerate(vocabulary.texts)
            if vocabulary.types[token_id] in _MAY_BE_BYTES
            and (value := byte_value(text)) is not None
        }
        self.byte_ids: tuple[Sequence[int], ...] = tuple(
            (byte_tokens[value],) if value in byte_tokens else unknown for value in range(256)
        )
        self._vocab_size = len(vocabulary)
        self._lacks_bytes = len(byte_tokens) < 256
        self._cut = safe_cut(vocabulary)
        self._processor = sentencepiece.SentencePieceProcessor()
        proto = _model_proto(vocabulary, byte_tokens)
        try:
            with library_call():
                self._processor.LoadFromSerializedProto(proto)
        except (RuntimeError, OSError, ValueError) as error:
            raise TokenizerError(f"sentencepiece refuses the vocabulary: {error}") from error

    def encode(self, text: str, at_most: int | None = None) -> list[int]:
        """Encode text without surrogates and without adding a space.

        Args:
            at_most: stop early once there are more than this many tokens.
        """
        ids: list[int] = []
        start = 0
        while start < len(text) and (at_most is None or len(ids) <= at_most):
            end = len(text)
            if end - start > _STRETCH and (cut := self._cut.search(text, start + _STRETCH)):
                end = cut.end()
            with library_call():
                found = self._processor.EncodeAsIds(text[start:end])
            # Ids past the vocabulary stand for missing bytes, in order.
            ids += [i for each in found for i in self._known(each)] if self._lacks_bytes else found
            start = end
        return ids

    def _known(self, token_id: int) -> Sequence[int]:
        if token_id < self._vocab_size:
            return (token_id,)
        return self.byte_ids[(token_id - self._vocab_size) % 256]


def safe_cut(vocabulary: Vocabulary) -> re.Pattern[str]:
    """Match a character before a space that is before a space in no token.

    A merge makes a token, so no merge crosses two characters that are adjacent in no token, and
    text can be split there.
    """
    joined = "\0".join(text for text in vocabulary.texts if SPACE_SIGN in text[1:])
    before = {*re.findall(f"(.){SPACE_SIGN}", joined, re.DOTALL), " ", SPACE_SIGN} - {"\0"}
    return re.compile(f"[^{''.join(re.escape(c) for c in sorted(before))}](?= )")


def _model_proto(vocabulary: Vocabulary, byte_tokens: dict[int, int]) -> bytes:
    """Write a model file whose first pieces have the ids of `vocabulary`.

    Tokens that no text becomes get a stand-in name. A model must have all 256 bytes and an unknown
    piece; missing ones follow the vocabulary.
    """
    winners = vocabulary.ids_by_text
    byte_ids = {token_id: value for value, token_id in byte_tokens.items()}
    out: list[bytes] = []
    for token_id, (text, token_type) in enumerate(
        zip(vocabulary.texts, vocabulary.types, strict=True)
    ):
        score = vocabulary.scores[token_id]
        if token_id in byte_ids:
            out.append(_piece(f"<0x{byte_ids[token_id]:02X}>".encode(), 0.0, _BYTE))
        elif token_type in _MERGEABLE and winners[text] == token_id and (utf8 := _encodable(text)):
            out.append(_piece(utf8, score, _NORMAL))
        else:
            out.append(_piece(_STAND_IN % token_id, 0.0, _CONTROL))
    for value in range(256):
        missing = value not in byte_tokens
        name = b"<0x%02X>" % value if missing else _STAND_IN % (len(vocabulary) + value)
        out.append(_piece(name, 0.0, _BYTE if missing else _CONTROL))
    out.append(_piece(_STAND_IN % -1, 0.0, _UNKNOWN))
    trainer = _number(_MODEL_TYPE, _BPE_MODEL) + _number(_BYTE_FALLBACK, 1)
    switches = ((_ADD_DUMMY_PREFIX, 0), (_REMOVE_EXTRA_SPACES, 0), (_ESCAPE_SPACES, 1))
    normalizer = b"".join(_number(field, value) for field, value in switches)
    return b"".join((*out, _message(_TRAINER, trainer), _message(_NORMALIZER, normalizer)))


# User-defined tokens are found in the text before encoding; merging may still make them.
_MERGEABLE = frozenset(
    (TokenType.UNDEFINED, TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED)
)
# Some converters leave byte tokens normal; their text says what they are.
_MAY_BE_BYTES = frozenset((TokenType.BYTE, TokenType.NORMAL, TokenType.UNDEFINED))


def _encodable(text: str) -> bytes | None:
    if "\0" in text:
        # The library refuses pieces with a zero; the text still falls back to bytes.
        return None
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return None


_SMALL = tuple(bytes((value,)) for value in range(0x80))


def _varint(value: int) -> bytes:
    if value < len(_SMALL):
        return _SMALL[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(value)


def _message(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | _LENGTH) + _varint(len(content)) + content


# Fields of SentencePiece: 1 the text, 2 the score (fixed 32 bits, wire type 5), 3 the type.
_TEXT_TAG = _varint(1 << 3 | _LENGTH)
_SCORE_AND_TYPE = struct.Struct("<BfBB")
_SCORE_TAG, _TYPE_TAG = 2 << 3 | 5, 3 << 3 | _VARINT


def _piece(text: bytes, score: float, token_type: int) -> bytes:
    # Inlined, because it runs for up to several hundred thousand tokens.
    rest = _SCORE_AND_TYPE.pack(_SCORE_TAG, score, _TYPE_TAG, token_type)
    return _message(_PIECES, _TEXT_TAG + _varint(len(text)) + text + rest)
