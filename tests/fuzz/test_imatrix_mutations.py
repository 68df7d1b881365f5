"""Any mutation of an importance matrix, or of a model to be quantized, is one `PowerInferError`."""

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gguf_target
from powerinfer.convert.quantize.file_types import find_file_type
from powerinfer.convert.quantize.imatrix import (
    Importance,
    ImportanceMatrix,
    read_imatrix,
    write_imatrix,
)
from powerinfer.convert.quantize.plan import QuantizeOptions
from powerinfer.convert.quantize.quantize import quantize
from powerinfer.errors import PowerInferError
from powerinfer.gguf import Tensor, open_gguf

NAME = "blk.0.ffn_up_exps.weight"
FLIPS = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=8
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@pytest.fixture(scope="module")
def valid(folder: Path) -> bytes:
    entry = Importance(np.ones((3, 4), np.float32), np.ones(3, np.float32))
    write_imatrix(folder / "valid.gguf", ImportanceMatrix({NAME: entry}, ("a",), 1, 512))
    return (folder / "valid.gguf").read_bytes()


def flipped(data: bytes, flips: list[tuple[float, int]]) -> bytes:
    """Some bits of it changed."""
    changed = bytearray(data)
    for place, mask in flips:
        changed[int(place * len(changed))] ^= mask
    return bytes(changed)


@given(flips=FLIPS, cut=st.floats(0, 1))
def test_importance_matrices(
    folder: Path, valid: bytes, flips: list[tuple[float, int]], cut: float
) -> None:
    data = flipped(valid, flips)
    for content in (data, data[: int(cut * len(data))]):
        (folder / "i.gguf").write_bytes(content)
        with suppress(PowerInferError):
            found = read_imatrix(folder / "i.gguf")
            for shape in ((3, 2, 4), (2, 4), (3, 2, 5)):
                weights = found.of(Tensor(NAME, shape, "f32", np.empty(0, np.uint8), Path("m")))
                assert weights is None or np.isfinite(weights).all()


@given(
    seed=st.sampled_from(gguf_target.seeds()), flips=FLIPS, name=st.sampled_from(["Q8_0", "F16"])
)
def test_models(folder: Path, seed: bytes, flips: list[tuple[float, int]], name: str) -> None:
    (folder / "m.gguf").write_bytes(flipped(seed, flips))
    with suppress(PowerInferError):
        source = open_gguf(folder / "m.gguf")
        quantize(source, folder / "q.gguf", QuantizeOptions(find_file_type(name), threads=1))
        assert list(open_gguf(folder / "q.gguf").tensors) == list(source.tensors)
