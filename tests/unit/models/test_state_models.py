"""Models with layers that keep a state: sizes, caches, and files that contradict themselves."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from command_line import invoke
from powerinfer.calibration.recall import RecallMeter, with_recall_meter
from powerinfer.calibration.window_pass import run_windows
from powerinfer.errors import GGUFError, UnsupportedError
from powerinfer.gguf import open_gguf
from powerinfer.models import Model, kv_bytes_per_position, load_model, sequence_bytes
from powerinfer.models.blocks import Stage
from powerinfer.models.mixers import AttentionWeights, ShortConvMixer, ShortConvWeights
from powerinfer.offload.problem import placement_task
from powerinfer.ops.protocol import KVType
from powerinfer.ops.reference.ops import ReferenceKV, ReferenceOps, ReferenceState
from powerinfer.values import FloatArray
from rewritten_models import rewrite, spec
from tiny_models import TINY_MODELS, write_model

LFM2 = TINY_MODELS["lfm2"]
TOKEN_IDS = [5, 90, 17, 260, 33, 71, 8]


def lfm2(tmp_path: Path, name: str = "lfm2") -> Model:
    return load_model(
        open_gguf(write_model(tmp_path / "m.gguf", TINY_MODELS[name])), ReferenceOps()
    )


def test_layers_without_key_heads_convolve(tmp_path: Path) -> None:
    config = lfm2(tmp_path).config
    mixer = ShortConvMixer(LFM2.hidden_size, 3)
    assert config.state_mixers == {0: mixer, 2: mixer}
    assert (config.num_kv_heads, len(config.attention_layers)) == (2, 1)
    assert config.state_bytes == 2 * 2 * LFM2.hidden_size * 4


def test_only_layers_with_attention_have_keys_and_values(tmp_path: Path) -> None:
    model = lfm2(tmp_path)
    kinds = [type(layer) for layer in model.new_cache(num_slots=5).layers]
    assert kinds == [ReferenceState, ReferenceKV, ReferenceState]
    row = 2 * LFM2.num_kv_heads * LFM2.head_dim * 2
    assert kv_bytes_per_position(model.config, KVType.F16) == row
    assert sequence_bytes(model.config, 7, KVType.F16) == 7 * row + model.config.state_bytes
    assert model.config.num_attended(7) == 7


def test_models_without_state_have_no_slots(tmp_path: Path) -> None:
    assert lfm2(tmp_path, "qwen3").new_cache().states is None


def test_each_layer_says_what_its_mixer_reads(tmp_path: Path) -> None:
    file = open_gguf(write_model(tmp_path / "m.gguf", LFM2))
    model = load_model(file, ReferenceOps())
    kinds = [type(layer.mixer) for layer in model.weights.layers]
    assert kinds == [ShortConvWeights, AttentionWeights, ShortConvWeights]
    # The head is the embedding, of which a token reads a row.
    once = sum(len(tensor.data) for name, tensor in file.tensors.items() if "ffn_" not in name)
    norms = 3 * 4 * LFM2.hidden_size
    row = 4 * LFM2.hidden_size
    assert model.dense_bytes == once + norms + row
    for number, layer in enumerate(model.weights.layers):
        for name in (*layer.mixer.input_names, layer.mixer.output_name):
            assert f"blk.{number}.{name}.weight" in file.tensors


def test_steps_of_any_length_compute_the_same(tmp_path: Path) -> None:
    for name in ("lfm2", "lfm2-last-attends", "lfm2moe"):
        model = lfm2(tmp_path, name)
        cache = model.new_cache()
        whole = model.forward(cache.batch([(0, TOKEN_IDS, 0)], [True]), cache)
        cache = model.new_cache()
        parts = [
            model.forward(cache.batch([(0, TOKEN_IDS[first:end], first)], [first == 0]), cache)
            for first, end in ((0, 3), (3, 4), (4, 5), (5, 7))
        ]
        np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_observers_see_the_inputs_of_a_convolution(tmp_path: Path) -> None:
    model, seen = lfm2(tmp_path), dict[tuple[Stage, int], FloatArray]()
    cache = model.new_cache()
    batch = cache.batch([(0, TOKEN_IDS, 0)], [True])
    model.forward(batch, cache, observe=lambda stage, number, x: seen.update({(stage, number): x}))
    layer = model.weights.layers[0].mixer
    assert isinstance(layer, ShortConvWeights)
    ops = ReferenceOps()
    state = cast("Any", ops.new_state_layers([2 * LFM2.hidden_size], 2)[0])
    mixed = layer.mix(model.ops, seen[Stage.ATTENTION_INPUT, 0], state, batch)
    np.testing.assert_array_equal(mixed, seen[Stage.ATTENTION_MIX, 0])


def test_dense_layers_before_experts_have_their_own_size(tmp_path: Path) -> None:
    recipe = replace(
        TINY_MODELS["lfm2moe"],
        metadata={**TINY_MODELS["lfm2moe"].metadata, "leading_dense_block_count": 3},
    )
    path = write_model(tmp_path / "m.gguf", replace(recipe, num_dense_layers=3))
    model = load_model(open_gguf(path), ReferenceOps())
    assert all(layer.ffn.router is None for layer in model.weights.layers)
    assert model.used_ffn_bytes == model.ffn_bytes == 3 * 3 * 4 * 32 * 48


def test_no_more_layers_are_dense_than_there_are(tmp_path: Path) -> None:
    keys = {"lfm2moe.leading_dense_block_count": 4}
    file = rewrite(tmp_path, TINY_MODELS["lfm2moe"], spec, metadata=keys)
    with pytest.raises(GGUFError, match=r"dense_block_count is 4; expected an integer from 0 to 3"):
        load_model(file, ReferenceOps())


def test_used_bytes_count_dense_layers_whole(tmp_path: Path) -> None:
    model = lfm2(tmp_path, "lfm2moe")
    size, router = 3 * 4 * 32 * 48, 5 * 32 * 4
    assert [layer.ffn.num_experts for layer in model.weights.layers] == [1, 5, 5]
    assert model.ffn_bytes == size + 2 * (5 * size + router)
    assert model.used_ffn_bytes == size + 2 * (2 * size + router)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("attention.head_count_kv", np.array([0, 2], "i4"), "2 values.*each of 3 layers"),
        (
            "attention.head_count_kv",
            np.array([0.0, 2.0, 0.0], "f4"),
            "float32; expected",
        ),
        ("attention.head_count_kv", np.array([0, 3, 0], "i4"), "is 3; expected a divisor"),
        ("attention.head_count_kv", np.array([0, -1, 0], "i4"), "is -1 in layer 1"),
        ("attention.head_count_kv", np.array([1, 2, 0], "i4"), "is 1, 2 in different layers"),
        (
            "attention.head_count_kv",
            np.array([0, 0, 0], "i4"),
            "is 0 in all layers; expected one number",
        ),
        ("shortconv.l_cache", None, "is missing"),
        ("shortconv.l_cache", 1, "is 1; expected an integer from 2"),
        ("shortconv.l_cache", 17, "is 17; expected an integer from 2 to 16"),
    ],
)
def test_a_wrong_key_is_named(tmp_path: Path, key: str, value: Any, message: str) -> None:
    file = rewrite(tmp_path, LFM2, spec, metadata={f"lfm2.{key}": value})
    with pytest.raises(GGUFError, match=rf"lfm2\.{key}.*{message}"):
        load_model(file, ReferenceOps())


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("blk.0.shortconv.conv.weight", "missing tensors"),
        ("blk.2.shortconv.in_proj.weight", "missing tensors"),
        ("blk.1.attn_q_norm.weight", "missing tensors"),
        ("token_embd_norm.weight", "missing tensors"),
    ],
)
def test_a_missing_tensor_is_named(tmp_path: Path, name: str, problem: str) -> None:
    file = rewrite(tmp_path, LFM2, lambda each: None if each.name == name else spec(each))
    with pytest.raises(GGUFError, match=rf"{problem}: {name}"):
        load_model(file, ReferenceOps())


def test_a_kernel_of_other_taps_is_named(tmp_path: Path) -> None:
    file = rewrite(tmp_path, LFM2, spec, metadata={"lfm2.shortconv.l_cache": 4})
    with pytest.raises(GGUFError, match=r"0\.shortconv\.conv\.weight \[32, 3\], not \[32, 4\]"):
        load_model(file, ReferenceOps())


def test_other_families_attend_in_every_layer(tmp_path: Path) -> None:
    keys = {"qwen3.attention.head_count_kv": np.array([2, 0], "i4")}
    file = rewrite(tmp_path, TINY_MODELS["qwen3"], spec, metadata=keys)
    with pytest.raises(GGUFError, match=r"head_count_kv is 0 in layer 1; expected"):
        load_model(file, ReferenceOps())
    keys = {"qwen3.attention.head_count_kv": np.array([2, 2], "i4")}
    assert (
        load_model(
            rewrite(tmp_path, TINY_MODELS["qwen3"], spec, metadata=keys), ReferenceOps()
        ).config.num_kv_heads
        == 2
    )


def test_layers_with_state_are_not_placed_on_a_gpu(tmp_path: Path) -> None:
    model = lfm2(tmp_path)
    sparsity, file = SimpleNamespace(model=model), SimpleNamespace(path="m.gguf")
    options = SimpleNamespace(solver=None)
    with pytest.raises(UnsupportedError, match=r"m\.gguf: lfm2 models .* on the CPU alone"):
        placement_task(*cast("Any", (sparsity, file, None, options, None)))


def test_neurons_are_measured_only_in_layers_with_experts(tmp_path: Path) -> None:
    assert lfm2(tmp_path).config.counted_layers == [0, 1, 2]
    model = lfm2(tmp_path, "lfm2moe")
    assert model.config.counted_layers == [1, 2]
    meter = RecallMeter(model)
    run_windows(model, np.array([TOKEN_IDS], np.int32), meter)
    assert [layer.total > 0 for layer in meter.layers] == [False, True, True]


def test_a_model_without_any_such_layer_cannot_be_measured(tmp_path: Path) -> None:
    recipe = replace(
        TINY_MODELS["lfm2moe"],
        activation="relu",
        num_dense_layers=3,
        metadata={**TINY_MODELS["lfm2moe"].metadata, "leading_dense_block_count": 3},
    )
    model = load_model(open_gguf(write_model(tmp_path / "m.gguf", recipe)), ReferenceOps())
    assert model.layer_kinds == ("exact",) * 3
    with pytest.raises(UnsupportedError, match="no layer of this model has neurons"):
        with_recall_meter(model)


def test_inspect_shows_states(tmp_path: Path) -> None:
    shown = invoke("inspect", write_model(tmp_path / "m.gguf", LFM2))
    assert re.search(r"state layers +2\nstate bytes +512\n", shown.stdout)
    other = invoke("inspect", write_model(tmp_path / "q.gguf", TINY_MODELS["qwen3"]))
    assert "state layers" not in other.stdout
