"""Windows, rotation and scales of layers: what files say, what families mean, what it costs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from powerinfer.errors import GGUFError, UnsupportedError
from powerinfer.gguf import open_gguf, write_gguf
from powerinfer.models import Model, architecture_of, kv_bytes_per_position, load_model, read_config
from powerinfer.models.attention import LayerAttention, WindowPattern, read_attention
from powerinfer.models.metadata import Metadata
from powerinfer.models.rope import RopeConfig, RopeScaling
from powerinfer.models.scales import Scales, Sizes
from powerinfer.ops.protocol import KVType
from powerinfer.ops.reference.ops import ReferenceOps
from powerinfer.values import FloatArray
from tiny_models import TINY_MODELS, TinyModel, write_model
from tolerances import assert_close

ROPE = RopeConfig(8, 1e6, is_interleaved=False, scaling=RopeScaling.LINEAR, factor=8.0)
LAST = WindowPattern(period=3)
FIRST = WindowPattern(period=3, is_global_first=True, has_global_rope=False)


def layers(
    path: Path, keys: dict[str, Any], pattern: WindowPattern, num_layers: int = 7
) -> tuple[LayerAttention, ...]:
    keys = {f"x.{key}": value for key, value in keys.items()}
    write_gguf(path / "m.gguf", {"general.architecture": "x"} | keys, [])
    sizes = Sizes(hidden_size=32, num_layers=num_layers, num_heads=4, num_kv_heads=2, head_dim=8)
    return read_attention(Metadata(open_gguf(path / "m.gguf"), "x"), pattern, ROPE, sizes)


def windows(path: Path, keys: dict[str, Any], pattern: WindowPattern) -> str:
    """A letter for each layer: Window or Everything."""
    found = layers(path, {"attention.sliding_window": 5} | keys, pattern)
    assert {layer.window for layer in found} <= {5, None}
    return "".join("E" if layer.window is None else "W" for layer in found)


@pytest.mark.parametrize(
    ("keys", "pattern", "expected"),
    [
        ({}, WindowPattern(), "WWWWWWW"),
        ({}, LAST, "WWEWWEW"),
        ({}, FIRST, "EWWEWWE"),
        ({"attention.sliding_window_pattern": 2}, LAST, "WEWEWEW"),
        ({"attention.sliding_window_pattern": 1}, LAST, "EEEEEEE"),
        ({"attention.sliding_window_pattern": 0}, LAST, "WWWWWWW"),
        (
            {"attention.sliding_window_pattern": np.array([1, 0, 0, 1, 1, 0, 0], bool)},
            LAST,
            "WEEWWEE",
        ),
        ({"attention.sliding_window": 0}, LAST, "EEEEEEE"),
    ],
)
def test_which_layers_have_a_window(
    tmp_path: Path, keys: dict[str, Any], pattern: WindowPattern, expected: str
) -> None:
    assert windows(tmp_path, keys, pattern) == expected


@pytest.mark.parametrize(
    "value", [np.array([True, False]), np.zeros(8, np.int32), "two", -1, 2.0, ["a"]]
)
def test_a_bad_pattern_is_named(tmp_path: Path, value: Any) -> None:
    with pytest.raises(GGUFError, match=r"m\.gguf.*x\.attention\.sliding_window_pattern"):
        windows(tmp_path, {"attention.sliding_window_pattern": value}, LAST)


def test_layers_with_a_window_may_rotate_otherwise(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"attention.sliding_window": 5}
    windowed, _, everything = layers(tmp_path, keys, LAST)[:3]
    assert windowed.rope == everything.rope == ROPE
    own = replace(LAST, window_freq_base=10000.0)
    windowed, _, everything = layers(tmp_path, keys, own)[:3]
    plain = replace(ROPE, scaling=RopeScaling.NONE, factor=1.0, has_divisors=False)
    assert (windowed.rope, everything.rope) == (replace(plain, freq_base=10000.0), ROPE)
    keys |= {"rope.freq_base_swa": 77.0}
    assert layers(tmp_path, keys, own)[0].rope == replace(plain, freq_base=77.0)
    assert layers(tmp_path, keys, LAST)[0].rope == replace(ROPE, freq_base=77.0)


def test_layers_that_see_everything_may_not_rotate(tmp_path: Path) -> None:
    everything, windowed = layers(tmp_path, {"attention.sliding_window": 5}, FIRST)[:2]
    assert (everything.rope, windowed.rope) == (None, ROPE)
    assert [layer.rope for layer in layers(tmp_path, {}, FIRST)] == [ROPE] * 7


def tiny(path: Path, recipe: TinyModel, **options: Any) -> Model:
    file = open_gguf(write_model(path / "m.gguf", recipe))
    return load_model(file, ReferenceOps(), **options)


def logits_of(model: Model) -> FloatArray:
    cache = model.new_cache(64)
    return model.forward(cache.batch([(0, [1, 7, 262, 9, 280], 0)], [True]), cache)


def test_a_decode_step_reads_what_each_layer_sees(tmp_path: Path) -> None:
    model = tiny(tmp_path, TINY_MODELS["gemma3"])
    assert [layer.window for layer in model.config.attention] == [7, None]
    per_layer = kv_bytes_per_position(model.config, KVType.F16) // 2
    read = [model.bytes_per_token(length) for length in (1, 7, 8, 20)]
    assert [later - read[0] for later in read] == [
        0,
        12 * per_layer,
        13 * per_layer,
        25 * per_layer,
    ]


def test_layers_that_rotate_alike_share_a_table(tmp_path: Path) -> None:
    assert len(tiny(tmp_path, TINY_MODELS["gemma3"]).rope_tables) == 2
    assert len(tiny(tmp_path, TINY_MODELS["llama-window"]).rope_tables) == 1
    assert not tiny(tmp_path, TINY_MODELS["opt"]).rope_tables


def test_a_residual_scale_multiplies_what_blocks_add(tmp_path: Path) -> None:
    """As a model whose last matrices of each block are multiplied by it."""
    plain, scaled = tmp_path / "plain.gguf", tmp_path / "scaled.gguf"
    file = open_gguf(write_model(plain, TINY_MODELS["llama"]))
    tensors = []
    for tensor in file.tensors.values():
        is_last = tensor.name.endswith(("attn_output.weight", "ffn_down.weight"))
        values = tensor.decode() * np.float32(0.25 if is_last else 1.0)
        tensors.append((tensor.name, tensor.shape, "f32", values.astype("<f4").tobytes()))
    write_gguf(scaled, file.metadata, tensors)
    expected = logits_of(load_model(open_gguf(scaled), ReferenceOps()))
    residual = replace(TINY_MODELS["llama"], metadata={"residual_scale": 0.25})
    assert_close(logits_of(tiny(tmp_path, residual)), expected, "same backend, other batch")
    assert np.abs(logits_of(tiny(tmp_path, TINY_MODELS["llama"])) - expected).max() > 0.1


def test_scales_and_caps_of_logits(tmp_path: Path) -> None:
    plain = logits_of(tiny(tmp_path, TINY_MODELS["llama"]))
    keys = {"logit_scale": 4.0, "final_logit_softcapping": 0.5}
    got = logits_of(tiny(tmp_path, replace(TINY_MODELS["llama"], metadata=keys)))
    np.testing.assert_allclose(got, 0.5 * np.tanh(plain / 4.0 / 0.5), rtol=1e-5, atol=1e-6)


def test_what_gemma_scales_by(tmp_path: Path) -> None:
    recipe = replace(TINY_MODELS["gemma3"], head_dim=16, hidden_size=32, num_heads=4)
    assert tiny(tmp_path, recipe).config.scales == Scales(attention=0.25, embedding=32**0.5)
    largest = replace(recipe, num_layers=62, metadata={})
    file = open_gguf(write_model(tmp_path / "m.gguf", largest))
    assert read_config(file, architecture_of(file)).scales.attention == 8**-0.5


@pytest.mark.parametrize(
    "key",
    [
        "attention.scale",
        "attn_logit_softcapping",
        "embedding_scale",
        "final_logit_softcapping",
        "logit_scale",
        "residual_scale",
    ],
)
@pytest.mark.parametrize("value", [-1.0, 1e-30, 1e30, float("nan"), "one"])
def test_a_bad_scale_is_named(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(GGUFError, match=rf"m\.gguf.*llama\.{key}"):
        tiny(tmp_path, replace(TINY_MODELS["llama"], metadata={key: value}))
    zero = tiny(tmp_path, replace(TINY_MODELS["llama"], metadata={key: 0.0}))
    assert zero.config.scales == Scales(attention=8**-0.5)


def test_an_unknown_architecture_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, {"general.architecture": "deepseek2"}, [])
    with pytest.raises(UnsupportedError) as error:
        architecture_of(open_gguf(path))
    assert str(error.value).startswith(f"{path}: architecture 'deepseek2' is not supported.")
    assert "falcon, gemma3, " in str(error.value)
    assert str(error.value).endswith("llama.cpp may run it.")
    assert "\n" not in str(error.value)
