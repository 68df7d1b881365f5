"""Prefetch settings of the kernels (kernels/read_way.h), which affect only the speed."""

import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

__all__ = [
    "LEAST_CHUNK",
    "MOST_AHEAD",
    "READ_KINDS",
    "PlainReadSettings",
    "PrefetchSettings",
    "choose",
    "is_steady",
]

W = TypeVar("W", bound=Hashable)

READ_KINDS = ("floats", "bytes", "packed")
"""Groups of kernels by their work per byte: for F16 and other floats, for Q8_0, for the rest."""

# Limits of stored values.
MOST_AHEAD = 64 << 20
LEAST_CHUNK = 4 << 10

# Settings replace the default if they are faster by this factor, and in this share of the rounds.
# Smaller differences are noise of a machine that does other work.
_MARGIN = 1.03
_ROUNDS_WON = 0.75
# With a larger spread of the same measurement a machine is too busy to compare.
_MOST_SPREAD = 1.25


@dataclass(frozen=True, slots=True)
class PrefetchSettings:
    """Prefetching of the kernels of one kind, by default as in C++.

    Attributes:
        ahead: prefetch distance of dot products in bytes; 0: no prefetch.
        chunk_bytes: most bytes handed to a thread at a time.
        gather_ahead: bytes of scattered rows prefetched while rows are multiplied.
        add_ahead: the same while rows are added.
    """

    ahead: int = 2048
    chunk_bytes: int = 2 << 20
    gather_ahead: int = 12 << 10
    add_ahead: int = 12 << 10

    def __str__(self) -> str:
        """Describe it for people."""
        return (
            f"prefetch {self.ahead} bytes ahead, chunks of {_size(self.chunk_bytes)}, "
            f"scattered rows {_size(self.gather_ahead)} ahead, added ones {_size(self.add_ahead)}"
        )


@dataclass(frozen=True, slots=True)
class PlainReadSettings:
    """Prefetching of a plain read, which computes nothing.

    Attributes:
        ahead: prefetch distance in bytes; 0: no prefetch.
        chunk_bytes: bytes handed to a thread at a time.
        streams: positions of a chunk that a thread reads in turn.
    """

    ahead: int = 0
    chunk_bytes: int = 2 << 20
    streams: int = 1

    def __str__(self) -> str:
        """Describe it for people."""
        prefetch = f"prefetch {self.ahead} bytes ahead" if self.ahead else "no prefetch"
        streams = f", {self.streams} streams a thread" if self.streams > 1 else ""
        return f"{prefetch}, chunks of {_size(self.chunk_bytes)}{streams}"


def choose(seconds: Mapping[W, Sequence[float]], default: W) -> W:
    """Choose the fastest settings, or the default unless it is clearly slower.

    `seconds` has one figure per round and candidate; only those of the same round are compared.
    """
    gains = {
        each: [usual / own for usual, own in zip(seconds[default], times, strict=True)]
        for each, times in seconds.items()
        if each != default
    }
    better = {
        each: statistics.median(ratios)
        for each, ratios in gains.items()
        if statistics.median(ratios) >= _MARGIN
        and sum(ratio > 1 for ratio in ratios) >= _ROUNDS_WON * len(ratios)
    }
    return max(better, key=lambda each: better[each]) if better else default


def is_steady(seconds: Sequence[float]) -> bool:
    """Test whether repeated measurements agree; one outlier is ignored."""
    slowest = sorted(seconds)[-2] if len(seconds) > 2 else max(seconds)
    return slowest <= _MOST_SPREAD * min(seconds)


def _size(num_bytes: int) -> str:
    if num_bytes >= 1 << 20:
        return f"{num_bytes / (1 << 20):g} MiB"
    return f"{num_bytes / (1 << 10):g} KiB" if num_bytes >= 1 << 10 else f"{num_bytes} bytes"
