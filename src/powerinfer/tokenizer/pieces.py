"""Bytes of each token, and the byte alphabet of GPT-2's vocabularies."""

from powerinfer.tokenizer.vocabulary import BYTE_LEVEL, TokenType, Vocabulary, byte_value

__all__ = ["BYTE_CHARACTERS", "Pieces"]


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


class Pieces:
    """Bytes by token id, computed on first use to keep loading cheap."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Wrap `vocabulary`, which must not change."""
        self._vocabulary = vocabulary
        self._is_byte_level = vocabulary.model == BYTE_LEVEL
        self._known: dict[int, bytes] = {}

    def __getitem__(self, token_id: int) -> bytes:
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
