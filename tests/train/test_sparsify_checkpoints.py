"""Checkpoints in and out: loaded, refused, saved so that `convert` gives the same logits."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

import torch

from powerinfer.convert import planning
from powerinfer.convert.convert import convert
from powerinfer.errors import CheckpointError, NumericsError, PowerInferError
from powerinfer.gguf import open_gguf
from powerinfer.models import load_model as load_gguf
from powerinfer.ops.backend import as_backend
from powerinfer.ops.reference.ops import ReferenceOps
from powerinfer.train.sparsify.model import SparseModel, load_model, random_model, set_activation
from powerinfer.train.sparsify.saving import save
from sparsify_cases import LLAMA, MISTRAL, random_tokens
from tolerances import assert_close

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SHAPES: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "tied": LLAMA | {"tie_word_embeddings": True},
    "llama3-rope": LLAMA | {"rope_scaling": LLAMA3},
    "llama-with-a-window-it-ignores": LLAMA | {"sliding_window": 5},
    "mistral": MISTRAL,
    "mistral-without-window": MISTRAL | {"sliding_window": None},
    "yarn": MISTRAL | {"rope_scaling": YARN},
}
TOKENS = random_tokens(24)


@pytest.fixture(autouse=True)
def _without_tokenizers(monkeypatch: pytest.MonkeyPatch) -> None:
    """These checkpoints have none."""
    monkeypatch.setattr(planning, "read_tokenizer", lambda _folder, _num_rows: {})
    monkeypatch.setattr(planning, "check_tokenizer", lambda _folder, _metadata: None)


def _model(config: dict[str, Any], activation: str = "drelu") -> SparseModel:
    model = random_model(config, 1)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.mul_(4.0) if parameter.ndim > 1 else parameter.mul_(1.3)
    set_activation(model, activation)  # type: ignore[arg-type]
    return model


def _logits(model: SparseModel) -> npt.NDArray[np.float32]:
    with torch.no_grad():
        return model.logits(torch.from_numpy(TOKENS.astype("i8"))[None])[0].numpy()


@pytest.mark.parametrize("activation", ["silu", "relu", "drelu"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_saved_checkpoint_converts_to_the_same_logits(
    shape: str, activation: str, tmp_path: Path
) -> None:
    model = _model(SHAPES[shape], activation)
    wanted = _logits(model)
    save(model, None, tmp_path / "out")
    np.testing.assert_array_equal(_logits(load_model(tmp_path / "out")), wanted)
    report = convert(tmp_path / "out", tmp_path / "m.gguf")
    assert report.architecture == ("bamboo" if activation == "drelu" else "llama")
    file = open_gguf(tmp_path / "m.gguf")
    read = load_gguf(file, as_backend(ReferenceOps()))
    assert str(read.config.activation) == activation
    cache = read.new_cache()
    got = read.forward(cache.batch([(0, TOKENS.tolist(), 0)], [True]), cache)
    assert_close(got, wanted[-len(got) :], "transformers")


def test_our_attention_is_that_of_transformers() -> None:
    for config in SHAPES.values():
        model = _model(config, "silu")
        wanted = _logits(model)
        model.network.set_attn_implementation("eager")
        np.testing.assert_allclose(_logits(model), wanted, atol=2e-4)


def test_the_activations_are_those_of_numpy() -> None:
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
    for name in ("silu", "relu", "drelu"):
        ffn = _model(LLAMA, name).ffns[0]
        gate = x.numpy() @ ffn.gate_proj.weight.detach().numpy().T
        up = x.numpy() @ ffn.up_proj.weight.detach().numpy().T
        wanted = {
            "silu": gate / (1 + np.exp(-gate)) * up,
            "relu": np.maximum(gate, 0) * up,
            "drelu": np.maximum(gate, 0) * np.maximum(up, 0),
        }[name]
        np.testing.assert_allclose(ffn.neurons(x).detach().numpy(), wanted, atol=1e-5)


def test_a_drelu_checkpoint_is_no_swiglu_checkpoint(tmp_path: Path) -> None:
    save(_model(LLAMA | {"auto_map": {"AutoModel": "code.Model"}}), None, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "bamboo"
    assert config["architectures"] == ["BambooForCausalLM"]
    assert config["a_foreign_key"] == {"kept": True}
    assert "auto_map" not in config
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    with pytest.raises(ValueError, match="bamboo"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_weights_are_saved_in_the_type_of_the_source(dtype: str, tmp_path: Path) -> None:
    save(_model(LLAMA | {"torch_dtype": dtype}), None, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["torch_dtype"], "dtype" in config) == (dtype, False)
    again = load_model(tmp_path)
    assert str(again.dtype) == f"torch.{dtype}"
    assert all(p.dtype == torch.float32 for p in again.network.parameters())
    before = (tmp_path / "model.safetensors").read_bytes()
    save(again, None, tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_tokenizer_files_are_copied_and_the_configuration_comes_last(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    (source / "tokenizer.json").write_text("{}")
    (source / "other.txt").write_text("x")
    save(_model(LLAMA), source, target)
    names = sorted(path.name for path in target.iterdir())
    assert names == ["config.json", "model.safetensors", "tokenizer.json"]
    times = [(target / name).stat().st_mtime_ns for name in names]
    assert times[0] == max(times)


def test_a_weight_that_does_not_fit_the_type_is_refused(tmp_path: Path) -> None:
    model = _model(LLAMA | {"dtype": "float16"})
    with torch.no_grad():
        model.network.model.norm.weight[0] = 1e6
    with pytest.raises(NumericsError, match=r"tensor model\.norm\.weight is not finite as"):
        save(model, None, tmp_path / "out")
    assert not (tmp_path / "out" / "config.json").exists()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"num_local_experts": 8}, "num_local_experts is 8; supported: models without experts"),
        ({"model_type": "qwen2"}, "model_type is 'qwen2'; supported: llama, mistral, bamboo"),
        ({"attention_bias": True}, "attention_bias is True; supported: false"),
        ({"mlp_bias": True}, "mlp_bias is True"),
        ({"quantization_config": {"quant_method": "gptq"}}, "its weights are quantized"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; supported: silu"),
        ({"hidden_size": "64"}, "key hidden_size is '64'; expected an integer"),
        ({"num_attention_heads": 5}, "cannot be loaded"),
        ({"rope_scaling": {"rope_type": "magic"}}, "cannot be loaded"),
        ({"intermediate_size": 95}, "has another shape than config.json says"),
        ({"num_hidden_layers": 3}, "tensor model.layers.2.* is missing"),
        ({"num_hidden_layers": 1}, "tensor model.layers.1.* is none of a Llama or Mistral"),
    ],
)
def test_other_checkpoints_are_refused(
    changes: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    save(_model(LLAMA, "silu"), None, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(PowerInferError, match=problem) as caught:
        load_model(tmp_path)
    assert "\n" not in str(caught.value)


def test_damaged_checkpoints_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        load_model(tmp_path / "missing")
    save(_model(LLAMA, "silu"), None, tmp_path)
    weights = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights[:5000])
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        load_model(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"cannot be loaded: .*model\.safetensors"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="is not JSON"):
        load_model(tmp_path)
