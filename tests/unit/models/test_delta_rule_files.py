"""Files of Qwen3.5: sizes and tensors that do not fit, and blocks that predict further tokens."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import assert_error, invoke
from powerinfer.errors import GGUFError
from powerinfer.gguf import GGUFFile, Tensor, TensorSpec, encode_tensor, open_gguf
from powerinfer.models import Model, load_model
from powerinfer.models.mixers import AttentionWeights, DeltaRuleWeights
from powerinfer.ops.backend import as_backend
from powerinfer.ops.reference.ops import ReferenceOps
from rewritten_models import rewrite, rewrite_all, spec
from tiny_models import TINY_MODELS, Stream, TinyModel, write_model

DENSE, EXPERTS = TINY_MODELS["qwen35"], TINY_MODELS["qwen35moe"]
TOKEN_IDS = [5, 9, 200, 31, 7, 88, 12]


def load(file: GGUFFile) -> Model:
    return load_model(file, as_backend(ReferenceOps()))


def logits(model: Model) -> np.ndarray:
    cache = model.new_cache()
    return model.forward(cache.batch([(0, TOKEN_IDS, 0)], [True]), cache)


def with_keys(folder: Path, keys: dict[str, Any], model: TinyModel = DENSE) -> GGUFFile:
    full = {f"{model.architecture}.{key}": value for key, value in keys.items()}
    return rewrite(folder, model, spec, metadata=full)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"ssm.time_step_rank": 5},
            r"ssm\.time_step_rank is 5; expected a multiple of the 2 key heads",
        ),
        ({"ssm.group_count": 3}, r"ssm\.time_step_rank is 4; .* the 3 key heads"),
        ({"ssm.group_count": 0}, r"ssm\.group_count is 0; expected an integer from 1"),
        ({"ssm.inner_size": 33}, r"ssm\.inner_size is 33; expected 4 value heads of width 8"),
        ({"ssm.conv_kernel": None}, r"ssm\.conv_kernel"),
        ({"ssm.conv_kernel": 1}, r"ssm\.conv_kernel is 1; expected an integer from 2"),
        ({"ssm.state_size": 1 << 40}, r"ssm\.state_size is 1099511627776"),
        (
            {"attention.recurrent_layers": np.array([True, False])},
            r"attention\.recurrent_layers has 2 flags; expected one for each of 3 layers",
        ),
        ({"attention.recurrent_layers": np.ones(3, bool)}, "leaves no layer with attention"),
        ({"full_attention_interval": 4}, "leaves no layer with attention"),
        ({"full_attention_interval": 0}, "full_attention_interval is 0"),
        ({"nextn_predict_layers": 3}, r"nextn_predict_layers is 3; expected .* from 0 to 2"),
    ],
)
def test_keys(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match=message) as caught:
        load(with_keys(tmp_path, keys))
    path = tmp_path / "changed.gguf"
    assert str(path) in str(caught.value)
    assert_error(invoke("run", "-m", path, "-p", "ab", "-n", "1"), str(caught.value))


@pytest.mark.parametrize(
    "name",
    ["ssm_conv1d.weight", "ssm_a", "ssm_dt.bias", "ssm_norm.weight", "attn_qkv.weight"],
)
def test_a_missing_tensor(name: str, tmp_path: Path) -> None:
    def change(tensor: Tensor) -> TensorSpec | None:
        return None if tensor.name == f"blk.2.{name}" else spec(tensor)

    with pytest.raises(GGUFError, match=rf"missing tensors: blk\.2\.{name}"):
        load(rewrite(tmp_path, DENSE, change))


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("blk.0.ssm_conv1d.weight", r"\[63, 4\], not \[64, 4\]"),
        ("blk.0.ssm_a", r"\[3\], not \[4\]"),
        ("blk.1.attn_q.weight", r"\[127, 32\], not \[128, 32\]"),
    ],
)
def test_a_tensor_of_another_shape(name: str, problem: str, tmp_path: Path) -> None:
    def change(tensor: Tensor) -> TensorSpec:
        return encode_tensor(name, tensor.decode()[:-1]) if tensor.name == name else spec(tensor)

    with pytest.raises(GGUFError, match=f"{name} {problem}"):
        load(rewrite(tmp_path, DENSE, change))


def test_layers_are_those_of_the_interval_or_the_flags(tmp_path: Path) -> None:
    flags = {"attention.recurrent_layers": np.array([False, True, False])}
    for model, wanted in (
        (load(open_gguf(write_model(tmp_path / "m.gguf", DENSE))), [0, 2]),
        (load(open_gguf(write_model(tmp_path / "n.gguf", replace(DENSE, num_layers=2)))), [0]),
    ):
        kinds = [type(layer.mixer) for layer in model.weights.layers]
        assert [n for n, kind in enumerate(kinds) if kind is DeltaRuleWeights] == wanted
        assert set(kinds) == {DeltaRuleWeights, AttentionWeights}
    with pytest.raises(GGUFError, match=r"blk\.0\.attn_q"):
        load(with_keys(tmp_path, flags))


def test_a_row_of_a_gate_may_be_stored_as_a_vector(tmp_path: Path) -> None:
    def change(tensor: Tensor) -> TensorSpec:
        is_gate = tensor.name.endswith("gate_inp_shexp.weight")
        return encode_tensor(tensor.name, tensor.decode()[0]) if is_gate else spec(tensor)

    changed = load(rewrite(tmp_path, EXPERTS, change))
    plain = load(open_gguf(tmp_path / "plain.gguf"))
    np.testing.assert_array_equal(logits(changed), logits(plain))


@pytest.mark.parametrize("model", [DENSE, EXPERTS], ids=["dense", "experts"])
def test_blocks_that_predict_further_tokens_are_not_run(model: TinyModel, tmp_path: Path) -> None:
    """They come last, are counted as blocks, and look like a layer with attention."""

    def change(tensor: Tensor) -> list[TensorSpec]:
        if not tensor.name.startswith("blk.1."):
            return [spec(tensor)]
        name = tensor.name.replace("blk.1.", f"blk.{model.num_layers}.")
        return [spec(tensor), (name, *spec(tensor)[1:])]

    keys = {"block_count": model.num_layers + 1, "nextn_predict_layers": 1}
    full = {f"{model.architecture}.{key}": value for key, value in keys.items()}
    whole = load(rewrite_all(tmp_path, model, change, metadata=full))
    plain = load(open_gguf(tmp_path / "plain.gguf"))
    assert whole.config.num_layers == model.num_layers
    np.testing.assert_array_equal(logits(whole), logits(plain))
    said = invoke("inspect", tmp_path / "changed.gguf").stdout
    assert "MTP blocks" in said and "1 at the end" in said
    assert "MTP" not in invoke("inspect", tmp_path / "plain.gguf").stdout
    packed, smaller = tmp_path / "packed.gguf", tmp_path / "smaller.gguf"
    assert invoke("pack", tmp_path / "changed.gguf", "-o", packed).exit_code == 0
    assert invoke("quantize", tmp_path / "changed.gguf", smaller, "Q8_0").exit_code == 0
    np.testing.assert_array_equal(logits(load(open_gguf(packed))), logits(plain))
    assert load(open_gguf(smaller)).config.num_layers == model.num_layers
    for path in (packed, smaller):
        assert "1 at the end" in invoke("inspect", path).stdout


def test_a_shared_expert_is_weighted_by_the_sigmoid_of_its_gate(tmp_path: Path) -> None:
    file = open_gguf(write_model(tmp_path / "m.gguf", EXPERTS))
    model = load(file)
    shared = model.weights.layers[1].shared_ffn
    assert shared is not None
    x = Stream(3).numbers((5, EXPERTS.hidden_size), 1.0)
    experts, weights = model.ops.route(x, shared)
    row = file.tensors["blk.1.ffn_gate_inp_shexp.weight"].decode()[0]
    np.testing.assert_allclose(weights[:, 0], 1 / (1 + np.exp(-x @ row)), rtol=1e-5)
    assert not experts.any()
    plain = model.ops.ffn_weights(replace(shared, router=None, native=None))
    expected = weights * model.ops.to_host(model.ops.ffn(x, plain))
    np.testing.assert_allclose(model.ops.to_host(model.ops.ffn(x, shared)), expected, atol=1e-6)
