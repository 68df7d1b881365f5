"""Any mutation of a GPU index is read as a legal one, or is one `PlacementError`."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement_cases import smallest
from powerinfer.errors import PlacementError
from powerinfer.placement.gpu_index import is_our_index, read_gpu_index, write_gpu_index
from powerinfer.placement.plan import LayerPlacement, PlacementPlan

IDENTITY = "0123456789abcdef" * 4
NUM_NEURONS = 6
HOT: tuple[list[int], ...] = ([], [0, 5], list(range(NUM_NEURONS)))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file to overwrite in every example."""
    return tmp_path_factory.mktemp("fuzz") / "m.gguf.generated.gpuidx"


@pytest.fixture(scope="module")
def seed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    layers = tuple(LayerPlacement(True, True, np.array(ids, np.int32)) for ids in HOT)
    path = tmp_path_factory.mktemp("seed") / "index"
    write_gpu_index(path, PlacementPlan(IDENTITY, "paper", 9, NUM_NEURONS, True, layers), 7)
    return path.read_bytes()


def check(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    is_our_index(path)
    try:
        # The plan checks its own invariants.
        found = read_gpu_index(path, smallest(len(HOT), NUM_NEURONS, IDENTITY))
    except PlacementError as error:
        assert len(str(error)) < 1000
        return
    assert len(found.layers) == len(HOT)


@given(
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=4)
)
def test_flipped_bits(path: Path, seed: bytes, flips: list[tuple[float, int]]) -> None:
    data = bytearray(seed)
    for place, mask in flips:
        data[int(place * len(data))] ^= mask
    check(path, bytes(data))


@given(cut=st.floats(0, 1), tail=st.binary(max_size=30))
def test_truncated_and_extended(path: Path, seed: bytes, cut: float, tail: bytes) -> None:
    check(path, seed[: int(len(seed) * cut)] + tail)


@given(
    place=st.floats(0, 1, exclude_max=True),
    number=st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**56, 2**63 - 1, 2**63, 2**64 - 1]),
)
def test_numbers_made_huge(path: Path, seed: bytes, place: float, number: int) -> None:
    start = int(place * len(seed))
    check(path, seed[:start] + number.to_bytes(8, "little") + seed[start + 8 :])
