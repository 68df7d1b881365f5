"""Packing with predictors: the file that converting with them writes, from any GGUF file."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import assert_error, invoke, run_json
from converted_cases import save_without_torch
from powerinfer.convert import planning
from powerinfer.convert.convert import convert
from powerinfer.convert.pack import PackReport, pack
from powerinfer.convert.powerinfer.format import format_for
from powerinfer.convert.powerinfer.pack_predictors import pack_with_predictors
from powerinfer.convert.quantize.file_types import find_file_type
from powerinfer.convert.quantize.plan import QuantizeOptions
from powerinfer.convert.quantize.quantize import quantize
from powerinfer.errors import CheckpointError, GGUFError, PowerInferError, UnsupportedError
from powerinfer.gguf import GGUFFile, open_gguf, write_gguf
from powerinfer.models import load_model
from powerinfer.ops.reference.ops import ReferenceOps
from powerinfer.values import FloatArray
from predictor_folders import (
    HIDDEN,
    LAYERS,
    LAYOUTS,
    NEURONS,
    save_predictor,
    sparse_case,
    write_predictors,
)
from rewritten_models import rewrite
from tiny_models import TINY_MODELS, Stream, TinyModel, write_model

torch = pytest.importorskip("torch", reason="torch is not installed")

LLAMA = replace(
    TINY_MODELS["llama-relu"],
    hidden_size=HIDDEN,
    intermediate_size=NEURONS,
    head_dim=HIDDEN // 4,
)


@pytest.fixture
def predictors(tmp_path: Path) -> Path:
    return write_predictors(tmp_path / "predictors")


def packed(
    tmp_path: Path, model: TinyModel, predictors: Path, **options: Any
) -> tuple[PackReport, GGUFFile]:
    path = tmp_path / "m.gguf"
    if not path.exists():
        write_model(path, model)
    output = tmp_path / "out" / "p.gguf"
    report = pack_with_predictors(open_gguf(path), predictors, output, **options)
    return report, open_gguf(output)


@pytest.mark.parametrize("is_plain", [True, False])
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_file_is_the_one_that_converting_writes(
    name: str,
    is_plain: bool,
    tmp_path: Path,
    predictors: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planning, "read_tokenizer", lambda _folder, _num_rows: {})
    monkeypatch.setattr(planning, "check_tokenizer", lambda _folder, _metadata: None)
    folder = save_without_torch(tmp_path / "hf", sparse_case(name))
    theirs = open_gguf(convert(folder, tmp_path / "c.gguf", predictors=predictors).path)
    source = convert(folder, tmp_path / "s.gguf", is_plain=is_plain).path
    output = tmp_path / "out" / "p.gguf"
    report = pack_with_predictors(open_gguf(source), predictors, output)
    ours = open_gguf(output)
    assert ours.magic == "PWRI"
    assert {**ours.metadata, "powerinfer.layout": None} == {
        **theirs.metadata,
        "powerinfer.layout": None,
    }
    assert {key: ours.types[key] for key in theirs.types} == theirs.types
    assert set(ours.tensors) == set(theirs.tensors)
    for tensor in ours.tensors.values():
        other = theirs.tensors[tensor.name]
        assert (tensor.shape, tensor.format) == (other.shape, other.format), tensor.name
        np.testing.assert_array_equal(tensor.data, other.data, tensor.name)
    assert report.predictors is not None
    assert report.predictors.ranks == (16, 24)
    assert report.predictors.threshold == 0.25
    assert report.num_bytes == output.stat().st_size
    # The checkpoints are F32.
    assert 0 < report.largest_error < 1e-3


def test_predictors_decide_which_neurons_run(tmp_path: Path, predictors: Path) -> None:
    report, file = packed(tmp_path, LLAMA, predictors)
    model = load_model(file, ReferenceOps())
    assert (model.sparsity, model.mlp_threshold) == ("mlp", 0.25)
    assert report.predictors is not None
    size = sum(t.num_elements for t in open_gguf(tmp_path / "m.gguf").tensors.values())
    added = (16 + 24) * (HIDDEN + NEURONS)
    assert report.predictors.share == pytest.approx(added / size)


def test_predictors_of_a_folder_replace_those_of_a_file(tmp_path: Path, predictors: Path) -> None:
    _, first = packed(tmp_path, LLAMA, predictors)
    again = write_predictors(tmp_path / "again", threshold=None)
    save_predictor(
        again,
        1,
        {
            "fc1.weight": Stream(9).numbers((8, HIDDEN), 0.1),
            "fc2.weight": Stream(8).numbers((NEURONS, 8), 0.1),
        },
    )
    (tmp_path / "again" / "activation").rename(tmp_path / "elsewhere")
    report = pack_with_predictors(first, again, tmp_path / "out" / "second.gguf")
    second = open_gguf(report.path)
    assert report.is_exact and report.packed == ()
    assert second.tensors["blk.1.fc1.weight"].shape == (8, HIDDEN)
    assert "powerinfer.sparse_threshold" not in second.metadata
    assert report.predictors is not None and report.predictors.threshold is None


def test_a_tied_head_is_written_out(tmp_path: Path, predictors: Path) -> None:
    report, file = packed(tmp_path, replace(LLAMA, is_tied=True), predictors)
    embedding = file.tensors["token_embd.weight"]
    np.testing.assert_array_equal(file.tensors["output.weight"].data, embedding.data)
    assert load_model(file, ReferenceOps()).sparsity == "mlp"
    # Counted once, as in the model.
    assert report.predictors is not None
    size = sum(t.num_elements for t in open_gguf(tmp_path / "m.gguf").tensors.values())
    assert report.predictors.share == pytest.approx((16 + 24) * (HIDDEN + NEURONS) / size)


@pytest.mark.parametrize(
    ("name", "shape", "source", "expected"),
    [
        ("blk.0.attn_norm.weight", (64,), "f16", "f32"),
        ("blk.0.attn_q.bias", (64,), "f32", "f32"),
        ("blk.0.attn_q.weight", (64, 64), "f32", "f16"),
        ("blk.0.attn_q.weight", (64, 64), "bf16", "f16"),
        ("blk.0.attn_q.weight", (64, 64), "q8_0", "q8_0"),
        ("output.weight", (64, 256), "q6_k", "q6_k"),
        ("output.weight", (64, 64), "mxfp4", "f16"),
        ("blk.0.ffn_up.weight", (96, 64), "f16", "f16"),
        ("blk.0.ffn_up.weight", (96, 64), "q4_0", "q4_0"),
        ("blk.0.ffn_gate.weight", (96, 64), "q8_0", "f16"),
        ("blk.0.ffn_up.weight", (96, 256), "q4_k", "f16"),
        ("blk.0.ffn_down_t.weight", (96, 64), "q4_0", "q4_0"),
        ("blk.0.ffn_down_t.weight", (96, 48), "q4_0", "f16"),
    ],
)
def test_the_original_computes_these_formats(
    name: str, shape: tuple[int, ...], source: str, expected: str
) -> None:
    assert format_for(name, shape, source) == expected


@pytest.mark.parametrize(("file_type", "expected"), [("Q4_0", "q4_0"), ("Q8_0", "f16")])
def test_quantized_models(file_type: str, expected: str, tmp_path: Path, predictors: Path) -> None:
    source = open_gguf(write_model(tmp_path / "f32.gguf", LLAMA))
    options = QuantizeOptions(find_file_type(file_type), threads=1)
    quantize(source, tmp_path / "m.gguf", options)
    before = open_gguf(tmp_path / "m.gguf")
    report, file = packed(tmp_path, LLAMA, predictors)
    for layer in range(LAYERS):
        up, down = (file.tensors[f"blk.{layer}.ffn_{name}.weight"] for name in ("up", "down_t"))
        assert (up.format, down.format, down.shape) == (expected, expected, (NEURONS, HIDDEN))
        wanted = before.tensors[f"blk.{layer}.ffn_down.weight"].decode().T
        error = np.linalg.norm(down.decode() - wanted) / np.linalg.norm(wanted)
        assert error < (0.15 if expected == "q4_0" else 1e-3)
        assert file.tensors[f"blk.{layer}.fc1.weight"].format == "f16"
    query = "blk.0.attn_q.weight"
    assert file.tensors[query].data.tobytes() == before.tensors[query].data.tobytes()
    assert file.get_int("general.file_type") == (2 if expected == "q4_0" else 1)
    assert 0 < report.largest_error < 0.15


def test_statistics_are_copied_beside_the_file(tmp_path: Path, predictors: Path) -> None:
    (predictors / "activation" / "activation.json").write_text("{}")
    packed(tmp_path, LLAMA, predictors)
    names = {f"activation_{layer}.pt" for layer in range(LAYERS)} | {"activation.json"}
    assert {path.name for path in (tmp_path / "out" / "activation").iterdir()} == names
    for name in names:
        copied = (tmp_path / "out" / "activation" / name).read_bytes()
        assert copied == (predictors / "activation" / name).read_bytes()
    # Of a model with its own, and predictors without.
    (predictors / "activation").rename(tmp_path / "activation")
    elsewhere = tmp_path / "elsewhere" / "p.gguf"
    pack_with_predictors(open_gguf(tmp_path / "m.gguf"), predictors, elsewhere)
    assert (elsewhere.parent / "activation" / "activation_1.pt").exists()
    (elsewhere.parent / "activation" / "activation_1.pt").write_bytes(b"of another model")
    third = elsewhere.with_name("third.gguf")
    with pytest.raises(CheckpointError, match=r"activation_1\.pt: belongs to another model"):
        pack_with_predictors(open_gguf(tmp_path / "m.gguf"), predictors, third)
    assert not third.exists()


def test_an_activation_that_the_file_does_not_say(tmp_path: Path, predictors: Path) -> None:
    model = replace(LLAMA, activation=None)
    with pytest.raises(UnsupportedError, match=r"has no llama with silu; it has .*llama with relu"):
        packed(tmp_path, model, predictors)
    report, file = packed(tmp_path, model, predictors, activation="drelu")
    assert file.get_str("general.architecture") == "bamboo"
    assert file.get_str("powerinfer.ffn_activation") == "drelu"
    assert report.notes == ()
    report, file = packed(tmp_path, model, predictors, activation="fatrelu:0.5")
    assert file.get_float("powerinfer.fatrelu_threshold") == 0.5
    assert report.notes == ("the original PowerInfer runs ReLU instead of FatReLU",)


def test_a_window_is_noted(tmp_path: Path, predictors: Path) -> None:
    model = replace(LLAMA, metadata={"attention.sliding_window": 7})
    report, _ = packed(tmp_path, model, predictors)
    assert "no window of 7 tokens" in report.notes[0]


_SIZES: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": NEURONS,
    "head_dim": HIDDEN // 4,
}


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        (replace(LLAMA, activation="silu"), "has no llama with silu"),
        (replace(LLAMA, is_qkv_fused=True), r"blk.0.attn_qkv.weight: PowerInfer's format has no"),
        (replace(LLAMA, has_qkv_bias=True), "has no blk.0.attn_q.bias in llama files"),
        (replace(LLAMA, head_dim=24), "4 heads of width 24 do not add up to hidden_size 64"),
        (
            replace(LLAMA, metadata={"rope.dimension_count": 8}),
            "8 of 16 numbers of a head rotate",
        ),
        (replace(TINY_MODELS["opt"], **_SIZES), "OPT has 2050 positions"),
        (
            replace(TINY_MODELS["opt"], **_SIZES, is_tied=False),
            "output.weight: PowerInfer's format has no output.weight in opt files",
        ),
    ],
)
def test_models_that_the_format_does_not_have(
    model: TinyModel, problem: str, tmp_path: Path, predictors: Path
) -> None:
    with pytest.raises(UnsupportedError) as caught:
        packed(tmp_path, model, predictors)
    assert problem in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_predictors_of_a_dense_model_do_not_fit_experts(tmp_path: Path, predictors: Path) -> None:
    with pytest.raises(CheckpointError, match=r"fc2\.weight.*\[96, 16\]; expected \[4, 96, 16\]"):
        packed(tmp_path, replace(LLAMA, num_experts=4), predictors)


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("name", ["arcee", "nemotron"])
def test_sparse_models_that_the_format_does_not_have_become_gguf(
    name: str, is_packed: bool, tmp_path: Path, predictors: Path
) -> None:
    recipe = replace(TINY_MODELS[name], **_SIZES, is_down_transposed=is_packed)
    report, file = packed(tmp_path, recipe, predictors)
    assert (file.magic, file.get_str("powerinfer.layout")) == ("GGUF", "rows")
    assert report.predictors is not None
    assert not report.predictors.is_original
    assert any("--sparsity mlp" in note for note in report.notes)
    assert file.tensors["blk.1.fc1.weight"].format == "f16"
    assert "blk.1.ffn_down_t.weight" in file.tensors
    token_ids = [1, 40, 77, 200]

    def logits(sparsity: str) -> FloatArray:
        model = load_model(file, ReferenceOps(), sparsity=sparsity)
        cache = model.new_cache()
        return model.forward(cache.batch([(0, token_ids, 0)], [True]), cache)

    assert np.isfinite(logits("mlp")).all()
    assert (logits("mlp") != logits("exact")).any()


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        (None, "model_1.pt is missing"),
        (
            {"fc1.weight": torch.ones(4, 63), "fc2.weight": torch.ones(96, 4)},
            "model_1.pt: tensor 'fc1.weight' has the shape [4, 63]; expected [rank, 64]",
        ),
        (
            {"fc1.weight": torch.ones(4, 64), "fc2.weight": torch.ones(97, 4)},
            "model_1.pt: tensor 'fc2.weight' has the shape [97, 4]; expected [96, 4]",
        ),
        (
            {"fc1.weight": torch.ones(4, 64).int(), "fc2.weight": torch.ones(96, 4)},
            "tensor 'fc1.weight': is torch.int32; expected floating-point numbers",
        ),
        (
            {"fc1.weight": torch.full((4, 64), torch.nan), "fc2.weight": torch.ones(96, 4)},
            "model_1.pt: tensor 'fc1.weight': holds NaN or infinity",
        ),
        (
            {"fc1.weight": torch.full((4, 64), 1e5), "fc2.weight": torch.ones(96, 4)},
            "tensor 'fc1.weight': holds 100000; F16 ends at 65504",
        ),
    ],
)
def test_damaged_predictors(state: Any, problem: str, tmp_path: Path, predictors: Path) -> None:
    (predictors / "model_1.pt").unlink()
    if state is not None:
        torch.save(state, predictors / "model_1.pt")
    write_model(tmp_path / "m.gguf", LLAMA)
    output = tmp_path / "out" / "p.gguf"
    result = invoke("pack", tmp_path / "m.gguf", "--predictors", predictors, "-o", output)
    assert_error(result, problem, str(predictors))
    assert "outtype" not in result.output
    assert list(tmp_path.glob("out/*")) == []


def test_predictors_of_another_depth(tmp_path: Path, predictors: Path) -> None:
    with pytest.raises(CheckpointError, match="of 2 layers, the model has 3"):
        packed(tmp_path, replace(LLAMA, num_layers=3), predictors)
    with pytest.raises(CheckpointError, match="no such folder"):
        packed(tmp_path, LLAMA, tmp_path / "none")


def test_other_files_are_not_lost(tmp_path: Path, predictors: Path) -> None:
    path = write_model(tmp_path / "m.gguf", LLAMA)
    file = open_gguf(path)
    with pytest.raises(GGUFError, match="is the model being read"):
        pack_with_predictors(file, predictors, path)
    other = tmp_path / "other.gguf"
    write_gguf(other, {"general.name": "other"}, [])
    with pytest.raises(GGUFError, match="was not written by pack"):
        pack_with_predictors(file, predictors, other)
    pack(file, tmp_path / "packed.gguf")
    pack_with_predictors(file, predictors, tmp_path / "packed.gguf")
    assert open_gguf(tmp_path / "packed.gguf").magic == "PWRI"
    with pytest.raises(PowerInferError, match="layout"):
        pack_with_predictors(file, predictors, tmp_path / "x.gguf", layout="columns")


def test_a_damaged_model_is_refused_before_anything_is_written(
    tmp_path: Path, predictors: Path
) -> None:
    gone = rewrite(
        tmp_path,
        LLAMA,
        lambda tensor: (
            None
            if tensor.name == "blk.1.ffn_up.weight"
            else (tensor.name, tensor.shape, tensor.format, tensor.data)
        ),
    )
    with pytest.raises(GGUFError, match=r"blk\.1\.ffn_up\.weight"):
        pack_with_predictors(gone, predictors, tmp_path / "out" / "p.gguf")
    assert not (tmp_path / "out").exists()


def test_the_command(tmp_path: Path, predictors: Path) -> None:
    path = write_model(tmp_path / "m.gguf", LLAMA)
    output = tmp_path / "out" / "p.gguf"
    result = invoke("pack", path, "--predictors", predictors, "-o", output)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(
        f"{output}: PowerInfer llama, predictors of ranks 16 to 24 with threshold 0.25, "
    )
    assert "note: f32 is stored as f16, as the original PowerInfer needs it\n" in result.stderr
    found = run_json("pack", path, "--predictors", predictors, "-o", output)
    assert found["predictors"]["architecture"] == "llama"
    assert found["predictors"]["ranks"] == [16, 24]
    assert found["notes"] == []
    assert open_gguf(output).magic == "PWRI"


def test_the_command_takes_the_model_in_the_package(tmp_path: Path, predictors: Path) -> None:
    output = tmp_path / "p.gguf"
    assert_error(invoke("pack", "-o", output), "no tensors for layout rows to change")
    result = invoke("pack", "--predictors", predictors, "-o", output)
    assert_error(result, "has predictors of 2 layers, the model has 6")
