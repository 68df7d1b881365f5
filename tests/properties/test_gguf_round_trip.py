"""Whatever is written is read back the same, for any metadata and any tensors."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from powerinfer.gguf import ValueType, encode_tensor, open_gguf, write_gguf
from powerinfer.gguf.value_types import DTYPES

NUMBER_TYPES = sorted(DTYPES)


@st.composite
def entries(draw: st.DrawFn) -> tuple[Any, ValueType]:
    """A value and the type it is stored in."""
    text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    if draw(st.booleans()):
        value_type = draw(st.sampled_from(NUMBER_TYPES))
        shape = draw(st.sampled_from([(), (0,), (1,), (5,)]))
        array = draw(hnp.arrays(DTYPES[value_type], shape))
        return (array if shape else array.item()), value_type
    if draw(st.booleans()):
        return draw(text), ValueType.STRING
    return draw(st.lists(text, max_size=4)), ValueType.STRING


@st.composite
def tensors(draw: st.DrawFn) -> tuple[tuple[int, ...], str, bytes]:
    """Shape, format and fitting random bytes."""
    name, row, row_bytes = draw(
        st.sampled_from([("f32", 3, 12), ("q4_0", 64, 36), ("q6_k", 256, 210), ("i8", 5, 5)])
    )
    lead = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    num_rows = int(np.prod(lead, dtype=int))
    data = draw(st.binary(min_size=row_bytes, max_size=row_bytes)) * num_rows
    return (*lead, row), name, data


def same(left: Any, right: Any) -> bool:
    """Equality that holds for NaN and tells types apart."""
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and bool(left.tobytes() == right.tobytes())
    if isinstance(left, float):
        return isinstance(right, float) and struct.pack("d", left) == struct.pack("d", right)
    return type(left) is type(right) and bool(left == right)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file to overwrite in every example."""
    return tmp_path_factory.mktemp("round_trip") / "m.gguf"


@given(
    metadata=st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(
            lambda key: not key.startswith(("general.", "split."))
        ),
        entries(),
        max_size=6,
    ),
    contents=st.lists(tensors(), max_size=5),
    magic=st.sampled_from(["GGUF", "PWRI"]),
    alignment=st.sampled_from([8, 32, 64, 4096]),
)
def test_write_then_read_is_the_identity(
    path: Path,
    metadata: dict[str, tuple[Any, ValueType]],
    contents: list[tuple[tuple[int, ...], str, bytes]],
    magic: str,
    alignment: int,
) -> None:
    write_gguf(
        path,
        {key: value for key, (value, _) in metadata.items()},
        [(f"t{i}", *content) for i, content in enumerate(contents)],
        magic=magic,
        alignment=alignment,
        types={key: value_type for key, (_, value_type) in metadata.items()},
    )
    file = open_gguf(path)
    assert file.magic == magic
    for key, (value, value_type) in metadata.items():
        assert file.types[key] is value_type
        assert same(file.metadata[key], value), key
    assert len(file.tensors) == len(contents)
    for tensor, (shape, name, data) in zip(file.tensors.values(), contents, strict=True):
        assert (tensor.shape, tensor.format, tensor.data.tobytes()) == (shape, name, data)


@given(values=hnp.arrays(np.float32, hnp.array_shapes(max_dims=4, max_side=5)))
def test_f32_tensors_keep_every_bit(path: Path, values: np.ndarray[Any, Any]) -> None:
    write_gguf(path, {}, [encode_tensor("w", values)])
    read = open_gguf(path).tensors["w"].decode()
    assert read.shape == values.shape
    assert read.tobytes() == values.tobytes()
