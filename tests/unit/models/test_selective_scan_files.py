"""Files of Mamba-2, Nemotron-H and Granite 4.0 H: what does not fit, and layers of one part."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import assert_error, invoke, run_json
from powerinfer.errors import GGUFError, UnsupportedError
from powerinfer.gguf import GGUFFile, Tensor, TensorSpec, encode_tensor, open_gguf
from powerinfer.models import Model, kv_bytes_per_position, load_model, sequence_bytes
from powerinfer.models.architectures.mamba2 import check_steps
from powerinfer.models.blocks import Stage
from powerinfer.models.checkpoints.config import CheckpointConfig
from powerinfer.models.mixers import AttentionWeights
from powerinfer.models.selective_scan import SelectiveScanMixer, SelectiveScanWeights
from powerinfer.models.sparsity import layers_to_count
from powerinfer.ops.backend import as_backend
from powerinfer.ops.protocol import KVType
from powerinfer.ops.reference.ops import ReferenceKV, ReferenceOps, ReferenceState
from rewritten_models import rewrite, spec
from tiny_models import TINY_MODELS, TinyModel, write_model

MAMBA2, NEMOTRON_H = TINY_MODELS["mamba2"], TINY_MODELS["nemotron_h"]
GRANITE, EXPERTS = TINY_MODELS["granitehybrid"], TINY_MODELS["nemotron_h_moe"]
TOKEN_IDS = [5, 9, 200, 31, 7, 88, 12]


def load(file: GGUFFile) -> Model:
    return load_model(file, as_backend(ReferenceOps()))


def plain(folder: Path, model: TinyModel) -> Model:
    return load(open_gguf(write_model(folder / "plain.gguf", model)))


def logits(model: Model) -> np.ndarray:
    cache = model.new_cache()
    return model.forward(cache.batch([(0, TOKEN_IDS, 0)], [True]), cache)


def with_keys(folder: Path, keys: dict[str, Any], model: TinyModel) -> GGUFFile:
    full = {f"{model.architecture}.{key}": value for key, value in keys.items()}
    return rewrite(folder, model, spec, metadata=full)


@pytest.mark.parametrize(
    ("model", "keys", "message"),
    [
        (
            MAMBA2,
            {"ssm.group_count": 3},
            r"ssm\.time_step_rank is 4; .* the 3 groups",
        ),
        (MAMBA2, {"ssm.group_count": 0}, r"ssm\.group_count is 0; expected an integer from 1"),
        (MAMBA2, {"ssm.inner_size": 63}, r"ssm\.inner_size is 63; expected a multiple of 4 heads"),
        (MAMBA2, {"ssm.state_size": None}, r"ssm\.state_size"),
        (MAMBA2, {"ssm.conv_kernel": 17}, r"ssm\.conv_kernel is 17; .* from 2 to 16"),
        (NEMOTRON_H, {"ssm.conv_kernel": 1}, r"ssm\.conv_kernel is 1; .* from 2 to 16"),
        (GRANITE, {"ssm.time_step_rank": 1 << 30}, r"ssm\.time_step_rank is 1073741824"),
        (
            NEMOTRON_H,
            {"feed_forward_length": np.array([0, 48], np.int32)},
            r"feed_forward_length has 2 values .* each of 5 layers",
        ),
        (
            NEMOTRON_H,
            {"attention.head_count_kv": np.zeros(5, np.int32)},
            r"head_count_kv is 0 in all layers",
        ),
        (EXPERTS, {"expert_used_count": np.zeros(4, np.int32)}, "expert_used_count is 0 in all"),
        (
            EXPERTS,
            {"expert_used_count": np.array([0, 9, 0, 2], np.int32)},
            "expert_used_count is 9 in layer 1; expected an integer from 0 to 5",
        ),
        (
            EXPERTS,
            {"expert_feed_forward_length": np.array([0, 48, 0, 0], np.int32)},
            "expert_feed_forward_length is 0 in layer 3, which has an FFN",
        ),
        (EXPERTS, {"expert_group_count": 2}, "expert_group_count is 2"),
        (
            NEMOTRON_H,
            {"attention.layer_norm_rms_epsilon": None, "attention.layer_norm_epsilon": None},
            r"attention\.layer_norm_rms_epsilon",
        ),
    ],
)
def test_keys(model: TinyModel, keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises((GGUFError, UnsupportedError), match=message) as caught:
        load(with_keys(tmp_path, keys, model))
    path = tmp_path / "changed.gguf"
    assert str(path) in str(caught.value)
    assert_error(invoke("run", "-m", path, "-p", "ab", "-n", "1"), str(caught.value))


def narrowed(tensor: Tensor) -> TensorSpec:
    """In layer 3, without the last 8 neurons of each FFN or expert."""
    if not tensor.name.startswith(("blk.3.ffn_up_exps", "blk.3.ffn_down_exps", "blk.4.ffn")):
        return spec(tensor)
    values = tensor.decode()
    kept = values[..., :40] if "down" in tensor.name else values[..., :40, :]
    return encode_tensor(tensor.name, np.ascontiguousarray(kept))


def zeroed(tensor: Tensor) -> TensorSpec:
    """The same, with neurons that never fire in their place."""
    if not tensor.name.startswith(("blk.3.ffn_up_exps", "blk.4.ffn_up")):
        return spec(tensor)
    values = tensor.decode().copy()
    values[..., 40:, :] = 0
    return encode_tensor(tensor.name, values)


def test_ffns_may_have_different_sizes(tmp_path: Path) -> None:
    sizes = {"nemotron_h.feed_forward_length": np.array([0, 0, 48, 0, 40], np.int32)}
    model = load(rewrite(tmp_path, NEMOTRON_H, narrowed, metadata=sizes))
    wide = load(rewrite(tmp_path, NEMOTRON_H, zeroed))
    np.testing.assert_allclose(logits(model), logits(wide), atol=1e-6)
    assert model.config.intermediate_size == 48
    with pytest.raises(UnsupportedError, match="have different sizes"):
        layers_to_count(model.config)


def test_experts_may_have_different_sizes_and_numbers(tmp_path: Path) -> None:
    """As in Puzzle models, whose arrays also name the blocks that are not run."""
    keys: dict[str, Any] = {
        "block_count": 5,
        "nextn_predict_layers": 1,
        "attention.head_count_kv": np.array([0, 0, 2, 0, 2], np.int32),
        "feed_forward_length": np.array([0, 48, 0, 40, 48], np.int32),
        "expert_feed_forward_length": np.array([0, 48, 0, 40, 48], np.int32),
        "expert_used_count": np.array([0, 3, 0, 2, 2], np.int32),
    }
    full = {f"nemotron_h_moe.{key}": value for key, value in keys.items()}
    model = load(rewrite(tmp_path, EXPERTS, narrowed, metadata=full))
    routers = [layer.own_ffn and layer.own_ffn.router for layer in model.weights.layers]
    assert [router and router.num_used for router in routers] == [None, 3, None, 2]
    assert (model.config.num_layers, model.config.num_nextn_layers) == (4, 1)
    assert model.config.experts is not None and model.config.experts.num_used == 3
    plain_keys = {"nemotron_h_moe.expert_used_count": keys["expert_used_count"][:4]}
    wide = load(rewrite(tmp_path, EXPERTS, zeroed, metadata=plain_keys))
    np.testing.assert_allclose(logits(model), logits(wide), atol=1e-6)


@pytest.mark.parametrize(
    "name",
    [
        *("ssm_in.weight", "ssm_conv1d.weight", "ssm_a", "ssm_d"),
        *("ssm_dt.bias", "ssm_norm.weight", "ssm_out.weight"),
    ],
)
def test_a_missing_tensor(name: str, tmp_path: Path) -> None:
    def change(tensor: Tensor) -> TensorSpec | None:
        return None if tensor.name == f"blk.3.{name}" else spec(tensor)

    with pytest.raises(GGUFError, match=rf"missing tensors: blk\.3\.{name}"):
        load(rewrite(tmp_path, NEMOTRON_H, change))


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("blk.0.ssm_a", r"\[3, 1\], not \[4, 1\]"),
        ("blk.0.ssm_norm.weight", r"\[1, 16\], not \[2, 16\]"),
        ("blk.0.ssm_conv1d.bias", r"\[95\], not \[96\]"),
        ("blk.2.ffn_up.weight", r"\[47, 32\], not \[48, 32\]"),
    ],
)
def test_a_tensor_of_another_shape(name: str, problem: str, tmp_path: Path) -> None:
    def change(tensor: Tensor) -> TensorSpec:
        return encode_tensor(name, tensor.decode()[:-1]) if tensor.name == name else spec(tensor)

    with pytest.raises(GGUFError, match=f"{name} {problem}"):
        load(rewrite(tmp_path, NEMOTRON_H, change))


def test_a_convolution_may_have_no_bias(tmp_path: Path) -> None:
    def without(tensor: Tensor) -> TensorSpec | None:
        return None if tensor.name.endswith("conv1d.bias") else spec(tensor)

    def zero(tensor: Tensor) -> TensorSpec:
        is_bias = tensor.name.endswith("conv1d.bias")
        return encode_tensor(tensor.name, 0 * tensor.decode()) if is_bias else spec(tensor)

    found = load(rewrite(tmp_path, MAMBA2, without))
    np.testing.assert_array_equal(logits(found), logits(load(rewrite(tmp_path, MAMBA2, zero))))
    mixer = found.weights.layers[0].mixer
    assert isinstance(mixer, SelectiveScanWeights)
    assert mixer.scan.conv_bias is None and len(mixer.vectors) == 5


def test_a_layer_of_nemotron_has_one_part(tmp_path: Path) -> None:
    model = plain(tmp_path, NEMOTRON_H)
    kinds = [type(layer.own_mixer) for layer in model.weights.layers]
    nothing = type(None)
    scan, attention = SelectiveScanWeights, AttentionWeights
    assert kinds == [scan, attention, nothing, scan, nothing]
    has_ffn = [layer.own_ffn is not None for layer in model.weights.layers]
    assert has_ffn == [kind is nothing for kind in kinds]
    assert set(model.config.state_mixers) == {0, 3}
    assert len(model.config.attention_layers) == 1
    assert model.layer_kinds == ("off", "off", "exact", "off", "exact")
    assert model.ffn_bytes == 2 * 2 * 4 * 32 * 48
    layers = model.new_cache().layers
    assert [type(layer) for layer in layers if layer is not None] == [
        ReferenceState,
        ReferenceKV,
        ReferenceState,
    ]
    for layer, part in ((2, "mixer"), (0, "ffn")):
        with pytest.raises(TypeError, match="the layer has no"):
            getattr(model.weights.layers[layer], part)
    assert model.config.counted_layers == layers_to_count(model.config) == [2, 4]


def test_mamba_2_has_neither_attention_nor_ffns(tmp_path: Path) -> None:
    model = plain(tmp_path, MAMBA2)
    config = model.config
    mixer = SelectiveScanMixer(2, 4, 16, 8, 4, config.norm_eps)
    assert config.state_mixers == {0: mixer, 1: mixer}
    assert (config.num_heads, config.intermediate_size, config.rope) == (0, 0, None)
    assert kv_bytes_per_position(config, KVType.F16) == 0
    assert sequence_bytes(config, 9, KVType.F16) == config.state_bytes
    assert config.state_bytes == 2 * 4 * (3 * (64 + 2 * 2 * 8) + 64 * 8)
    assert model.ffn_bytes == model.used_ffn_bytes == 0


def test_commands_name_no_ffn_where_there_is_none(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", MAMBA2)
    ran = invoke("run", "-m", path, "-p", "ab", "-n", "1")
    assert ran.exit_code == 0
    assert "mamba2, 2 layers, no FFN; " in ran.stderr
    found = run_json("inspect", path)
    assert found["ffn"]["activation"] is found["ffn"]["is_sparse"] is None
    shown = invoke("inspect", path).stdout.partition("metadata")[0]
    assert not any(word in shown for word in ("activation", "heads", "head dim", "intermediate"))


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("run", "-p", "ab", "--sparsity", "exact"), "no neuron can be skipped: leave --sparsity"),
        (("run", "-p", "ab", "--recall", "0.9"), "no neuron can be skipped: leave --recall out"),
        (
            ("run", "-p", "ab", "--activation-threshold", "0.1"),
            "no neuron can be skipped: leave --activation-threshold out",
        ),
        (("calibrate",), "there is nothing to calibrate: the model has no FFN"),
    ],
)
def test_nothing_is_skipped_without_ffns(
    command: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    path = write_model(tmp_path / "m.gguf", MAMBA2)
    assert_error(invoke(*command, "-m", path), message)


def test_observers_see_the_parts_that_layers_have(tmp_path: Path) -> None:
    seen: list[tuple[int, Stage]] = []
    model = plain(tmp_path, NEMOTRON_H)
    cache = model.new_cache()
    batch = cache.batch([(0, TOKEN_IDS, 0)], [True])
    model.forward(batch, cache, observe=lambda stage, number, _: seen.append((number, stage)))
    mixer = [Stage.ATTENTION_INPUT, Stage.ATTENTION_MIX, Stage.ATTENTION, Stage.FFN]
    ffn = [Stage.FFN_INPUT, Stage.PREDICTOR_INPUT, Stage.FFN_OUTPUT, Stage.FFN]
    expected = [mixer, mixer, ffn, mixer, ffn]
    assert seen == [(n, stage) for n, stages in enumerate(expected) for stage in stages]


@pytest.mark.parametrize(
    "name", ["mamba2", "nemotron_h", "nemotron_h-biases", "nemotron_h_moe-latent", "granitehybrid"]
)
def test_steps_of_any_length_compute_the_same(name: str, tmp_path: Path) -> None:
    model = plain(tmp_path, TINY_MODELS[name])
    cache = model.new_cache()
    parts = [
        model.forward(cache.batch([(0, TOKEN_IDS[first:end], first)], [first == 0]), cache)
        for first, end in ((0, 3), (3, 4), (4, 5), (5, 7))
    ]
    np.testing.assert_array_equal(np.concatenate(parts), logits(model))
    wanted = np.array([6], np.int32)
    cache = model.new_cache()
    batch = cache.batch([(0, TOKEN_IDS, 0)], [True])
    last = model.forward(batch, cache, logits_for=wanted)
    np.testing.assert_array_equal(last, logits(model)[6:])


def test_granite_rotates_if_its_file_says_so(tmp_path: Path) -> None:
    def rope(value: bool | None) -> object:
        return load(with_keys(tmp_path, {"rope.scaling.finetuned": value}, GRANITE)).config.rope

    assert rope(value=False) is None
    assert rope(value=True) == rope(value=None) != None  # noqa: E711


def test_the_epsilon_of_layer_norms_serves_too(tmp_path: Path) -> None:
    """As in files that llama.cpp's converter made of configurations with one of two names."""
    keys = {"attention.layer_norm_rms_epsilon": None, "attention.layer_norm_epsilon": 1e-5}
    changed = load(with_keys(tmp_path, keys, NEMOTRON_H))
    np.testing.assert_array_equal(logits(changed), logits(plain(tmp_path, NEMOTRON_H)))


@pytest.mark.parametrize(
    "model", [MAMBA2, NEMOTRON_H, EXPERTS, GRANITE], ids=lambda each: each.architecture
)
def test_commands_take_them(model: TinyModel, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", model)
    assert "state layers" in invoke("inspect", path).stdout
    assert "stay on the CPU" in invoke("plan", "-m", path).stdout
    small = tmp_path / "q.gguf"
    assert invoke("quantize", path, small, "Q8_0").exit_code == 0
    formats = {name: tensor.format for name, tensor in open_gguf(small).tensors.items()}
    assert {formats["blk.0.ssm_norm.weight"], formats["blk.0.ssm_a"]} == {"f32"}
    assert formats["blk.0.ssm_in.weight"] == formats["blk.0.ssm_out.weight"] == "q8_0"
    assert np.isfinite(logits(load(open_gguf(small)))).all()


def test_checkpoints_that_clamp_steps_are_refused() -> None:
    def check(limits: object) -> None:
        check_steps(CheckpointConfig("config.json", {"time_step_limit": limits}))

    check(None)
    check([0.0, math.inf])
    check([0.0, {"__float__": "Infinity"}])
    with pytest.raises(UnsupportedError, match="time_step_limit is"):
        check([0.001, math.inf])
