"""Bytes of each token, and decoding of ids into text, all at once or one by one."""

import codecs
from collections.abc import Iterable, Sequence

from powerinfer.errors import TokenizerError
from powerinfer.tokenizer.vocabulary import BYTE_LEVEL, TokenType, Vocabulary, byte_value

__all__ = ["BYTE_CHARACTERS", "Detokenizer", "IncrementalDecoder"]


def _byte_characters() -> tuple[str, ...]:
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in printable else next(others)) for byte in range(256))


# Character for each byte: the same if it is printable Latin-1, else one from U+0100 on.
BYTE_CHARACTERS = _byte_characters()
_BYTE_OF = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}
# SentencePiece's visible space.
_SPACE_SIGN = "\u2581"
# Tokens of these types stand for themselves.
_LITERAL = (TokenType.USER_DEFINED, TokenType.CONTROL, TokenType.UNKNOWN)


class Detokenizer:
    """Bytes of tokens, computed on first use to keep loading cheap, and of token sequences."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Wrap `vocabulary`, which must not change."""
        self._vocabulary = vocabulary
        self._is_byte_level = vocabulary.model == BYTE_LEVEL
        self._known: dict[int, bytes] = {}

    def piece(self, token_id: int) -> bytes:
        """Return the bytes of a token; the stored text of special and user-defined ones."""
        piece = self._known.get(token_id)
        if piece is None:
            piece = self._known[token_id] = self._work_out(token_id)
        return piece

    def longest_text(self) -> int:
        """Return an upper bound on the bytes of text that one token can encode.

        A SentencePiece token with a visible space encodes a space or that sign itself.
        """
        vocabulary = self._vocabulary
        if not self._is_byte_level:
            return max(len(_utf8(text)) for text in vocabulary.texts)
        # A character of a byte-level text is a byte, but literal tokens stand for themselves.
        return max(
            len(_utf8(text)) if token_type in _LITERAL else len(text)
            for text, token_type in zip(vocabulary.texts, vocabulary.types, strict=True)
        )

    def _work_out(self, token_id: int) -> bytes:
        text = self._vocabulary.texts[token_id]
        token_type = self._vocabulary.types[token_id]
        if token_type in _LITERAL:
            return _utf8(text)
        if self._is_byte_level:
            return _byte_level(text)
        if token_type is TokenType.BYTE:
            value = byte_value(text)
            return _utf8(text) if value is None else bytes((value,))
        return _utf8(text.replace(_SPACE_SIGN, " "))

    def step(self, token_id: int, *, at_start: bool, skip_special: bool) -> tuple[bytes, bool]:
        """Return the bytes of a token, and whether the next one is still at the start of the text.

        Raises:
            TokenizerError: the id is outside the vocabulary.
        """
        if not 0 <= token_id < len(self._vocabulary):
            raise TokenizerError(
                f"token id {token_id} is outside the vocabulary, 0 to {len(self._vocabulary) - 1}"
            )
        if self._vocabulary.is_special(token_id):
            return (b"" if skip_special else self.piece(token_id)), at_start
        piece = self.piece(token_id)
        # Encoding adds a space before the text, but not before a user-defined token.
        is_user_defined = self._vocabulary.types[token_id] is TokenType.USER_DEFINED
        if at_start and self._vocabulary.add_space_prefix and not is_user_defined:
            piece = piece.removeprefix(b" ")
        return piece, False

    def decode_bytes(self, token_ids: Iterable[int], *, skip_special: bool) -> bytes:
        """Return the bytes of a whole sequence, without the space that encoding adds first."""
        out: list[bytes] = []
        at_start = True
        for token_id in token_ids:
            piece, at_start = self.step(int(token_id), at_start=at_start, skip_special=skip_special)
            out.append(piece)
        return b"".join(out)


class IncrementalDecoder:
    """Incremental decoding of tokens into whole characters.

    The results of `push` and `finish`, concatenated, are the text that decoding all ids at once
    would add to that of the prompt. Bytes that are not part of a character become U+FFFD.
    """

    def __init__(
        self, detokenizer: Detokenizer, prompt_ids: Sequence[int], *, skip_special: bool
    ) -> None:
        """Start after `prompt_ids`, whose text is not returned."""
        self._detokenizer = detokenizer
        self._skip_special = skip_special
        self._at_start = True
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        for token_id in prompt_ids:
            self.push(token_id)

    def push(self, token_id: int) -> str:
        """Add a token and return the characters that are now complete, possibly none.

        Raises:
            TokenizerError: the id is outside the vocabulary; nothing is added.
        """
        piece, self._at_start = self._detokenizer.step(
            int(token_id), at_start=self._at_start, skip_special=self._skip_special
        )
        return self._utf8.decode(piece)

    @property
    def state(self) -> tuple[bool, tuple[bytes, int]]:
        """State after the tokens so far, which can be restored later."""
        return self._at_start, self._utf8.getstate()

    @state.setter
    def state(self, kept: tuple[bool, tuple[bytes, int]]) -> None:
        self._at_start, undecoded = kept
        self._utf8.setstate(undecoded)

    def finish(self) -> str:
        """Return U+FFFD for an unfinished character, else nothing, and reset."""
        rest = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return rest


def _byte_level(text: str) -> bytes:
    try:
        return bytes([_BYTE_OF[character] for character in text])
    except KeyError:
        # A text outside the alphabet, as of tokens added by hand, stands for itself.
        return _utf8(text)


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        # Restores broken UTF-8 of a file that was read as surrogates.
        return text.encode("utf-8", "surrogatepass")
