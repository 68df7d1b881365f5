"""Any mutation of a file of `torch.save` is read, or is one `PlacementError`: nothing else."""

import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import torch_files as tf
from powerinfer.errors import PlacementError
from powerinfer.placement.activation_folder import read_activation_file

DATA = np.arange(4, dtype="<f4").tobytes()
pytest.importorskip("torch", reason="torch is not installed")

SEEDS = (
    tf.ARCHIVE,
    tf.LEGACY,
    tf.archive(tf.tensor(), DATA),
    tf.archive(tf.tensor(), DATA, method=zipfile.ZIP_DEFLATED),
)
MOST_BYTES = 2 << 20


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file to overwrite in every example."""
    return tmp_path_factory.mktemp("fuzz") / "activation_0.pt"


def check(path: Path, data: bytes) -> None:
    """Read within little memory."""
    path.write_bytes(data)
    tracemalloc.start()
    try:
        found = read_activation_file(path, 4)
        assert found.shape == (4,)
        assert found.dtype == np.float64
    except PlacementError as error:
        assert str(path) in str(error)
        assert len(str(error)) < 1000
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < MOST_BYTES


@given(
    seed=st.sampled_from(SEEDS),
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=8),
)
def test_flipped_bits(path: Path, seed: bytes, flips: list[tuple[float, int]]) -> None:
    data = bytearray(seed)
    for place, mask in flips:
        data[int(place * len(data))] ^= mask
    check(path, bytes(data))


@given(seed=st.sampled_from(SEEDS), cut=st.floats(0, 1), tail=st.binary(max_size=30))
def test_truncated_and_extended(path: Path, seed: bytes, cut: float, tail: bytes) -> None:
    check(path, seed[: int(len(seed) * cut)] + tail)


# In an archive the checksum hides what is behind it, so the pickle is changed before packing.
@given(
    place=st.floats(0, 1, exclude_max=True),
    removed=st.integers(0, 20),
    inserted=st.one_of(st.binary(max_size=20), st.integers(-(2**100), 2**100).map(tf.integer)),
)
def test_changed_pickles(path: Path, place: float, removed: int, inserted: bytes) -> None:
    pickle = tf.tensor()
    start = int(place * len(pickle))
    check(path, tf.archive(pickle[:start] + inserted + pickle[start + removed :], DATA))


OPCODES = st.sampled_from([bytes([code]) for code in b"().NJKMUTX]lae}subctRQqrhj"])


@given(parts=st.lists(st.one_of(OPCODES, st.binary(max_size=3)), max_size=60))
def test_any_opcodes(path: Path, parts: list[bytes]) -> None:
    check(path, tf.archive(b"".join(parts), DATA))
