"""Tables of rotary angles against formulas written out by hand."""

import math

import numpy as np
import pytest

from powerinfer.models import RopeConfig, RopeScaling, build_rope_table
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
    cache = ops.new_kv_layer(1, 4, 1, 8, KVType.F16)
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
