"""Sizes of weights on an accelerator, which placement plans with."""

import pytest

from powerinfer.errors import ShapeError, UnsupportedError
from powerinfer.ops.gpu.formats import (
    ALIGNMENT,
    device_bytes,
    device_format,
    held_bytes,
    transposed_format,
)
from powerinfer.quant import format_names, internal_format_names


@pytest.mark.parametrize(
    ("name", "bits_per_weight"),
    [
        ("f32", 32),
        ("f16", 16),
        ("bf16", 16),
        ("q8_0", 8.5),
        ("q4_0", 4.5),
        ("lowbit3", 4.5),
        ("lowbit2", 2.5),
        ("sign", 1.5),
        ("q4_k", 4.625),
        ("q5_k", 5.625),
        ("q6_k", 6.625),
        ("q4_1", 16),
    ],
)
def test_bytes_of_a_matrix(name: str, bits_per_weight: float) -> None:
    assert device_bytes(name, 7, 512) == 7 * 512 * bits_per_weight / 8


def test_gaps_between_arrays_count_as_memory() -> None:
    assert held_bytes("f32", 1, 1) == ALIGNMENT
    assert held_bytes("f16", 1, ALIGNMENT // 2 + 1) == 2 * ALIGNMENT
    # Codes and scales are two arrays.
    assert device_bytes("q8_0", 1, 32) < held_bytes("q8_0", 1, 32) == 2 * ALIGNMENT


def test_packed_rows_are_padded_to_four_blocks() -> None:
    assert device_bytes("q8_0", 3, 32) == device_bytes("q8_0", 3, 128)
    assert 2 * device_bytes("q8_0", 3, 128) == device_bytes("q8_0", 3, 160)


@pytest.mark.parametrize("name", [*format_names(), *internal_format_names()])
def test_every_format_lies_somehow(name: str) -> None:
    form = device_format(name)
    assert form.element in {"f32", "f16", "bf16", "packed"}
    assert form.is_packed == (form.element == "packed")
    # Fields must not straddle bytes; those of five and six bits are split.
    assert not form.is_packed or 8 % form.bits == 0 or form.bits in (5, 6)
    assert 0 <= form.centre < 2**form.bits


@pytest.mark.parametrize("name", [*format_names(), *internal_format_names()])
def test_turning_a_matrix_keeps_floats_alone(name: str) -> None:
    assert transposed_format(name) == (name if name in {"f32", "f16", "bf16"} else "f16")


def test_an_unknown_format_is_named() -> None:
    with pytest.raises(UnsupportedError, match="q9_9"):
        device_bytes("q9_9", 1, 32)


def test_packed_rows_are_whole_blocks() -> None:
    with pytest.raises(ShapeError, match="multiple of 32"):
        device_bytes("q8_0", 1, 33)
