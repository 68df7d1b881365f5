"""Packing experts: one tensor for all of them or one for each, turned, merged or refused."""

import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from powerinfer.convert.layout import KEPT_FORMATS
from powerinfer.convert.pack import pack
from powerinfer.errors import GGUFError, NumericsError, UnsupportedError
from powerinfer.gguf import GGUFFile, TensorSpec, encode_tensor, open_gguf, write_gguf
from powerinfer.quant import get_format

FloatArray = np.ndarray[Any, np.dtype[np.float32]]

NUM_EXPERTS, NEURONS, HIDDEN = 3, 64, 96
PLAIN = ("f32", "f16", "bf16")
KEPT = tuple(sorted(KEPT_FORMATS - set(PLAIN)))
SHAPES = {
    "gate": (NUM_EXPERTS, NEURONS, HIDDEN),
    "up": (NUM_EXPERTS, NEURONS, HIDDEN),
    "down": (NUM_EXPERTS, HIDDEN, NEURONS),
}


def numbers(name: str) -> FloatArray:
    """Seeded numbers of all experts' matrices of one kind."""
    stream = np.random.default_rng(list(name.encode()))
    return stream.standard_normal(SHAPES[name]).astype(np.float32)


def merged(format_name: str) -> list[TensorSpec]:
    """One tensor for all experts, with biases."""
    return [
        *(
            encode_tensor(f"blk.0.ffn_{name}_exps.weight", numbers(name), format_name)
            for name in SHAPES
        ),
        encode_tensor("blk.0.ffn_down_exps.bias", numbers("down")[:, :, 0]),
    ]


def single(format_name: str) -> list[TensorSpec]:
    """The same, one tensor for each expert, as files were before llama.cpp merged them."""
    return [
        *(
            encode_tensor(f"blk.0.ffn_{name}.{expert}.weight", numbers(name)[expert], format_name)
            for expert in range(NUM_EXPERTS)
            for name in SHAPES
        ),
        *(
            encode_tensor(f"blk.0.ffn_down.{expert}.bias", numbers("down")[expert, :, 0])
            for expert in range(NUM_EXPERTS)
        ),
    ]


def write(path: Path, tensors: Sequence[TensorSpec], **metadata: Any) -> GGUFFile:
    """A file of these tensors, open."""
    write_gguf(path, {"general.architecture": "llama", **metadata}, tensors)
    return open_gguf(path)


def down_exps(file: GGUFFile) -> FloatArray:
    """The turned matrices of all experts, turned back."""
    return file.tensors["blk.0.ffn_down_exps_t.weight"].decode().transpose(0, 2, 1)


@pytest.mark.parametrize("format_name", PLAIN)
def test_plain_experts_are_turned_bit_for_bit(tmp_path: Path, format_name: str) -> None:
    source = write(tmp_path / "m.gguf", merged(format_name))
    report = pack(source, tmp_path / "p.gguf")
    packed = open_gguf(tmp_path / "p.gguf")
    names = ["gate_exps.weight", "up_exps.weight", "down_exps_t.weight", "down_exps_t.bias"]
    assert list(packed.tensors) == [f"blk.0.ffn_{name}" for name in names]
    down = packed.tensors["blk.0.ffn_down_exps_t.weight"]
    assert (down.shape, down.format) == ((NUM_EXPERTS, NEURONS, HIDDEN), format_name)
    before = source.tensors["blk.0.ffn_down_exps.weight"].decode()
    np.testing.assert_array_equal(down_exps(packed), before)
    bias = packed.tensors["blk.0.ffn_down_exps_t.bias"]
    np.testing.assert_array_equal(bias.decode(), numbers("down")[:, :, 0])
    assert report.is_exact


@pytest.mark.parametrize("format_name", KEPT)
def test_experts_of_blocks_are_encoded_again(tmp_path: Path, format_name: str) -> None:
    source = write(tmp_path / "m.gguf", merged(format_name))
    report = pack(source, tmp_path / "p.gguf")
    packed = open_gguf(tmp_path / "p.gguf")
    down = packed.tensors["blk.0.ffn_down_exps_t.weight"]
    assert (down.shape, down.format) == ((NUM_EXPERTS, NEURONS, HIDDEN), format_name)
    before = source.tensors["blk.0.ffn_down_exps.weight"].decode()
    error = np.linalg.norm(down_exps(packed) - before) / np.linalg.norm(before)
    assert report.largest_error == pytest.approx(error, rel=1e-4)
    bound = get_format(format_name).max_error(before.transpose(0, 2, 1)).transpose(0, 2, 1)
    assert (np.abs(down_exps(packed) - before) <= bound).all()


@pytest.mark.parametrize("format_name", [*PLAIN, *KEPT])
def test_single_experts_give_the_tensors_of_the_merged_file(
    tmp_path: Path, format_name: str
) -> None:
    one = pack(write(tmp_path / "m.gguf", merged(format_name)), tmp_path / "mp.gguf")
    each = pack(write(tmp_path / "s.gguf", single(format_name)), tmp_path / "sp.gguf")
    from_merged, from_single = open_gguf(one.path), open_gguf(each.path)
    assert set(from_merged.tensors) == set(from_single.tensors)
    for name, tensor in from_merged.tensors.items():
        other = from_single.tensors[name]
        assert (other.shape, other.format) == (tensor.shape, tensor.format)
        assert other.data.tobytes() == tensor.data.tobytes()
    assert each.largest_error == one.largest_error
    assert len(each.packed) == len(SHAPES) + 1


def test_many_single_experts_are_ordered_by_number(tmp_path: Path) -> None:
    """Ten comes after two, whatever the order of the file."""
    values = np.arange(12 * 4 * 2, dtype=np.float32).reshape(12, 4, 2)
    order = [11, 2, 10, 0, 1, 3, 4, 5, 6, 7, 8, 9]
    tensors = [encode_tensor(f"blk.0.ffn_down.{number}.weight", values[number]) for number in order]
    pack(write(tmp_path / "s.gguf", tensors), tmp_path / "p.gguf")
    np.testing.assert_array_equal(down_exps(open_gguf(tmp_path / "p.gguf")), values)


def test_a_shared_expert_is_turned_too(tmp_path: Path) -> None:
    values = numbers("down")[0]
    name = "blk.0.ffn_down_shexp.weight"
    pack(write(tmp_path / "m.gguf", [encode_tensor(name, values)]), tmp_path / "p.gguf")
    packed = open_gguf(tmp_path / "p.gguf").tensors
    np.testing.assert_array_equal(packed["blk.0.ffn_down_shexp_t.weight"].decode(), values.T)


def test_an_expert_is_turned_at_a_time(tmp_path: Path) -> None:
    """A matrix of all experts would take a gigabyte of numbers in real models."""
    values = np.ones((16, 512, 256), np.float32)
    source = write(tmp_path / "m.gguf", [encode_tensor("blk.0.ffn_down_exps.weight", values)])
    done: list[tuple[int, int]] = []
    tracemalloc.start()
    try:
        pack(source, tmp_path / "p.gguf", progress=lambda *state: done.append(state))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < values.nbytes / 4
    assert len(done) >= 16
    assert done[-1] == (values.nbytes, values.nbytes)


def _without(name: str) -> list[TensorSpec]:
    return [tensor for tensor in single("f32") if tensor[0] != name]


@pytest.mark.parametrize(
    ("tensors", "metadata", "message"),
    [
        (
            _without("blk.0.ffn_up.1.weight"),
            {},
            r"expert 1 is missing beside blk\.0\.ffn_up\.2\.weight; expected 3 experts",
        ),
        (
            single("f32"),
            {"llama.expert_count": 4},
            r"expert 3 is missing beside blk\.0\.ffn_gate\.2\.weight; expected 4 experts",
        ),
        (
            [*single("f32"), *merged("f32")],
            {},
            r"has both blk\.0\.ffn_gate_exps\.weight and blk\.0\.ffn_gate\.0\.weight",
        ),
        (
            [*merged("f32"), *single("f32")],
            {},
            r"has both blk\.0\.ffn_gate_exps\.weight and blk\.0\.ffn_gate\.0\.weight",
        ),
        (
            [
                *_without("blk.0.ffn_up.2.weight"),
                encode_tensor("blk.0.ffn_up.2.weight", numbers("up")[2], "f16"),
            ],
            {},
            r"blk\.0\.ffn_up\.2\.weight is f16 \[64, 96\], blk\.0\.ffn_up\.0\.weight is f32",
        ),
    ],
)
def test_single_experts_that_are_no_set(
    tmp_path: Path, tensors: list[TensorSpec], metadata: dict[str, Any], message: str
) -> None:
    source = write(tmp_path / "m.gguf", tensors, **metadata)
    with pytest.raises((GGUFError, UnsupportedError), match=message):
        pack(source, tmp_path / "p.gguf")
    assert not (tmp_path / "p.gguf").exists()


def test_packed_experts_have_nothing_to_pack(tmp_path: Path) -> None:
    pack(write(tmp_path / "m.gguf", merged("f32")), tmp_path / "p.gguf")
    with pytest.raises(GGUFError, match=r"no tensors for layout rows to change .*: rows"):
        pack(open_gguf(tmp_path / "p.gguf"), tmp_path / "again.gguf")


def test_an_expert_of_infinities_is_named(tmp_path: Path) -> None:
    values = numbers("down")
    block = get_format("q8_0").encode(values)
    block[1, 0, :2] = np.array([np.inf], "<f2").view(np.uint8)
    name = "blk.0.ffn_down_exps.weight"
    source = write(tmp_path / "m.gguf", [(name, values.shape, "q8_0", block.reshape(-1))])
    with pytest.raises(NumericsError, match=r"m\.gguf: tensor blk\.0\.ffn_down_exps\.weight: "):
        pack(source, tmp_path / "p.gguf")


@pytest.mark.parametrize("shape", [(4, 6), (0, 4, 6), (2, 0, 6)])
def test_experts_without_dimensions_stay_as_they_are(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    """They run nowhere, but the error is that of the model's shapes."""
    name = "blk.0.ffn_down_exps.weight"
    source = write(tmp_path / "m.gguf", [encode_tensor(name, np.ones(shape, np.float32))])
    pack(source, tmp_path / "p.gguf")
    packed = open_gguf(tmp_path / "p.gguf").tensors["blk.0.ffn_down_exps_t.weight"]
    assert packed.num_elements == np.prod(shape)
