"""Any mutation of a valid GGUF file opens, or is a `GGUFError`: nothing else, and soon."""

import struct
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import gguf_bytes as gb
import gguf_target
from powerinfer.gguf import open_gguf

SEEDS = gguf_target.seeds()
HUGE = st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**56, 2**61, 2**63 - 1, 2**63, 2**64 - 1])
SMALL = st.integers(0, 40)
NAMES = st.one_of(st.binary(max_size=6), st.sampled_from([b"a", b"b", b"general.alignment"]))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file to overwrite in every example."""
    return tmp_path_factory.mktemp("fuzz") / "m-00001-of-00002.gguf"


def check(path: Path, data: bytes) -> None:
    """Write and read everything, within the memory that the file justifies."""
    path.write_bytes(data)
    gguf_target.open_within_budget(path)
    gguf_target.read_everything(path)


@pytest.mark.parametrize("data", SEEDS, ids=["rich", "index", "part", "empty", "experts", "single"])
def test_seeds_are_valid(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    assert gguf_target.read_everything(path) is not None


@pytest.mark.parametrize("data", SEEDS[-2:], ids=["experts", "single"])
def test_seeds_with_experts_have_all_tensors(path: Path, data: bytes) -> None:
    """Else mutations would reach no check of experts."""
    path.write_bytes(data)
    gguf_target.find_tensors(open_gguf(path))


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
        data[int(place * len(data))] ^= mask
    check(path, bytes(data))


@given(seed=st.sampled_from(SEEDS), place=st.floats(0, 1, exclude_max=True), number=HUGE)
def test_numbers_made_huge(path: Path, seed: bytes, place: float, number: int) -> None:
    start = int(place * len(seed))
    check(path, seed[:start] + struct.pack("<Q", number) + seed[start + 8 :])


@given(
    tensors=st.lists(
        st.builds(
            gb.tensor,
            name=NAMES,
            dims=st.lists(st.one_of(SMALL, HUGE), max_size=5),
            ggml_type=SMALL,
            offset=st.one_of(st.sampled_from([0, 32, 64, 96]), HUGE),
        ),
        max_size=4,
    ),
    magic=st.sampled_from([b"GGUF", b"PWRI"]),
    data=st.binary(max_size=300),
)
@example(tensors=[gb.tensor("a", [0, 2**56])], magic=b"GGUF", data=b"")
@example(tensors=[gb.tensor("a", [0, 2**40, 2**40])], magic=b"GGUF", data=b"")
def test_any_tensor_table(path: Path, tensors: list[bytes], magic: bytes, data: bytes) -> None:
    check(path, bytes(gb.Image(tensors=tensors, magic=magic, data=data)))


@given(
    entries=st.lists(
        st.builds(gb.entry, key=NAMES, value_type=st.integers(0, 14), value=st.binary(max_size=30)),
        max_size=4,
    ),
    num_entries=st.one_of(st.none(), HUGE),
)
def test_any_metadata(path: Path, entries: list[bytes], num_entries: int | None) -> None:
    check(path, bytes(gb.Image(entries=entries, num_entries=num_entries)))


@given(element_type=st.integers(0, 13), count=st.one_of(SMALL, HUGE), data=st.binary(max_size=99))
def test_any_array(path: Path, element_type: int, count: int, data: bytes) -> None:
    entry = gb.entry("k", gb.ARRAY, gb.array(element_type, count, data))
    check(path, bytes(gb.Image(entries=[entry])))
