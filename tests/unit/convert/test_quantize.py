"""Quantizing: what is encoded and how well, what stays, and what is refused."""

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from powerinfer.convert.quantize.file_types import FILE_TYPES, find_file_type
from powerinfer.convert.quantize.imatrix import Importance, ImportanceMatrix
from powerinfer.convert.quantize.mixture import KeptFormat
from powerinfer.convert.quantize.plan import QuantizeOptions
from powerinfer.convert.quantize.quantize import QuantizeReport, quantize
from powerinfer.errors import GGUFError, NumericsError, UnsupportedError
from powerinfer.gguf import encode_tensor, open_gguf, write_gguf
from powerinfer.quant import get_format
from tiny_models import TINY_EXPERTS, TINY_MODELS, wide, write_model

HEAD, UP, DOWN = "token_embd.weight", "blk.0.ffn_up.weight", "blk.0.ffn_down.weight"
FloatArray = np.ndarray[Any, np.dtype[np.float32]]


def numbers(*shape: int, seed: int = 2) -> FloatArray:
    """Seeded numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def write(path: Path, values: FloatArray, format_name: str = "f32", **metadata: Any) -> Path:
    """Write a file with one matrix, which is an FFN's, and a norm."""
    keys = {"general.architecture": "llama", "llama.block_count": 1, **metadata}
    tensors = [
        encode_tensor(UP, values, format_name),
        encode_tensor("output_norm.weight", numbers(3)),
    ]
    write_gguf(path, keys, tensors)
    return path


def run(source: Path, target: Path, file_type: str, **options: Any) -> QuantizeReport:
    """Quantize a file."""
    chosen = QuantizeOptions(find_file_type(file_type), threads=2, **options)
    return quantize(open_gguf(source), target, chosen)


def error_of(before: FloatArray, after: FloatArray) -> float:
    """Relative error, by its definition."""
    return float(np.linalg.norm(after.astype("f8") - before) / np.linalg.norm(before.astype("f8")))


@pytest.mark.parametrize("file_type", [each.name for each in FILE_TYPES])
@pytest.mark.parametrize("source", ["f32", "f16", "bf16"])
def test_each_type_encodes_what_the_numpy_encoder_does(
    tmp_path: Path, file_type: str, source: str
) -> None:
    path = write(tmp_path / "m.gguf", numbers(5, 512), source)
    report = run(path, tmp_path / "q.gguf", file_type)
    before, made = open_gguf(path).tensors[UP], open_gguf(tmp_path / "q.gguf")
    after, wanted = made.tensors[UP], find_file_type(file_type)
    assert after.format == wanted.format
    expected = get_format(after.format).encode(before.decode())
    assert after.data.tobytes() == expected.tobytes()
    assert made.metadata["general.file_type"] == wanted.number
    assert made.metadata["general.quantization_version"] == 2
    error = {tensor.name: tensor.error.relative for tensor in report.tensors}
    assert error[UP] == pytest.approx(error_of(before.decode(), after.decode()), rel=1e-5)
    assert error["output_norm.weight"] == 0.0
    assert report.num_bytes == (tmp_path / "q.gguf").stat().st_size
    assert report.source_bytes == path.stat().st_size
    assert report.gb_per_s > 0


def test_container_keys_and_order_are_kept(tmp_path: Path) -> None:
    keys = {
        "general.architecture": "opt",
        "opt.block_count": 1,
        "a.short": np.uint16(3),
        "split.no": 0,
        "powerinfer.ffn_activation": "relu",
        "general.file_type": 0,
    }
    tensors = [
        encode_tensor("blk.0.ffn_down_t.weight", numbers(8, 64)),
        encode_tensor("blk.0.fc1.weight", numbers(32, 64), "f16"),
        encode_tensor("blk.0.ffn_up.bias", numbers(8)),
    ]
    write_gguf(tmp_path / "m.gguf", keys, tensors, magic="PWRI", alignment=128)
    run(tmp_path / "m.gguf", tmp_path / "q.gguf", "Q8_0")
    made = open_gguf(tmp_path / "q.gguf")
    assert made.magic == "PWRI"
    assert list(made.tensors) == [name for name, *_ in tensors]
    assert [tensor.format for tensor in made.tensors.values()] == ["q8_0", "q8_0", "f32"]
    assert made.tensors["blk.0.ffn_down_t.weight"].shape == (8, 64)
    assert made.types["a.short"].name == "U16"
    kept = {key: value for key, value in keys.items() if not key.startswith(("split", "general.f"))}
    assert kept.items() <= made.metadata.items()
    assert "split.no" not in made.metadata
    assert made.metadata["general.alignment"] == 128


@pytest.mark.parametrize(
    ("file_type", "predictor"),
    [("Q4_0", "q4_0"), ("Q4_1", "q8_0"), ("Q4_K_M", "q8_0"), ("Q8_0", "q8_0"), ("F16", "f16")],
)
@pytest.mark.parametrize("name", ["llama-powerinfer", "mixtral-drelu-predictors"])
def test_predictors(tmp_path: Path, name: str, file_type: str, predictor: str) -> None:
    """They have formats of their own, and rows of a rank that no block fits are F16."""
    model = wide((TINY_MODELS | TINY_EXPERTS)[name])
    source = write_model(tmp_path / "m.gguf", model)
    run(source, tmp_path / "q.gguf", file_type)
    tensors = open_gguf(tmp_path / "q.gguf").tensors
    end = "_exps.weight" if model.num_experts else ".weight"
    assert tensors[f"blk.0.fc1{end}"].format == predictor
    assert tensors[f"blk.0.fc2{end}"].format == "f16"


def test_rows_of_neurons_are_a_down_projection(tmp_path: Path) -> None:
    """They have its format, but are never weighted."""
    source = write_model(tmp_path / "m.gguf", wide(TINY_MODELS["llama-drelu-transposed"]))
    shapes = {name: t.shape for name, t in open_gguf(source).tensors.items()}
    entries = {name: importance(shape) for name, shape in shapes.items() if len(shape) == 2}
    report = run(source, tmp_path / "q.gguf", "Q8_0", imatrix=matrix(entries))
    weighted = {tensor.name: tensor.has_importance for tensor in report.tensors}
    assert weighted["blk.0.ffn_up.weight"]
    assert not weighted["blk.0.ffn_down_t.weight"]


def importance(shape: tuple[int, ...], seed: int = 3) -> Importance:
    """Uneven weights for the columns of a tensor."""
    rng = np.random.default_rng(seed)
    num_matrices = shape[0] if len(shape) == 3 else 1
    sums = rng.uniform(0, 9, (num_matrices, shape[-1])).astype(np.float32) ** 3
    return Importance(sums, np.full(num_matrices, 10, np.float32))


def matrix(entries: dict[str, Importance]) -> ImportanceMatrix:
    """An importance matrix with these entries."""
    return ImportanceMatrix(entries, ("a text",), 1, 10)


def test_wishes_come_first(tmp_path: Path) -> None:
    source = write_model(tmp_path / "m.gguf", wide(TINY_MODELS["llama"]))
    wishes = [KeptFormat("blk.1.*", "f16"), KeptFormat("*.ffn_*", "bf16"), KeptFormat("o*", "f32")]
    run(source, tmp_path / "q.gguf", "Q8_0", kept=wishes)
    formats = {name: t.format for name, t in open_gguf(tmp_path / "q.gguf").tensors.items()}
    assert formats["blk.1.ffn_up.weight"] == "f16"
    assert formats["blk.0.ffn_up.weight"] == "bf16"
    assert formats["output.weight"] == "f32"
    assert formats["blk.0.attn_q.weight"] == "q8_0"
    assert formats["blk.1.attn_norm.weight"] == "f32"
    with pytest.raises(GGUFError, match=r"no matrix has a name like 'blk\.7\.\*'"):
        run(source, tmp_path / "q2.gguf", "Q8_0", kept=[KeptFormat("blk.7.*", "f16")])
    with pytest.raises(UnsupportedError, match="'q9_9'"):
        run(source, tmp_path / "q2.gguf", "Q8_0", kept=[KeptFormat("blk.0.*", "q9_9")])
    assert not (tmp_path / "q2.gguf").exists()


@pytest.mark.parametrize(
    ("source", "file_type", "made", "is_again"),
    [
        ("q8_0", "Q4_0", "q4_0", True),
        ("q4_0", "Q8_0", "q4_0", False),
        ("q4_0", "Q4_1", "q4_0", False),
        ("mxfp4", "Q4_K_M", "mxfp4", False),
        ("q4_0", "F16", "f16", True),
        ("f16", "BF16", "bf16", False),
    ],
)
def test_a_quantized_source_never_grows_without_gain(
    tmp_path: Path, source: str, file_type: str, made: str, is_again: bool
) -> None:
    path = write(tmp_path / "m.gguf", numbers(4, 256), source)
    report = run(path, tmp_path / "q.gguf", file_type)
    assert (report.tensors[0].format, report.tensors[0].is_again) == (made, is_again)
    if made == source:
        before, after = (
            open_gguf(tmp_path / name).tensors[UP].data for name in ("m.gguf", "q.gguf")
        )
        assert before.tobytes() == after.tobytes()


def test_experts_have_weights_of_their_own(tmp_path: Path) -> None:
    """Merged in one tensor or one each, they are encoded as their rows alone would be."""
    values = numbers(3, 4, 256)
    found = importance(values.shape)
    name = "blk.0.ffn_up_exps.weight"
    single = [f"blk.0.ffn_up.{number}.weight" for number in range(3)]
    keys = {"general.architecture": "llama", "llama.block_count": 1, "llama.expert_count": 3}
    write_gguf(tmp_path / "m.gguf", keys, [encode_tensor(name, values)])
    parts = [encode_tensor(each, part) for each, part in zip(single, values, strict=True)]
    write_gguf(tmp_path / "s.gguf", keys, parts)
    expected = [
        get_format("q4_0").encode(part, means).tobytes()
        for part, means in zip(values, found.means(), strict=True)
    ]
    for source, names in (("m.gguf", [name]), ("s.gguf", single)):
        report = run(tmp_path / source, tmp_path / "q.gguf", "Q4_0", imatrix=matrix({name: found}))
        assert all(tensor.has_importance for tensor in report.tensors)
        tensors = open_gguf(tmp_path / "q.gguf").tensors
        assert b"".join(tensors[each].data.tobytes() for each in names) == b"".join(expected)


def test_importance_of_another_model_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "m.gguf", numbers(4, 64))
    with pytest.raises(GGUFError, match=r"1 rows of 32 numbers, .* needs 1 of 64: .*another model"):
        run(source, tmp_path / "q.gguf", "Q8_0", imatrix=matrix({UP: importance((4, 32))}))
    with pytest.raises(GGUFError, match="has no entry for any matrix"):
        run(source, tmp_path / "q.gguf", "Q8_0", imatrix=matrix({DOWN: importance((4, 64))}))
    assert not (tmp_path / "q.gguf").exists()


@pytest.mark.parametrize(
    ("value", "file_type", "said"),
    [
        (np.nan, "Q8_0", "row 37 holds NaN or infinity"),
        (np.inf, "Q4_0", "NaN or infinity"),
        (np.nan, "F16", "NaN or infinity"),
        (np.inf, "BF16", "NaN or infinity"),
        (1e6, "F16", "row 37 holds 1e.06, too large for f16: take BF16"),
        (1e30, "Q8_0", "row 37 holds 1e.30, too large for q8_0"),
    ],
)
def test_numbers_that_cannot_be_stored(
    tmp_path: Path, value: float, file_type: str, said: str
) -> None:
    values = numbers(40, 64)
    values[37, 5] = value
    source = write(tmp_path / "m.gguf", values)
    with pytest.raises(NumericsError, match=f"m.gguf: tensor {UP}: .*{said}"):
        run(source, tmp_path / "q.gguf", file_type)
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


@pytest.mark.parametrize("name", ["m.gguf", "link.gguf", "hard.gguf"])
def test_the_model_itself_is_never_overwritten(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "m.gguf", numbers(4, 64))
    (tmp_path / "link.gguf").symlink_to(path)
    (tmp_path / "hard.gguf").hardlink_to(path)
    before = path.read_bytes()
    with pytest.raises(GGUFError, match="is the model being read"):
        run(path, tmp_path / name, "Q8_0")
    assert path.read_bytes() == before


def test_only_what_quantize_wrote_is_replaced(tmp_path: Path) -> None:
    source = write(tmp_path / "m.gguf", numbers(4, 64))
    another = write(tmp_path / "other.gguf", numbers(4, 64))
    with pytest.raises(GGUFError, match="already exists and was not written by quantize"):
        run(source, another, "Q8_0")
    for file_type in ("Q8_0", "F16"):
        run(source, tmp_path / "q.gguf", file_type)
    assert open_gguf(tmp_path / "q.gguf").tensors[UP].format == "f16"


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    source = write(tmp_path / "m.gguf", numbers(4, 64))
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(GGUFError, match=r"q\.gguf: cannot write: No space left on device"):
        run(source, tmp_path / "q.gguf", "Q8_0")
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


def test_files_without_matrices_are_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", {}, [encode_tensor("output_norm.weight", numbers(4))])
    with pytest.raises(GGUFError, match="it has no matrix"):
        run(tmp_path / "m.gguf", tmp_path / "q.gguf", "Q8_0")


def test_formats_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    data = np.zeros(4 * 2 * 36, np.uint8)
    write_gguf(tmp_path / "m.gguf", {}, [(UP, (4, 64), "q8_1", data)])
    with pytest.raises(UnsupportedError, match=f"tensor {UP} is q8_1, which cannot be read"):
        run(tmp_path / "m.gguf", tmp_path / "q.gguf", "Q4_0")


def test_a_layer_that_the_model_does_not_have(tmp_path: Path) -> None:
    keys = {"general.architecture": "llama", "llama.block_count": 1, "llama.expert_count": 2}
    write_gguf(
        tmp_path / "m.gguf", keys, [encode_tensor("blk.1.ffn_down_exps.weight", numbers(2, 4, 64))]
    )
    with pytest.raises(GGUFError, match="belongs to no layer of the model, which has 1"):
        run(tmp_path / "m.gguf", tmp_path / "q.gguf", "Q4_0")


def test_unknown_types_name_those_there_are() -> None:
    known = r"'Q3_K_L' is unknown; supported are Q4_0, Q4_1, .*, F16, BF16"
    with pytest.raises(UnsupportedError, match=known):
        find_file_type("Q3_K_L")
    assert find_file_type("q4_k_m").name == "Q4_K_M"
