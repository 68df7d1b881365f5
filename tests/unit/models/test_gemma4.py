"""Models whose layers differ (Gemma 4): sizes, caches, mapped rows, and files that are wrong."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from command_line import invoke
from powerinfer.calibration.linear_inputs import measure_inputs
from powerinfer.calibration.recall import with_recall_meter
from powerinfer.errors import GGUFError, UnsupportedError
from powerinfer.gguf import open_gguf
from powerinfer.models import Model, kv_bytes_per_position, load_model, sequence_bytes
from powerinfer.models.blocks import Stage
from powerinfer.models.mixers import AttentionWeights
from powerinfer.offload.problem import placement_task
from powerinfer.ops.protocol import KVType
from powerinfer.ops.reference.ops import ReferenceKV, ReferenceOps
from rewritten_models import rewrite, spec
from tiny_models import TINY_MODELS, wide, write_model

SMALL, EXPERTS = TINY_MODELS["gemma4-per-layer"], TINY_MODELS["gemma4-experts"]
TOKEN_IDS = [5, 90, 17, 260, 33, 71, 8]


def load(tmp_path: Path, name: str = "gemma4-per-layer") -> Model:
    return load_model(
        open_gguf(write_model(tmp_path / "m.gguf", TINY_MODELS[name])), ReferenceOps()
    )


def test_the_last_layers_read_those_of_their_kind(tmp_path: Path) -> None:
    model = load(tmp_path)
    assert [layer.kv_layer for layer in model.config.attention] == [None, None, None, 2, 1]
    caches = cast("list[ReferenceKV]", model.new_cache(64).layers)
    assert caches[3] is caches[2]
    assert caches[4] is caches[1]
    shapes = [(cache.num_kv_heads, cache.keys.shape[3]) for cache in caches]
    assert shapes == [(1, 8), (1, 16), (1, 8), (1, 8), (1, 16)]


def test_shared_keys_and_values_take_no_memory_but_are_read(tmp_path: Path) -> None:
    config = load(tmp_path).config
    own, full = 2 * 2 * 8, 2 * 2 * 16
    assert kv_bytes_per_position(config, KVType.F16) == 2 * own + full
    assert sequence_bytes(config, 20, KVType.F16) == 3 * 7 * own + 2 * 20 * full


def test_values_may_be_keys(tmp_path: Path) -> None:
    mixers = [layer.mixer for layer in load(tmp_path, "gemma4-experts").weights.layers]
    assert [len(cast("AttentionWeights", mixer).qkv) for mixer in mixers] == [3, 3, 2]


def test_rows_of_the_per_layer_embedding_stay_in_the_file(tmp_path: Path) -> None:
    """Of any format; only the rows of a step's tokens are decoded."""
    from powerinfer.ops.cpu.ops import NativeOps

    path = write_model(tmp_path / "m.gguf", wide(SMALL, "q4_k"))
    file = open_gguf(path)
    seen: list[Any] = []

    class Watching(NativeOps):
        def matrix(self, tensor: Any, use: Any) -> Any:
            made = super().matrix(tensor, use)
            if tensor.name.startswith("per_layer_token_embd"):
                seen.append((tensor, use, made))
            return made

    load_model(file, Watching(1))
    ((tensor, use, made),) = seen
    assert use.value == "embedding"
    assert made.nbytes == len(tensor.data)
    assert tensor.data.base is not None


def test_bytes_count_one_row(tmp_path: Path) -> None:
    model = load(tmp_path)
    table = model.weights.per_layer
    assert table is not None
    columns = 5 * 12
    expected = 4 * (columns + columns * 32 + 12)
    assert table.num_bytes(model.ops, model.config.vocab_size) == expected


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("attention.sliding_window", None, "is missing"),
        ("attention.sliding_window_pattern", None, "is missing"),
        ("attention.sliding_window_pattern", np.array([True, False]), "2 flags.*of 5 layers"),
        ("attention.shared_kv_layers", 5, "is 5; expected an integer from 0 to 4"),
        ("attention.shared_kv_layers", 4, "is 4, but no earlier keys and values fit layer 1"),
        ("attention.head_count_kv", np.array([1, 3, 1, 1, 1], "i4"), "is 3; expected a divisor"),
        ("attention.head_count_kv", np.array([1, 1, 1, 2, 1], "i4"), None),
        ("attention.head_count_kv", np.array([1, 1], "i4"), "has 2 values"),
        ("rope.dimension_count_swa", 7, "is 7; rotation needs an even number"),
        ("rope.dimension_count_swa", 10, "is 10; expected an integer from 1 to 8"),
        ("feed_forward_length", np.array([48, 48], "i4"), "has 2 values"),
        ("embedding_length_per_layer_input", 1 << 21, "is 2097152; expected an integer from 0"),
        ("attention.key_length_swa", 0, "is 0; expected an integer from 1"),
    ],
)
def test_a_wrong_key_is_named(tmp_path: Path, key: str, value: Any, message: str | None) -> None:
    file = rewrite(tmp_path, SMALL, spec, metadata={f"gemma4.{key}": value})
    wanted = rf"gemma4\.{key}.*{message}" if message else "no earlier keys and values fit layer 3"
    with pytest.raises(GGUFError, match=wanted):
        load_model(file, ReferenceOps())


def test_values_of_another_width_are_refused(tmp_path: Path) -> None:
    file = rewrite(tmp_path, SMALL, spec, metadata={"gemma4.attention.value_length_swa": 16})
    with pytest.raises(UnsupportedError, match="value heads of width 16 with key heads of width 8"):
        load_model(file, ReferenceOps())


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (SMALL, "rope_freqs.weight"),
        (SMALL, "per_layer_token_embd.weight"),
        (SMALL, "per_layer_model_proj.weight"),
        (SMALL, "per_layer_proj_norm.weight"),
        (SMALL, "blk.2.inp_gate.weight"),
        (SMALL, "blk.2.proj.weight"),
        (SMALL, "blk.2.post_norm.weight"),
        (SMALL, "blk.2.attn_k.weight"),
        (SMALL, "blk.4.attn_q_norm.weight"),
        (EXPERTS, "blk.1.ffn_gate_inp.scale"),
        (EXPERTS, "blk.1.ffn_down_exps.scale"),
        (EXPERTS, "blk.1.pre_ffw_norm_2.weight"),
        (EXPERTS, "blk.1.post_ffw_norm_1.weight"),
        (EXPERTS, "blk.1.post_ffw_norm_2.weight"),
        (EXPERTS, "blk.1.ffn_up.weight"),
    ],
)
def test_a_missing_tensor_is_named(tmp_path: Path, model: Any, name: str) -> None:
    file = rewrite(tmp_path, model, lambda each: None if each.name == name else spec(each))
    with pytest.raises(GGUFError, match=rf"missing tensors: {name}"):
        load_model(file, ReferenceOps())


def test_a_file_without_output_scales_has_none(tmp_path: Path) -> None:
    file = rewrite(
        tmp_path, SMALL, lambda each: None if "output_scale" in each.name else spec(each)
    )
    model = load_model(file, ReferenceOps())
    assert {layer.output_scale for layer in model.weights.layers} == {1.0}


def test_tensors_of_other_sizes_are_named(tmp_path: Path) -> None:
    file = rewrite(tmp_path, SMALL, spec, metadata={"gemma4.embedding_length_per_layer_input": 11})
    wanted = r"per_layer_token_embd\.weight \[288, 60\], not \[288, 55\]"
    with pytest.raises(GGUFError, match=wanted):
        load_model(file, ReferenceOps())


def test_they_are_not_placed_on_a_gpu(tmp_path: Path) -> None:
    sparsity, file = SimpleNamespace(model=load(tmp_path)), SimpleNamespace(path="m.gguf")
    options = SimpleNamespace(solver=None)
    with pytest.raises(UnsupportedError, match=r"m\.gguf: gemma4 models .* on the CPU alone"):
        placement_task(*cast("Any", (sparsity, file, None, options, None)))


def test_neurons_are_not_measured(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="the layers of gemma4 models differ"):
        with_recall_meter(load(tmp_path))


@pytest.mark.parametrize("name", ["gemma4", "gemma4-per-layer", "gemma4-experts"])
def test_inputs_of_all_matrices_are_measured(tmp_path: Path, name: str) -> None:
    model = load(tmp_path, name)
    file = open_gguf(tmp_path / "m.gguf")
    seen: dict[tuple[Stage, int], Any] = {}

    def observe(stage: Stage, number: int, values: Any) -> None:
        seen[stage, number] = values.copy()

    found = measure_inputs(model, file.tensors, [TOKEN_IDS])
    matrices = {key for key, tensor in file.tensors.items() if len(tensor.shape) > 1}
    assert set(found) == {key for key in matrices if "token_embd" not in key}
    cache = model.new_cache()
    batch = cache.batch([(0, TOKEN_IDS, 0)], [True])
    model.forward(batch, cache, observe=observe)
    inputs = {"per_layer_model_proj.weight": model.embed(batch)} | {
        f"blk.{number}.{part}.weight": seen[stage, number]
        for stage, part in ((Stage.PER_LAYER_INPUT, "inp_gate"), (Stage.PER_LAYER_MIX, "proj"))
        for number in range(model.config.num_layers)
        if (stage, number) in seen
    }
    shown = inputs.keys() & found.keys()
    assert len(shown) == (11 if name == "gemma4-per-layer" else 0)
    for key in shown:
        assert found[key].counts.tolist() == [len(TOKEN_IDS)]
        squares = np.square(inputs[key].astype(np.float64)).sum(axis=0)
        np.testing.assert_allclose(found[key].sums[0], squares, rtol=1e-5)


def test_commands_show_what_differs(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", SMALL)
    shown = invoke("inspect", path).stdout
    for line in (
        "head dim           8, 16, 8, 8, 16",
        "intermediate size  48, 48, 48, 96, 96",
        "shared kv layers   2",
        "per layer size     12",
    ):
        assert line in shown
    planned = invoke("plan", "-m", path)
    assert planned.exit_code == 0, planned.output
    assert "layers with heads of their own stay on the CPU for now" in planned.stdout
    assert "states" not in planned.stdout
