"""Tables of rotary angles against formulas written out by hand."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from powerinfer.models.rope import RopeConfig, RopeScaling, build_rope_table
from powerinfer.ops.protocol import KVType
from powerinfer.ops.reference.ops import ReferenceOps
from powerinfer.values import Batch


def table_angles(config: RopeConfig, position: int) -> list[float]:
    table = build_rope_table(config, position + 1)
    return [float(angle) for angle in np.arctan2(table.sin[position], table.cos[position])]


def test_plain_angles() -> None:
    config = RopeConfig(8, 10000.0, is_interleaved=True)
    expected = [3 * 10000.0 ** (-2 * pair / 8) for pair in range(4)]
    assert table_angles(config, 3) == pytest.approx(expected, rel=1e-6)


def test_linear_scaling_divides_positions() -> None:
    config = RopeConfig(8, 10000.0, is_interleaved=True, scaling=RopeScaling.LINEAR, factor=4.0)
    plain = RopeConfig(8, 10000.0, is_interleaved=True)
    assert table_angles(config, 12) == pytest.approx(table_angles(plain, 3), rel=1e-6)


def test_yarn_keeps_fast_pairs_and_divides_slow_ones() -> None:
    config = RopeConfig(
        64,
        10000.0,
        is_interleaved=True,
        scaling=RopeScaling.YARN,
        factor=4.0,
        original_context_length=4096,
    )
    plain = RopeConfig(64, 10000.0, is_interleaved=True)
    got, kept = np.array(table_angles(config, 1)), np.array(table_angles(plain, 1))
    # Pair p turns 4096 / (2 pi 10000^(p / 32)) times: 32 times at p = 10.4, once at p = 22.5.
    np.testing.assert_allclose(got[:11], kept[:11], rtol=1e-6)
    np.testing.assert_allclose(got[23:], kept[23:] / 4.0, rtol=1e-5)
    between = got[11:23] / kept[11:23]
    assert (np.diff(between) < 0).all()
    assert 0.25 < between[-1] < between[0] < 1.0


def test_yarn_scales_the_magnitude() -> None:
    config = RopeConfig(
        8,
        10000.0,
        is_interleaved=True,
        scaling=RopeScaling.YARN,
        factor=4.0,
        original_context_length=64,
        attn_factor=1.5,
    )
    table = build_rope_table(config, 5)
    magnitude = np.hypot(table.cos, table.sin)
    np.testing.assert_allclose(magnitude, 1.5 * (0.1 * math.log(4.0) + 1.0), rtol=1e-6)


def test_divisors_divide_frequencies() -> None:
    config = RopeConfig(8, 10000.0, is_interleaved=True)
    divisors = np.array([1, 2, 4, 8], np.float32)
    table = build_rope_table(config, 4, divisors)
    plain = build_rope_table(config, 4)
    got = np.arctan2(table.sin[3], table.cos[3])
    np.testing.assert_allclose(got * divisors, np.arctan2(plain.sin[3], plain.cos[3]), rtol=1e-5)


@pytest.mark.parametrize("is_interleaved", [True, False])
def test_only_the_rotary_dimensions_turn(is_interleaved: bool) -> None:
    ops = ReferenceOps()
    rope = build_rope_table(RopeConfig(4, 100.0, is_interleaved=is_interleaved), 3)
    q = np.arange(1, 9, dtype=np.float32).reshape(1, 8)
    k, v = q.copy(), q.copy()
    cache = ops.new_kv_layers(1, 1, 4, 1, 8, KVType.F16)[0]
    zero = np.zeros(1, np.int32)
    batch = Batch(zero, np.array([2], np.int32), zero, np.zeros((1, 1), np.int32))
    ops.rope_and_store(q, k, v, cache, batch, rope)
    first, second = ((0, 1), (2, 3)) if is_interleaved else ((0, 2), (1, 3))
    expected = np.arange(1, 9, dtype=np.float64)
    for (left, right), angle in ((first, 2.0), (second, 0.2)):
        a, b = expected[left], expected[right]
        expected[left] = a * math.cos(angle) - b * math.sin(angle)
        expected[right] = a * math.sin(angle) + b * math.cos(angle)
    np.testing.assert_allclose(q[0], expected, rtol=1e-6)
    np.testing.assert_allclose(k[0], expected, rtol=1e-6)
    np.testing.assert_array_equal(v[0], np.arange(1, 9))


# Worked examples of YaRN. With a base of 10000 and 8 dimensions the frequencies are 1, 0.1, 0.01
# and 0.001, and a context of 64 tokens is turned through t times by the pair of index
# 8 ln(64 / (2 pi t)) / (2 ln 10000): 1.008 for once, -0.5 for 32 times.


def yarn(**changes: Any) -> RopeConfig:
    config = RopeConfig(
        8,
        10000.0,
        is_interleaved=True,
        scaling=RopeScaling.YARN,
        factor=4.0,
        original_context_length=64,
    )
    return replace(config, **changes)


def shares_kept(config: RopeConfig) -> list[float]:
    """How much of each pair's frequency is kept, from f / factor (1 - kept) + f kept."""
    frequencies = config.freq_base ** -(np.arange(4) / 4)
    scaled = np.array(table_angles(config, 1)) / frequencies
    return [float(kept) for kept in (scaled * config.factor - 1) / (config.factor - 1)]


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        # The ramp from pair floor(-0.5), which is none, so 0, to ceil(1.008) = 2.
        ({}, [1, 1 / 2, 0, 0]),
        ({"ext_factor": 0.5}, [1 / 2, 1 / 4, 0, 0]),
        ({"ext_factor": 0.0}, [0, 0, 0, 0]),
        # A tenth of a turn: 8 ln(640 / 2 pi) / 18.42 = 2.008, so up to 3.
        ({"beta_slow": 0.1}, [1, 2 / 3, 1 / 3, 0]),
        # No turn at all is no pair: up to 7, the last dimension.
        ({"beta_slow": 0.0}, [1, 6 / 7, 5 / 7, 4 / 7]),
        # From 1 to 2: pair 1 is kept, pair 2 is divided, none lies between.
        ({"beta_fast": 1.0}, [1, 1, 0, 0]),
        # 8 ln(7 / 2 pi) / (2 ln 1.2) = 2.37, so up to 3.
        ({"freq_base": 1.2, "original_context_length": 7}, [1, 2 / 3, 1 / 3, 0]),
        # All pairs turn equally fast, by as good as any share of a base that is all but 1.
        ({"freq_base": 1.0}, [1, 6 / 7, 5 / 7, 4 / 7]),
        # 8 ln(70000 / 2 pi) / 9.21 = 8.1, beyond the last dimension, 7;
        # 8 ln(70000 / 8000 / 2 pi) / 9.21 = 0.29, so from 0.
        (
            {"freq_base": 100.0, "original_context_length": 70000, "beta_fast": 8000.0},
            [1, 6 / 7, 5 / 7, 4 / 7],
        ),
    ],
)
def test_yarn_keeps_by_turns_in_the_original_context(
    changes: dict[str, float], kept: list[float]
) -> None:
    assert shares_kept(yarn(**changes)) == pytest.approx(kept, abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        # The ramp from 0, for the -0.5 of 32 turns, to 1.008.
        ({}, [1, 1 - 1 / 1.008, 0, 0]),
        # 8 ln(64 / 2 pi / 0.5) / 18.42 = 1.309 to 2.008.
        ({"beta_fast": 0.5, "beta_slow": 0.1}, [1, 1, 0.01145, 0]),
    ],
)
def test_a_ramp_of_yarn_need_not_be_rounded(changes: dict[str, float], kept: list[float]) -> None:
    got = shares_kept(yarn(rounds_ramp=False, **changes))
    assert got == pytest.approx(kept, abs=1e-4)


@pytest.mark.parametrize(
    ("factor", "magnitude"), [(0.5, 1.0), (1.0, 1.0), (1.5, 1.0405465), (math.e**2, 1.2)]
)
def test_yarn_raises_the_magnitude_where_the_context_grows(factor: float, magnitude: float) -> None:
    table = build_rope_table(yarn(factor=factor), 2)
    np.testing.assert_allclose(np.hypot(table.cos, table.sin), magnitude, rtol=1e-6)


def test_a_long_table_is_the_formula_from_its_first_row_to_its_last() -> None:
    """It is made some thousands of positions at a time."""
    table = build_rope_table(RopeConfig(4, 100.0, is_interleaved=False), 9000)
    assert table.cos.shape == table.sin.shape == (9000, 2)
    assert table.cos.dtype == table.sin.dtype == np.float32
    angles = np.arange(9000)[:, None] * np.array([1.0, 0.1])
    np.testing.assert_allclose(table.cos, np.cos(angles), atol=1e-7)
    np.testing.assert_allclose(table.sin, np.sin(angles), atol=1e-7)
