"""Any mutation of a valid safetensors file opens, or is a `CheckpointError`: nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import safetensors_target

SEEDS = safetensors_target.seeds()
SIZES = st.one_of(st.integers(-1, 40), st.sampled_from([2**31, 2**53, 2**63, 2**64, 2**70]))
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), SIZES, st.floats(), st.text(max_size=4)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "U8", "I64", "F8_E4M3", "Q4", ""]),
        "shape": st.lists(SIZES, max_size=9),
        "data_offsets": st.lists(SIZES, max_size=3),
    }
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file to overwrite in every example."""
    return tmp_path_factory.mktemp("fuzz") / "model.safetensors"


def check(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    safetensors_target.read_everything(path)


@pytest.mark.parametrize("data", SEEDS)
def test_seeds_are_valid(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    assert safetensors_target.read_everything(path) is not None


@given(seed=st.sampled_from(SEEDS), cut=st.floats(0, 1), tail=st.binary(max_size=30))
def test_truncated_and_extended(path: Path, seed: bytes, cut: float, tail: bytes) -> None:
    check(path, seed[: int(len(seed) * cut)] + tail)


@given(
    seed=st.sampled_from(SEEDS),
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=8),
)
def test_flipped_bits(path: Path, seed: bytes, flips: list[tuple[float, int]]) -> None:
    data = bytearray(seed)
    for place, mask in flips:
        if data:
            data[int(place * len(data))] ^= mask
    check(path, bytes(data))


@given(
    header=st.one_of(
        JSON, st.dictionaries(st.text(max_size=4), st.one_of(ENTRIES, JSON), max_size=4)
    ),
    data=st.binary(max_size=64),
)
def test_any_header(path: Path, header: Any, data: bytes) -> None:
    packed = json.dumps(header).encode()
    check(path, len(packed).to_bytes(8, "little") + packed + data)
