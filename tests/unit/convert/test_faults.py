"""Checkpoints that cannot be converted: one line that names file and tensor, and no file."""

import json
import os
import pickle
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from checkpoint_files import bf16, write_checkpoint, write_safetensors
from converted_cases import save_without_torch
from powerinfer.convert.checkpoint.torch_files import read_torch_file
from powerinfer.convert.convert import convert
from powerinfer.errors import (
    CheckpointError,
    DeviceError,
    NumericsError,
    PowerInferError,
    UnsupportedError,
)
from powerinfer.gguf import open_gguf
from transformers_cases import CASES
from transformers_weights import transformers_state

pytestmark = pytest.mark.usefixtures("without_tokenizers")

Tensors = dict[str, Any]
LLAMA = CASES["llama-gqa"]
CONFIG: dict[str, Any] = LLAMA.arguments | {"model_type": "llama"}
DOWN = "model.layers.1.mlp.down_proj.weight"
GATE = "model.layers.0.mlp.gate_proj.weight"


def refused(
    folder: Path, *parts: str, error: type[PowerInferError] = CheckpointError, **options: Any
) -> str:
    """The message, after checking that nothing was written."""
    output = folder / "out" / "m.gguf"
    with pytest.raises(error) as caught:
        convert(folder, output, **options)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message
    assert not output.parent.exists() or not list(output.parent.iterdir())
    return message


def write(folder: Path, tensors: Mapping[str, Any], **changes: Any) -> Path:
    config = {key: value for key, value in (CONFIG | changes).items() if value is not None}
    return write_checkpoint(folder, config, tensors)


@pytest.fixture
def tensors() -> Tensors:
    return dict(transformers_state(LLAMA))


def damage_last(values: Any, number: float) -> npt.NDArray[np.float32]:
    damaged = np.array(values, np.float32)
    damaged.reshape(-1)[-1] = number
    return damaged


def test_a_missing_tensor(tmp_path: Path, tensors: Tensors) -> None:
    del tensors[DOWN]
    refused(write(tmp_path, tensors), str(tmp_path / "model.safetensors"), f"{DOWN} is missing")


def test_many_missing_tensors_are_counted(tmp_path: Path, tensors: Tensors) -> None:
    few = {name: values for name, values in tensors.items() if "layers" not in name}
    refused(write(tmp_path, few), "self_attn.q_proj.weight", "and 14 more are missing")


def test_a_missing_head(tmp_path: Path, tensors: Tensors) -> None:
    del tensors["lm_head.weight"]
    refused(write(tmp_path, tensors), "lm_head.weight is missing", "tie_word_embeddings")


def test_an_extra_tensor(tmp_path: Path, tensors: Tensors) -> None:
    tensors["model.layers.0.mlp.extra_proj.weight"] = np.ones((2, 2), np.float32)
    refused(write(tmp_path, tensors), "model.safetensors", "mlp.extra_proj", "no place in a llama")


def test_a_tensor_of_another_layer(tmp_path: Path, tensors: Tensors) -> None:
    tensors["model.layers.2.input_layernorm.weight"] = np.ones(64, np.float32)
    refused(write(tmp_path, tensors), "model.layers.2.input_layernorm.weight", "no place")


def test_an_unknown_bias(tmp_path: Path, tensors: Tensors) -> None:
    tensors["model.norm.bias"] = np.ones(64, np.float32)
    refused(write(tmp_path, tensors), "'model.norm.bias' has no place")


@pytest.mark.parametrize(
    ("name", "shape", "parts"),
    [
        (DOWN, (64, 95), ("has the shape [64, 95]; expected [64, 96]",)),
        ("model.layers.0.self_attn.q_proj.weight", (63, 64), ("[63, 64]; expected [64, 64]",)),
        ("model.norm.weight", (63,), ("[63]; expected [64]",)),
        ("model.norm.weight", (), ("[]; expected [64]",)),
        ("model.embed_tokens.weight", (96,), ("[96]; expected 96 rows",)),
        ("model.embed_tokens.weight", (95, 64), ("[95, 64]; expected 96 rows",)),
        (GATE, (2, 48, 64), ("[2, 48, 64]; expected [96, 64]",)),
    ],
)
def test_a_misshapen_tensor(
    name: str, shape: tuple[int, ...], parts: tuple[str, ...], tmp_path: Path, tensors: Tensors
) -> None:
    tensors[name] = np.ones(shape, np.float32)
    refused(write(tmp_path, tensors), *parts)


def test_misshapen_rows_of_a_relu_model(tmp_path: Path, tensors: Tensors) -> None:
    tensors[DOWN] = np.ones((64, 95), np.float32)
    refused(write(tmp_path, tensors, hidden_act="relu"), DOWN, "[64, 95]", "[96, 64]")


def test_codes_of_another_quantizer(tmp_path: Path, tensors: Tensors) -> None:
    tensors[GATE] = np.ones(np.shape(tensors[GATE]), np.uint8)
    said = refused(write(tmp_path, tensors), GATE, "is u8", error=UnsupportedError)
    assert "quantized checkpoints are not converted" in said


def test_a_type_without_numbers(tmp_path: Path, tensors: Tensors) -> None:
    tensors[DOWN] = np.ones((64, 96), np.int64)
    refused(write(tmp_path, tensors), DOWN, "is I64", error=UnsupportedError)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("outtype", ["auto", "f16", "q8_0"])
def test_numbers_that_are_none(
    number: float, outtype: str, tmp_path: Path, tensors: Tensors
) -> None:
    for kind in ("f32", "f16", "bf16", "f64"):
        values = damage_last(tensors[DOWN], number)
        held = bf16(values) if kind == "bf16" else values.astype(kind.replace("f", "float"))
        folder = write(tmp_path / kind, tensors | {DOWN: held})
        refused(folder, DOWN, "NaN or infinity", error=NumericsError, outtype=outtype)


@pytest.mark.parametrize("is_bf16", [False, True])
def test_numbers_beyond_f16(tmp_path: Path, tensors: Tensors, *, is_bf16: bool) -> None:
    values = damage_last(tensors[DOWN], -70000.0)
    folder = write(tmp_path, tensors | {DOWN: bf16(values) if is_bf16 else values})
    message = refused(folder, DOWN, "F16 ends at 65504", error=NumericsError, outtype="f16")
    assert "outtype='bf16'" in message
    assert convert(folder, tmp_path / "m.gguf", outtype="bf16").outtype == "bf16"


def test_numbers_beyond_bf16(tmp_path: Path, tensors: Tensors) -> None:
    folder = write(tmp_path, tensors | {DOWN: damage_last(tensors[DOWN], 3.4e38)})
    refused(folder, DOWN, "BF16", error=NumericsError, outtype="bf16")


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"model_type": "gpt2"}, ("model_type 'gpt2' is not supported", "qwen3_moe")),
        ({"model_type": None}, ("config.json", "key model_type is missing")),
        ({"model_type": 3}, ("key model_type is 3", "expected a string")),
        ({"hidden_act": "mish"}, ("activation 'mish' is not supported", "fatrelu")),
        ({"hidden_act": "fatrelu"}, ("hidden_act_param is missing",)),
        ({"hidden_act": "fatrelu", "hidden_act_param": -1}, ("hidden_act_param", "0 or more")),
        ({"hidden_size": None}, ("key hidden_size is missing",)),
        ({"hidden_size": "64"}, ("key hidden_size is '64'", "integer from 1")),
        ({"hidden_size": 0}, ("key hidden_size is 0",)),
        ({"hidden_size": True}, ("key hidden_size is True",)),
        ({"num_attention_heads": 5, "head_dim": None}, ("a divisor of hidden_size 64",)),
        ({"num_hidden_layers": 5000}, ("num_hidden_layers is 5000", "1024")),
        ({"rms_norm_eps": "x"}, ("rms_norm_eps",)),
        ({"tie_word_embeddings": 1}, ("tie_word_embeddings", "true or false")),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, ("dynamic", "linear")),
        ({"rope_scaling": {"type": "linear"}}, ("rope_scaling: key factor is missing",)),
        ({"rope_scaling": 4}, ("rope_scaling is 4", "object")),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "truncate": False}}, ("truncate",)),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 9.0}},
            ("low_freq_factor",),
        ),
        ({"partial_rotary_factor": 0.5}, ("partial_rotary_factor",)),
        ({"quantization_config": {"quant_method": "gptq"}}, ("quantized (gptq)",)),
        ({"quantization_config": {"quant_method": "mxfp4"}}, ("quantized (mxfp4)",)),
        ({"num_local_experts": 4, "num_experts_per_tok": 9}, ("expert_used_count",)),
    ],
)
def test_configurations(
    changes: dict[str, Any], parts: tuple[str, ...], tmp_path: Path, tensors: Tensors
) -> None:
    folder = write(tmp_path, tensors, **changes)
    refused(folder, str(folder / "config.json"), *parts, error=PowerInferError)


def test_code_of_a_checkpoint_is_not_looked_at(tmp_path: Path, tensors: Tensors) -> None:
    auto_map = {"AutoModelForCausalLM": "evil.Model"}
    folder = write(tmp_path, tensors, auto_map=auto_map)
    (folder / "evil.py").write_text("raise SystemExit(3)")
    assert convert(folder, tmp_path / "m.gguf").architecture == "llama"
    assert "evil" not in sys.modules


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\xff" * 9, b"[" * 100_000])
def test_no_configuration(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    refused(tmp_path, str(tmp_path / "config.json"), "JSON")


def test_no_checkpoint(tmp_path: Path) -> None:
    refused(tmp_path, "config.json: cannot be read")
    refused(tmp_path / "none", "no such folder")
    (tmp_path / "config.json").write_text("{}")
    refused(tmp_path, "has neither model.safetensors nor pytorch_model.bin")


def test_a_missing_shard(tmp_path: Path) -> None:
    folder = save_without_torch(tmp_path, LLAMA, shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    index = folder / "model.safetensors.index.json"
    refused(folder, str(index), "1 of its 3 files are missing: model-00002-of-00003.safetensors")
    index.unlink()
    refused(folder, "has 2 of 3 shards of model.safetensors, and no index")


def test_an_index_that_is_wrong(tmp_path: Path) -> None:
    folder = save_without_torch(tmp_path, LLAMA, shards=2)
    index = folder / "model.safetensors.index.json"
    value = json.loads(index.read_text())

    def with_map(change: Callable[[dict[str, Any]], Any]) -> None:
        weight_map = dict(value["weight_map"])
        change(weight_map)
        index.write_text(json.dumps(value | {"weight_map": weight_map}))

    with_map(lambda names: names.update({DOWN: "../model-00001-of-00002.safetensors"}))
    refused(folder, "is not the name of a file in the same folder")
    with_map(lambda names: names.update({DOWN: 7}))
    refused(folder, "is not the name of a file in the same folder")
    with_map(lambda names: names.update({"more.weight": "model-00001-of-00002.safetensors"}))
    refused(folder, "model-00001-of-00002.safetensors: tensor more.weight is missing")
    index.write_text(json.dumps(value | {"weight_map": []}))
    refused(folder, "expected an object weight_map")


def test_a_tensor_that_two_files_have(tmp_path: Path, tensors: Tensors) -> None:
    folder = save_without_torch(tmp_path, LLAMA, shards=2)
    write_safetensors(folder / "model-00001-of-00002.safetensors", tensors)
    refused(folder, "is in model-00001-of-00002.safetensors too")


def test_no_file_is_replaced(tmp_path: Path, tensors: Tensors) -> None:
    folder = write(tmp_path, tensors)
    convert(folder, tmp_path / "m.gguf")
    for name in ("model.safetensors", "config.json", "m.gguf"):
        before = (folder / name).read_bytes()
        with pytest.raises(CheckpointError, match=f"{name}: already exists"):
            convert(folder, folder / name)
        assert (folder / name).read_bytes() == before
    (tmp_path / "empty.gguf").touch()
    assert convert(folder, tmp_path / "empty.gguf").num_bytes > 1000


def test_options_that_contradict_each_other(tmp_path: Path, tensors: Tensors) -> None:
    folder = write(tmp_path, tensors)
    refused(folder, "outtype 'q4' is not", error=UnsupportedError, outtype="q4")
    refused(folder, "no predictors", error=UnsupportedError, predictors=folder, is_plain=True)


@pytest.mark.slow
@pytest.mark.measured
def test_a_missing_expert(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    from safetensors.numpy import load_file

    from converted_cases import save_as_transformers

    folder = save_as_transformers(tmp_path, CASES["mixtral"])
    path = folder / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.1.block_sparse_moe.experts.2.w2.weight"
    held = tensors.pop(name)
    write_safetensors(path, tensors)
    refused(folder, "3 experts have such a tensor", "says 4", "expert 2 is missing")
    write_safetensors(path, tensors | {name: held[:, :-1]})
    refused(folder, "[64, 95], that of another expert f32 [64, 96]")
    more = name.replace("experts.2", "experts.4")
    write_safetensors(path, tensors | {name: held, more: held})
    refused(folder, "5 experts have such a tensor")


class _RunsCode:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("pickle-ran-code",)


def as_bin(folder: Path, state: object) -> Path:
    """Write the weights as torch does, beside a configuration."""
    import torch

    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    torch.save(state, folder / "pytorch_model.bin")
    return folder


def test_torch_files_hold_the_same_numbers(tmp_path: Path, tensors: Tensors) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    files = []
    for kind in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        state = {name: torch.from_numpy(values).to(kind) for name, values in tensors.items()}
        folder = as_bin(tmp_path / str(kind), state)
        report = convert(folder, tmp_path / f"{kind}.gguf", outtype="f32")
        files.append(open_gguf(report.path))
        expected = state[DOWN].float().numpy()
        np.testing.assert_array_equal(files[-1].tensors["blk.1.ffn_down.weight"].decode(), expected)
    other = convert(write(tmp_path / "safe", tensors), tmp_path / "safe.gguf").path
    assert other.read_bytes()[-10000:] == files[0].path.read_bytes()[-10000:]


def test_torch_files_of_before_version_1_6(tmp_path: Path, tensors: Tensors) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    state = {name: torch.from_numpy(values) for name, values in tensors.items()}
    folder = as_bin(tmp_path, state)
    torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert convert(folder, tmp_path / "m.gguf").architecture == "llama"


def test_pickles_that_would_run_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.chdir(tmp_path)
    folder = as_bin(tmp_path, {DOWN: _RunsCode()})
    refused(folder, "pytorch_model.bin: refused", "would run code")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(_RunsCode(), protocol=2))
    refused(folder, "pytorch_model.bin: refused", "would run code")
    assert not (tmp_path / "pickle-ran-code").exists()


def test_torch_files_without_tensors(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    refused(as_bin(tmp_path, [1, 2]), "expected tensors by name, got list")
    refused(as_bin(tmp_path, {DOWN: 3}), DOWN, "expected a dense tensor")
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK\x03\x04 nothing else")
    refused(tmp_path, "pytorch_model.bin: torch cannot read it")


def test_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tensors: Tensors) -> None:
    folder = write(tmp_path, tensors)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    monkeypatch.setitem(sys.modules, "torch", None)
    said = "or convert a checkpoint of safetensors files"
    refused(folder, "needs torch", "install the extra", said, error=DeviceError)
    # Predictors have no other form.
    with pytest.raises(DeviceError, match="needs torch") as caught:
        read_torch_file(tmp_path / "model_0.pt")
    assert said not in str(caught.value)
