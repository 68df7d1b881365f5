"""Measurement of the fastest prefetch settings on this machine, for each kind of kernels."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from powerinfer.ops.cpu.machine import read_kind
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.cpu.prefetch_settings import PrefetchSettings, choose, is_steady
from powerinfer.ops.cpu.speed import COLUMNS, filled_linear, seconds_of, sparse_block
from powerinfer.ops.protocol import ActiveIds

__all__ = ["MEASURING_BYTES", "has_a_core", "measure_prefetch_settings"]

# Per matrix; two of them exceed the caches of most processors.
_MATRIX_BYTES = 192 << 20
MEASURING_BYTES = 4 * _MATRIX_BYTES
"""Most memory that measuring takes."""

_ACTIVE_SHARE = 0.15
_ROUNDS = 5
_TRIAL_ROUNDS = 4

_SPIN_S = 0.03
_LEAST_SHARE_OF_CORE = 0.9

_DISTANCES = (0, 512, 1024, 2048, 4096, 8192)
_CHUNKS = (512 << 10, 1 << 20, 2 << 20, 4 << 20)
_SCATTERED = (4 << 10, 8 << 10, 12 << 10, 16 << 10, 24 << 10)


def measure_prefetch_settings(
    threads: int,
    kernels: str,
    format_name: str,
    *,
    in_place: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> PrefetchSettings | None:
    """Find the fastest settings for a format with temporary matrices.

    Takes a second or two and `MEASURING_BYTES` of memory. With `in_place` the matrices lie in small
    pages, like a mapped file. Calls `progress` with (steps done, steps in all). Returns None if the
    machine is too busy to tell.
    """
    if not has_a_core():
        return None
    trials = _Trials(NativeOps(threads, kernels, in_place=in_place), format_name, in_place=in_place)
    say = progress or (lambda done, total: None)
    if not trials.is_idle():
        return None
    steps = (
        ("ahead", _DISTANCES, trials.stream_s),
        ("chunk_bytes", _CHUNKS, trials.stream_s),
        ("gather_ahead", _SCATTERED, trials.gather_s),
        ("add_ahead", _SCATTERED, trials.gather_s),
    )
    settings = PrefetchSettings()
    for number, (field, values, measure) in enumerate(steps):
        say(number, len(steps))
        candidates = [replace(settings, **{field: value}) for value in values]
        seconds = trials.compare(candidates, measure)
        if not is_steady(seconds[settings]):
            return None
        settings = choose(seconds, settings)
    say(len(steps), len(steps))
    return settings


def has_a_core() -> bool:
    """Test whether this thread gets a whole core; far cheaper than a measurement of settings."""
    started, computed = time.perf_counter(), time.thread_time()
    while time.perf_counter() - started < _SPIN_S:
        pass
    return time.thread_time() - computed >= _LEAST_SHARE_OF_CORE * _SPIN_S


class _Trials:
    """Measures settings on its own team."""

    def __init__(self, ops: NativeOps, format_name: str, *, in_place: bool) -> None:
        self._ops = ops
        self._kind = read_kind(format_name)
        self._x = np.random.default_rng(0).standard_normal((1, COLUMNS)).astype(np.float32)
        self._parts = [
            filled_linear(ops, format_name, _MATRIX_BYTES, in_place=in_place) for _ in range(2)
        ]
        self._ffn = sparse_block(ops, *self._parts)
        self._num_neurons, _ = ops.matrix_shape(self._ffn.up.matrix)
        self._random = np.random.default_rng(1)
        for _ in range(2):  # touches the pages
            self.stream_s(PrefetchSettings())

    def is_idle(self) -> bool:
        """Test whether repeated runs with the default settings take about the same time."""
        return is_steady([self.stream_s(PrefetchSettings()) for _ in range(_TRIAL_ROUNDS)])

    def compare(
        self, candidates: Sequence[PrefetchSettings], measure: Callable[[PrefetchSettings], float]
    ) -> dict[PrefetchSettings, list[float]]:
        """Measure the seconds of each candidate in rounds of random order."""
        seconds: dict[PrefetchSettings, list[float]] = {each: [] for each in candidates}
        for _ in range(_ROUNDS):
            for place in self._random.permutation(len(candidates)):
                seconds[candidates[place]].append(measure(candidates[place]))
        return seconds

    def stream_s(self, settings: PrefetchSettings) -> float:
        """Measure a product with the matrix that was not used last, so that it is in no cache."""
        self._ops.set_prefetch_settings(self._kind, settings)
        self._parts.reverse()
        return seconds_of(lambda: self._ops.linear(self._x, self._parts[:1]))

    def gather_s(self, settings: PrefetchSettings) -> float:
        """Measure multiplying and adding the rows of randomly chosen neurons."""
        self._ops.set_prefetch_settings(self._kind, settings)
        is_active = np.zeros((1, self._num_neurons), np.bool_)
        # The same number each time, so that times are comparable.
        count = int(_ACTIVE_SHARE * self._num_neurons)
        is_active[0, self._random.choice(self._num_neurons, count, replace=False)] = True
        active = ActiveIds.of_mask(is_active)
        return seconds_of(lambda: self._ops.ffn_active(self._x, self._ffn, active))
