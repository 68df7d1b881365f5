"""Durations of steps on this machine, estimated from past steps and robust to disturbed ones."""

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["SMALLEST_CHUNK", "RowCosts", "StepCosts"]

SMALLEST_CHUNK = 16
"""Prompt tokens that a step computes along with decoding sequences before anything is measured."""

_Floats = NDArray[np.float64]

# Seconds are a sum of a fixed part, a part per row and a part per key read, in these proportions
# until there are measurements, and wherever measurements leave a choice.
_DECODE_SHAPE = np.array([1.0, 0.1, 1 / 16384])
_PROMPT_SHAPE = np.array([16.0, 1.0, 1 / 8192])

_SAMPLES_PER_SIZE = 9
_SAMPLES_NEAR = 5
_GROWTH = 2
_CAUTION = 1.15
_ROUNDS = 6
_PRIOR_WEIGHT = 0.1
_SMALLEST_RESIDUAL = 0.02


class StepCosts:
    """Estimates from the last measurements of each size; sizes are powers of two.

    A slow step among good ones changes nothing: all estimates are medians. The cost of attention
    grows with the positions, so each measurement counts the keys that its rows read.
    """

    def __init__(self) -> None:
        self._decode = _Estimate(_DECODE_SHAPE)
        self._prompt = _Estimate(_PROMPT_SHAPE)

    def record_decode(self, positions: Sequence[int], seconds: float) -> None:
        """Record a decode step that computed one row at each of `positions`."""
        self._decode.record(len(positions), sum(positions) + len(positions), seconds)

    def record_prompt(self, chunks: Sequence[tuple[int, int]], seconds: float) -> None:
        """Record a step over all of `chunks`: first position and number of tokens of each."""
        num_tokens = sum(count for _, count in chunks)
        keys = sum(count * start + count * (count + 1) // 2 for start, count in chunks)
        self._prompt.record(num_tokens, keys, seconds)

    def decode_seconds(self, positions: Sequence[int]) -> float | None:
        """Estimate a step that computes a row at each of `positions`; None if nothing is known."""
        keys = sum(positions) + len(positions)
        seconds = self._decode.seconds(np.array([len(positions)]), np.array([keys]))
        return None if seconds is None else float(seconds[0])

    def prompt_seconds(self, chunks: Sequence[tuple[int, int]]) -> float | None:
        """Estimate a step that computes `chunks`; None if nothing is known."""
        positions = _positions(chunks)
        if not positions.size:
            return 0.0
        seconds = self._prompt.seconds(*_prefixes(positions))
        return None if seconds is None else float(seconds[-1])

    def num_tokens_within(self, seconds: float, chunks: Sequence[tuple[int, int]]) -> int:
        """Return the largest number of tokens of `chunks`, in order, that take at most `seconds`.

        At most twice what was measured, and at least `SMALLEST_CHUNK` or all of `chunks`: a prompt
        must go on even if its smallest step takes longer.
        """
        cap = max(_GROWTH * self._prompt.largest, SMALLEST_CHUNK)
        positions = _positions(chunks)[:cap]
        if positions.size <= SMALLEST_CHUNK:
            return int(positions.size)
        predicted = self._prompt.seconds(*_prefixes(positions))
        if predicted is None:
            return SMALLEST_CHUNK
        fitting = np.flatnonzero(predicted <= seconds)
        return max(int(fitting[-1]) + 1 if fitting.size else 0, SMALLEST_CHUNK)


class RowCosts:
    """Durations of decode steps by number of rows: medians of the last few, and guesses.

    A number of rows differs from the next one in steps with drafts, which sizes hide.
    """

    _NUM_SAMPLES = 5
    # Fewer measurements may all have been disturbed; the first also records the step.
    _NUM_TRUSTED = 3
    # Of what a step of one row takes, for each further row, before anything is known.
    _FURTHER_ROW = 0.1
    # Steps after which a size that was not computed meanwhile is forgotten.
    _LIFE = 128

    def __init__(self) -> None:
        self._samples: dict[int, deque[float]] = {}
        # By number of rows: the lower median, and the number of the last step.
        self._known: dict[int, tuple[float, int]] = {}
        self._num_steps = 0

    def record(self, num_rows: int, seconds: float) -> None:
        """Record a step."""
        samples = self._samples.setdefault(num_rows, deque(maxlen=self._NUM_SAMPLES))
        samples.append(seconds)
        self._num_steps += 1
        self._known[num_rows] = sorted(samples)[(len(samples) - 1) // 2], self._num_steps
        if self._num_steps % self._LIFE == 0:
            oldest = self._num_steps - self._LIFE
            for size in [size for size, (_, last) in self._known.items() if last <= oldest]:
                del self._known[size], self._samples[size]

    def seconds(self, num_rows: int) -> float | None:
        """Estimate a step; None if nothing is known."""
        known = self._known.get(num_rows)
        if known is None:
            return self._guess(num_rows)
        guess = None
        if len(self._samples[num_rows]) < self._NUM_TRUSTED:
            guess = self._guess(num_rows)
        return known[0] if guess is None else min(known[0], guess)

    def _guess(self, num_rows: int) -> float | None:
        """Estimate a step from those of other sizes."""
        known = sorted((size, each[0]) for size, each in self._known.items() if size != num_rows)
        num_below = sum(size < num_rows for size, _ in known)
        if not num_below or len(known) == 1:
            further = self._FURTHER_ROW
            for size, seconds in known[:1]:
                return seconds * (1 + further * (num_rows - 1)) / (1 + further * (size - 1))
            return None
        is_between = num_below < len(known)
        low, low_seconds = known[num_below - 1 if is_between else 0]
        high, high_seconds = known[num_below if is_between else -1]
        slope = max(0.0, high_seconds - low_seconds) / (high - low)
        return low_seconds + slope * (num_rows - low)


def _positions(chunks: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    return np.concatenate(
        [np.arange(start, start + count, dtype=np.int64) for start, count in chunks]
        or [np.zeros(0, np.int64)]
    )


def _prefixes(positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return rows, and keys that they read, for the first token, the first two and so on."""
    return np.arange(1, positions.size + 1), np.cumsum(positions + 1)


class _Estimate:
    """Estimator of one kind of step, by its rows and the keys that they read."""

    def __init__(self, shape: _Floats) -> None:
        self._shape = shape
        self._samples: dict[int, deque[tuple[int, int, float]]] = {}
        self._learned: tuple[_Floats, dict[int, float]] | None = None
        self.largest = 0

    def record(self, rows: int, keys: int, seconds: float) -> None:
        if rows < 1 or not 0 < seconds < float("inf"):
            return
        # Ctrl-C between any two lines leaves no size without samples.
        sample = (rows, keys, seconds)
        before = self._samples.get(rows.bit_length(), ())
        self._samples[rows.bit_length()] = deque([*before, sample], maxlen=_SAMPLES_PER_SIZE)
        self.largest = max(self.largest, rows)
        self._learned = None

    def seconds(self, rows: NDArray[np.int64], keys: NDArray[np.int64]) -> _Floats | None:
        """Estimate steps of `rows` that read `keys`, each [n]; None if none was measured."""
        if not self._samples:
            return None
        if self._learned is None:
            self._learned = self._learn()
        parts, known = self._learned
        sizes = np.frexp(rows)[1]
        corrections = np.array([_correction(known, size) for size in range(int(sizes.max()) + 1)])
        predicted: _Floats = _features(rows, keys) @ parts * corrections[sizes]
        return predicted

    def _learn(self) -> tuple[_Floats, dict[int, float]]:
        """Return the parts, and by size the factor that corrects their sum."""
        samples = np.array([sample for of_size in self._samples.values() for sample in of_size])
        parts = _fit(_features(samples[:, 0], samples[:, 1]), samples[:, 2], self._shape)
        corrections = {}
        for size, of_size in self._samples.items():
            last = np.array(list(of_size)[-_SAMPLES_NEAR:])
            predicted = _features(last[:, 0], last[:, 1]) @ parts
            # The lower median: among few samples one may have been disturbed.
            corrections[size] = float(np.sort(last[:, 2] / predicted)[(len(last) - 1) // 2])
        return parts, {size: self._trusted(size, corrections) for size in corrections}

    def _trusted(self, size: int, corrections: dict[int, float]) -> float:
        """Correction of a size; a single sample counts only if other sizes do not say much less."""
        others = {each: corrections[each] for each in corrections if each != size}
        if len(self._samples[size]) > 1 or not others:
            return corrections[size]
        return min(corrections[size], _correction(others, size))


def _correction(known: dict[int, float], size: int) -> float:
    """Recent duration of a size over the sum of its parts, as durations are not linear."""
    nearest = min(known, key=lambda each: (abs(each - size), -each))
    return known[nearest] * (1.0 if nearest == size else _CAUTION)


def _features(rows: NDArray[np.number], keys: NDArray[np.number]) -> _Floats:
    """Factors of the parts: [n, 3]."""
    return np.stack([np.ones(len(rows)), rows.astype(np.float64), keys.astype(np.float64)], axis=1)


def _fit(features: _Floats, seconds: _Floats, shape: _Floats) -> _Floats:
    """Fit non-negative parts whose sums have the least relative deviations from `seconds`.

    Least absolute deviations, by iteratively reweighted least squares, so that outliers do not
    count. The factors of `shape` are drawn towards 1, which settles what the samples leave open.
    """
    expected = features @ shape
    scale = np.median(seconds / expected)
    rows = features * shape / expected[:, None]
    targets = seconds / (scale * expected)
    factors = np.ones(len(shape))
    prior = _PRIOR_WEIGHT * np.eye(len(shape))
    for _ in range(_ROUNDS):
        residuals = np.abs(targets - rows @ factors) / targets
        weighted = rows / (np.maximum(residuals, _SMALLEST_RESIDUAL) * targets**2)[:, None]
        solved = np.linalg.solve(
            weighted.T @ rows + prior, weighted.T @ targets + prior.sum(axis=0)
        )
        factors = np.maximum(solved, 0.0)
    parts: _Floats = np.maximum(factors, 1e-6) * shape * scale
    return parts
