"""Training text: documents from compressed files, and the order in which a run reads them.

A corpus folder holds ``text/NAME.train.txt.zst`` files: UTF-8, documents separated by a line
``<|endoftext|>``. Everything random here depends only on the seed and on small counters that a
checkpoint stores, so an interrupted run continues with exactly the rows it would have read.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import zstandard
from numpy.typing import NDArray

from powerinfer.errors import PowerInferError

TokenArray = NDArray[np.uint16]
SEPARATOR = "\n<|endoftext|>\n"
BOS_ID = 0
"""Id of ``<|endoftext|>`` in every vocabulary that `stories.vocabulary` builds."""

__all__ = [
    "BOS_ID",
    "Mixture",
    "PackedStream",
    "Source",
    "TokenArray",
    "join_documents",
    "read_documents",
    "text_path",
]


@dataclass(frozen=True)
class Source:
    """One training file.

    Attributes:
        name: The file is ``text/NAME.train.txt.zst``.
        max_bytes: Read only the documents within this many bytes from the start, or all if None.
        held_out: Number of last documents kept for watching progress, never trained on.
    """

    name: str
    max_bytes: int | None = None
    held_out: int = 0


def text_path(data: Path, name: str, part: str = "train") -> Path:
    """Path of the ``train`` or ``valid`` part of a source in a corpus folder."""
    return data / "text" / f"{name}.{part}.txt.zst"


def read_documents(path: Path, max_bytes: int | None = None) -> list[str]:
    """Read the documents of a ``.txt.zst`` file, without separators and surrounding blank lines.

    Raises:
        PowerInferError: The file is missing.
    """
    if not path.exists():
        raise PowerInferError(
            f"{path} does not exist; --data must name the folder whose text/ holds the corpora"
        )
    with path.open("rb") as file:
        raw = zstandard.ZstdDecompressor().stream_reader(file).read()
    text = raw[: len(raw) if max_bytes is None else max_bytes].decode("utf-8", errors="ignore")
    pieces = text.split(SEPARATOR)
    if max_bytes is not None and len(raw) > max_bytes:
        pieces.pop()  # cut in the middle
    return [document for piece in pieces if (document := piece.strip("\n"))]


class PackedStream:
    """The documents of one source as an endless row of token ids, reshuffled every epoch."""

    def __init__(self, name: str, token_ids: TokenArray, seed: int) -> None:
        """Take u16 token ids in which every document starts with BOS."""
        self._starts = np.flatnonzero(token_ids == BOS_ID)
        if len(self._starts) == 0:
            raise PowerInferError(f"the corpus {name} holds no document; check the --data folder")
        self._pieces = np.split(token_ids, self._starts[1:])
        self._seed = [seed, zlib.crc32(name.encode())]
        self.epoch = 0
        self.offset = 0
        self._shuffle()

    def _shuffle(self) -> None:
        order = np.random.default_rng([*self._seed, self.epoch]).permutation(len(self._pieces))
        self._row = np.concatenate([self._pieces[i] for i in order])

    def take(self, count: int) -> TokenArray:
        """Read ``count`` token ids and one more, which is also the first of the next call."""
        parts: list[TokenArray] = []
        missing = count + 1
        while missing > 0:
            part = self._row[self.offset : self.offset + missing]
            parts.append(part)
            missing -= len(part)
            self.offset += len(part)
            if missing > 0:
                self.epoch, self.offset = self.epoch + 1, 0
                self._shuffle()
        self.offset -= 1
        return np.concatenate(parts)

    def restore(self, epoch: int, offset: int) -> None:
        """Continue where a stream with this ``epoch`` and ``offset`` stood."""
        self.epoch, self.offset = epoch, offset
        self._shuffle()


class Mixture:
    """Rows of training tokens drawn from several streams with given shares."""

    def __init__(self, streams: dict[str, PackedStream], seed: int) -> None:
        """Take the streams by name."""
        self._streams = streams
        self._seed = seed

    def rows(self, step: int, count: int, seq_len: int, shares: dict[str, float]) -> TokenArray:
        """Draw the rows u16[count, seq_len + 1] of one step; row i comes from a source by share."""
        names = sorted(shares)
        weights = np.array([shares[name] for name in names])
        generator = np.random.default_rng([self._seed, step])
        chosen = generator.choice(len(names), size=count, p=weights / weights.sum())
        return np.stack([self._streams[names[i]].take(seq_len) for i in chosen])

    def state(self) -> dict[str, tuple[int, int]]:
        """Position of every stream, for a checkpoint."""
        return {name: (stream.epoch, stream.offset) for name, stream in self._streams.items()}

    def restore(self, state: dict[str, tuple[int, int]]) -> None:
        """Continue from a position that :meth:`state` returned."""
        for name, (epoch, offset) in state.items():
            self._streams[name].restore(epoch, offset)


def join_documents(encoded: Sequence[Sequence[int]]) -> TokenArray:
    """Concatenate documents, each after a BOS token, u16[total]."""
    parts = [np.array([BOS_ID, *document], dtype=np.uint16) for document in encoded]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.uint16)
