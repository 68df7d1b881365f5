"""Windows of token ids from text files of any size, resumable at every window."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from powerinfer.errors import PowerInferError
from powerinfer.tokenizer import Tokenizer
from powerinfer.train.text_files import SEPARATOR, Piece, read_pieces, text_identity, text_size
from powerinfer.values import IntArray

__all__ = ["TokenWindows", "text_identity"]

# Without a token that begins texts, this tells the model that another document begins.
_EMPTY_LINE = "\n\n"
_LINE_ENDS = "\r\n"
_SEPARATOR_LINE = re.compile(rf"^{re.escape(SEPARATOR)}(?:\r?\n|\Z)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Position:
    """The place where the next window begins.

    Attributes:
        piece: byte of the text where a piece begins, as `read_pieces` cuts it.
        starts_document: a document begins with the piece.
        tokens: tokens of the piece that earlier windows hold.
    """

    windows: int = 0
    file: int = 0
    done_bytes: int = 0
    piece: int = 0
    starts_document: bool = True
    tokens: int = 0


class TokenWindows:
    """Windows of token ids from text files, in constant memory.

    A line ``<|endoftext|>`` separates documents and is removed, as are empty lines around it. Each
    file begins a document, too. A document begins with `bos_id` or, without one, is separated from
    the one before by an empty line. Windows do not overlap and leave nothing out: what one has no
    room for follows in the next, after a `bos_id`. Only a rest too short for a window at the end of
    all texts is dropped.

    Iterating resumes where the last iteration stopped.

    Attributes:
        num_bytes: bytes of all files as stored.
        done_bytes: bytes of these that the windows so far took.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        encode: Callable[[str], Sequence[int]],
        window: int,
        bos_id: int | None,
    ) -> None:
        """Take the texts, `.zst` or plain UTF-8; faults inside them show when they are read.

        Args:
            encode: turns text into token ids, without adding `bos_id`.
            window: tokens of each window, at least 2.
            bos_id: token that begins texts; None for none.
        """
        if window < 2:
            raise ValueError(f"a window has at least 2 tokens; got {window}")
        self._paths = list(paths)
        self._encode = encode
        self._window = window
        self._bos_id = bos_id
        self._at = _Position()
        self.num_bytes = text_size(self._paths)
        self.done_bytes = 0

    @classmethod
    def of_model(cls, paths: Sequence[Path], tokenizer: Tokenizer, window: int) -> "TokenWindows":
        """Take the texts as `__init__` does, for a model with this tokenizer."""
        bos_id = tokenizer.bos_id if tokenizer.add_bos else None
        return cls(paths, lambda text: tokenizer.encode(text, add_bos=False), window, bos_id)

    @property
    def position(self) -> dict[str, object]:
        """The place where the next window begins; `json` can write it."""
        return asdict(self._at)

    def restore(self, position: dict[str, object]) -> None:
        """Resume at the `position` of other windows of the same texts, bit for bit."""
        wanted = {name: type(value) for name, value in asdict(_Position()).items()}
        is_position = {name: type(value) for name, value in position.items()} == wanted
        numbers = [value for value in position.values() if isinstance(value, int)]
        if not is_position or min(numbers) < 0:
            raise PowerInferError(f"{position!r:.200} is no position in texts")
        self._at = _Position(**position)  # type: ignore[arg-type]  # compared above
        self.done_bytes = self._at.done_bytes

    def __iter__(self) -> Iterator[IntArray]:
        """i32[window] each.

        Raises:
            PowerInferError: a file cannot be read or is no text, or all have no whole window.
        """
        rest, skipped = np.empty(0, np.int32), self._at.tokens
        for at, tokens, done_bytes in self._pieces():
            rest = np.concatenate([rest, tokens[skipped:]])
            skipped = 0
            while (taken := self._take(rest)) is not None:
                window, rest = taken
                used = len(tokens) - len(rest)
                self._at = replace(at, windows=self._at.windows + 1, tokens=used)
                self.done_bytes = at.done_bytes + (done_bytes - at.done_bytes) * used // len(tokens)
                yield window
        if self._at.windows == 0:
            names = ", ".join(map(str, self._paths))
            raise PowerInferError(
                f"{names}: too short: {len(rest)} tokens of text; expected at least {self._window}"
            )

    def _take(self, tokens: IntArray) -> tuple[IntArray, IntArray] | None:
        """The next window and the tokens after it; None if they are too few."""
        has_bos = self._bos_id is None or (len(tokens) > 0 and tokens[0] == self._bos_id)
        count = self._window - (not has_bos)
        if len(tokens) < count:
            return None
        window = tokens[:count]
        if not has_bos:
            window = np.concatenate([np.array([self._bos_id], np.int32), window])
        return window.copy(), tokens[count:]

    def _pieces(self) -> Iterator[tuple[_Position, IntArray, int]]:
        """Position and tokens of each piece that has some, and the bytes done after it."""
        at = self._at
        for number in range(at.file, len(self._paths)):
            before = text_size(self._paths[:number])
            if number != at.file:
                at = _Position(file=number, done_bytes=before)
            for piece in read_pieces(self._paths[number], at.piece):
                tokens, ends_document = self._encode_piece(at, piece)
                done = before + piece.done_bytes
                if len(tokens):
                    yield at, tokens, done
                at = _Position(0, number, done, piece.end, starts_document=ends_document)

    def _encode_piece(self, at: _Position, piece: Piece) -> tuple[IntArray, bool]:
        """The tokens of a piece; True if a document ends with it."""
        tokens: list[int] = []
        is_first, is_start, begin = at.file == at.piece == 0, at.starts_document, 0
        for end, after in _separators(piece, starts_line=at.starts_document):
            text = piece.text[begin:end].rstrip(_LINE_ENDS)
            tokens += self._encode_part(text, is_start=is_start, is_first=is_first and not tokens)
            is_start, begin = True, after
        text = piece.text[begin:]
        if piece.is_last:
            text = text.rstrip(_LINE_ENDS)
        tokens += self._encode_part(text, is_start=is_start, is_first=is_first and not tokens)
        return np.array(tokens, np.int32), is_start and begin == len(piece.text)

    def _encode_part(self, text: str, *, is_start: bool, is_first: bool) -> Sequence[int]:
        """Tokens of a document, or of a part of one that begins there if `is_start`.

        `is_first` says that no text comes before it.
        """
        if not is_start:
            return self._encode(text) if text else []
        text = text.lstrip(_LINE_ENDS)
        if not text:
            return []
        if self._bos_id is not None:
            return [self._bos_id, *self._encode(text)]
        return self._encode(text if is_first else _EMPTY_LINE + text)


def _separators(piece: Piece, *, starts_line: bool) -> Iterator[tuple[int, int]]:
    """Begin and end of the lines that separate documents."""
    for found in _SEPARATOR_LINE.finditer(piece.text):
        is_whole = piece.is_last or found[0].endswith("\n")
        if is_whole and (found.start() or starts_line):
            yield found.span()
