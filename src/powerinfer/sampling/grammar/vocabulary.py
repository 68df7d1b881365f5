"""Vocabulary for llguidance: the bytes of every token, in a prefix tree."""

import threading
from typing import cast
from weakref import WeakKeyDictionary, ref

import numpy as np
import numpy.typing as npt
from llguidance import LLTokenizer, TokenizerWrapper

from powerinfer.errors import PowerInferError
from powerinfer.tokenizer.tokenizer import Tokenizer

__all__ = ["GrammarVocabulary", "grammar_vocabulary"]

# Prefix of special tokens in the tree; this byte never occurs in UTF-8.
_SPECIAL = b"\xff"
# The prefix tree has room for paths of 1024 bytes.
_LONGEST_TOKEN = 1000
# Longest stretch, in characters, in which prescribed text is encoded; only its first token counts.
_STRETCH = 1024
_STRETCH_TOKENS = 64

_lock = threading.Lock()
_made: "WeakKeyDictionary[Tokenizer, GrammarVocabulary]" = WeakKeyDictionary()


def grammar_vocabulary(tokenizer: Tokenizer) -> "GrammarVocabulary":
    """Return a tokenizer's vocabulary, made on first use: a second for 152k tokens."""
    with _lock:
        found = _made.get(tokenizer)
        if found is None:
            found = _made[tokenizer] = GrammarVocabulary(tokenizer)
        return found


class GrammarVocabulary:
    """Tokens that forms are matched against.

    Attributes:
        size: number of token ids of the tokenizer.
        tree: llguidance's prefix tree, with an additional end token if the tokenizer has none.
        end_ids: ids of the tokens that end a text.
        first_space: tokens that lose a space at the beginning of a text; None if none do.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Collect the bytes of all tokens."""
        self.size = tokenizer.vocab_size
        self.end_ids = tuple(sorted(tokenizer.eog_ids))
        pieces = _pieces(tokenizer)
        self.first_space = FirstSpace(tokenizer, pieces) if tokenizer.drops_first_space else None
        end_ids = list(self.end_ids) or [self.size]
        tokens = pieces if self.end_ids else [*pieces, b""]
        wrapper = _Wrapper(tokens, end_ids[0], tokenizer)
        # It takes any object with the attributes of a `TokenizerWrapper`.
        self.tree = LLTokenizer(cast("TokenizerWrapper", wrapper), eos_token=end_ids)


class FirstSpace:
    """Tokens that lose a space at the beginning of a text, and the tokens they stand for there."""

    def __init__(self, tokenizer: Tokenizer, pieces: list[bytes]) -> None:
        """Look them up by their bytes."""
        by_piece = {piece: token_id for token_id, piece in enumerate(pieces) if piece}
        by_piece[b""] = _NOTHING_LEFT
        ids = [
            token_id
            for token_id, piece in enumerate(pieces)
            if piece.startswith(b" ") and tokenizer.decode_bytes([token_id]) != piece
        ]
        self._ids = np.array(ids, np.intp)
        self._rest = np.array([by_piece.get(pieces[each][1:], _NO_TOKEN) for each in ids], np.intp)

    def allowed(self, bits: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Turn the bits of tokens allowed inside a text into those allowed at its beginning."""
        allowed = np.unpackbits(bits, bitorder="little")
        # A single space leaves the text empty.
        is_nothing = self._rest == _NOTHING_LEFT
        allowed[self._ids] = np.where(self._rest >= 0, allowed[self._rest], is_nothing)
        return np.packbits(allowed, bitorder="little")

    def stands_for(self, token_id: int) -> int | None:
        """Return the token for the rest of the first one; None if nothing is left."""
        found = np.flatnonzero(self._ids == token_id)
        rest = int(self._rest[found[0]]) if len(found) else token_id
        return None if rest == _NOTHING_LEFT else rest


_NO_TOKEN, _NOTHING_LEFT = -1, -2


class _Wrapper:
    """Tokenizer with the interface that llguidance expects.

    The tree keeps it, so it must keep neither the tree nor the tokenizer alive.
    """

    is_tokenizer_wrapper = True
    bos_token_id = None
    special_token_ids = ()

    def __init__(self, tokens: list[bytes], eos_token_id: int, tokenizer: Tokenizer) -> None:
        self.tokens = tokens
        self.eos_token_id = eos_token_id
        self._tokenizer = ref(tokenizer)
        self._id_of_byte = {each[0]: number for number, each in enumerate(tokens) if len(each) == 1}

    def __call__(self, text: str) -> list[int]:
        """Encode the first stretch of a text that continues another, byte for byte.

        Like the tokenizer, because the model has learned its encoding.
        """
        begin = text[:_STRETCH]
        tokenizer = self._tokenizer()
        try:
            ids = [] if tokenizer is None else tokenizer.encode_inside(begin, _STRETCH_TOKENS)
        except PowerInferError:
            ids = []
        wanted = begin.encode("utf-8")
        if ids and wanted.startswith(b"".join(self.tokens[each] for each in ids)):
            return ids
        return [self._id_of_byte[byte] for byte in wanted if byte in self._id_of_byte]


def _pieces(tokenizer: Tokenizer) -> list[bytes]:
    """Return bytes by token id; empty for tokens that no form can choose."""
    pieces: list[bytes] = []
    known: dict[bytes, int] = {}
    controls = tokenizer.eog_ids | tokenizer.mark_ids
    for token_id in range(tokenizer.vocab_size):
        piece = tokenizer.piece_bytes(token_id)
        if token_id in controls or tokenizer.is_special(token_id):
            piece = _SPECIAL + piece
        elif _SPECIAL in piece or len(piece) > _LONGEST_TOKEN:
            piece = b""
        if piece in known and piece:
            # If tokens have the same bytes, keep the one that encoding uses.
            if _encoded(tokenizer, piece) != [token_id]:
                piece = b""
            else:
                pieces[known[piece]] = b""
        known[piece] = token_id
        pieces.append(piece)
    return pieces


def _encoded(tokenizer: Tokenizer, piece: bytes) -> list[int]:
    try:
        return tokenizer.encode_inside(piece.decode("utf-8"))
    except UnicodeDecodeError:
        return []
