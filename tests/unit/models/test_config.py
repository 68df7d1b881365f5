"""Hyper-parameters: what is read, what is refused, and which activation wins."""

from pathlib import Path
from typing import Any

import pytest

from powerinfer.errors import GGUFError, UnsupportedError
from powerinfer.gguf import GGUFFile, open_gguf, write_gguf
from powerinfer.models import ModelConfig, get_architecture
from powerinfer.models import read_config as read
from powerinfer.models.activation import parse_activation
from powerinfer.models.experts import ExpertsConfig
from powerinfer.models.rope import RopeConfig, RopeScaling
from powerinfer.ops.operands import RouterRule
from powerinfer.values import Activation, ActivationKind
from rewritten_models import rewrite, spec
from tiny_models import TINY_MODELS, write_model

RELU = Activation(ActivationKind.RELU)
DRELU = Activation(ActivationKind.DRELU)
SILU = Activation(ActivationKind.SILU)

SIZES = {
    "llama.context_length": 128,
    "llama.embedding_length": 64,
    "llama.block_count": 2,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 8,
    "llama.attention.head_count_kv": 4,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.tokens": ["a", "b", "c"],
}


MIXTRAL = {"llama.expert_count": 8, "llama.expert_used_count": 2}


def open_with(path: Path, changes: dict[str, Any], magic: str = "GGUF") -> GGUFFile:
    """A file without tensors; a change to None removes the key."""
    metadata = {"general.architecture": "llama"} | SIZES | changes
    metadata = {key: value for key, value in metadata.items() if value is not None}
    write_gguf(path / "model.gguf", metadata, [], magic=magic)
    return open_gguf(path / "model.gguf")


def config_of(path: Path, changes: dict[str, Any], **options: Any) -> ModelConfig:
    return read(open_with(path, changes), get_architecture("llama"), **options)


def test_sizes_are_read(tmp_path: Path) -> None:
    config = config_of(tmp_path, {"llama.attention.sliding_window": 16})
    assert (config.hidden_size, config.intermediate_size, config.num_layers) == (64, 96, 2)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (8, 4, 8)
    assert (config.q_size, config.kv_size) == (64, 32)
    assert (config.vocab_size, config.context_length, config.sliding_window) == (3, 128, 16)
    assert config.norm_eps == pytest.approx(1e-5)
    assert config.rope is not None
    assert config.rope.rotary_dim == 8
    assert config.rope.is_interleaved


def test_defaults(tmp_path: Path) -> None:
    config = config_of(tmp_path, {"llama.attention.head_count_kv": None})
    assert config.num_kv_heads == 8
    assert config.sliding_window is None
    assert config.activation == SILU
    assert config.rope is not None
    assert (config.rope.freq_base, config.rope.scaling) == (10000.0, RopeScaling.NONE)


def test_head_dim_may_be_a_key(tmp_path: Path) -> None:
    keys = {"llama.attention.key_length": 24, "llama.attention.value_length": 24}
    assert config_of(tmp_path, keys).q_size == 8 * 24


@pytest.mark.parametrize(
    "key",
    [key for key in SIZES if not key.endswith(("head_count_kv", "tokens"))],
)
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    with pytest.raises(GGUFError, match=rf"model\.gguf.*{key}"):
        config_of(tmp_path, {key: None})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.attention.head_count", 0),
        ("llama.attention.head_count", 7),
        ("llama.attention.head_count", "8"),
        ("llama.attention.head_count", -8),
        ("llama.attention.head_count_kv", 0),
        ("llama.attention.head_count_kv", 3),
        ("llama.attention.key_length", 0),
        ("llama.embedding_length", 0),
        ("llama.embedding_length", 2**31),
        ("llama.embedding_length", 64.0),
        ("llama.feed_forward_length", 0),
        ("llama.block_count", 0),
        ("llama.block_count", 2**31),
        ("llama.context_length", 0),
        ("llama.attention.layer_norm_rms_epsilon", -1.0),
        ("llama.attention.layer_norm_rms_epsilon", float("nan")),
        ("llama.attention.layer_norm_rms_epsilon", "small"),
        ("llama.rope.dimension_count", 5),
        ("llama.rope.dimension_count", 16),
        ("llama.rope.dimension_count", 0),
        ("llama.rope.freq_base", 0.0),
        ("llama.rope.freq_base", float("inf")),
        ("llama.rope.scaling.factor", -2.0),
        ("llama.rope.scaling.type", 3),
        ("tokenizer.ggml.tokens", None),
        ("llama.expert_count", 1 << 13),
        ("llama.expert_used_count", 0),
        ("llama.expert_used_count", 9),
        ("llama.expert_used_count", None),
        ("llama.expert_shared_feed_forward_length", -1),
    ],
)
def test_a_bad_value_is_named(tmp_path: Path, key: str, value: Any) -> None:
    experts = MIXTRAL if "expert" in key else {}
    with pytest.raises(GGUFError, match=rf"model\.gguf.*{key}"):
        config_of(tmp_path, experts | {key: value})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ExpertsConfig(8, 2, RouterRule.SOFTMAX, is_normalized=True)),
        (
            {"llama.expert_weights_norm": False},
            ExpertsConfig(8, 2, RouterRule.SOFTMAX, is_normalized=False),
        ),
        (
            {"llama.expert_gating_func": 2},
            ExpertsConfig(8, 2, RouterRule.SIGMOID, is_normalized=True),
        ),
        (
            {"llama.expert_gating_func": 3, "llama.expert_weights_norm": False},
            ExpertsConfig(8, 2, RouterRule.SOFTMAX, is_normalized=True),
        ),
        (
            {"llama.expert_shared_feed_forward_length": 24},
            ExpertsConfig(8, 2, RouterRule.SOFTMAX, is_normalized=True, shared_size=24),
        ),
        (
            {"llama.expert_weights_scale": 2.5},
            ExpertsConfig(8, 2, RouterRule.SOFTMAX, is_normalized=True, weights_scale=2.5),
        ),
        (
            {"llama.expert_weights_scale": 0.0, "llama.moe_latent_size": 16},
            ExpertsConfig(8, 2, RouterRule.SOFTMAX, is_normalized=True, latent_size=16),
        ),
    ],
)
def test_experts(tmp_path: Path, changes: dict[str, Any], expected: ExpertsConfig) -> None:
    config = config_of(tmp_path, MIXTRAL | changes)
    assert config.experts == expected
    assert config.num_experts == 8
    assert config.num_neurons == 8 * config.intermediate_size
    assert config.expert_hidden_size == (expected.latent_size or config.hidden_size)
    assert (config.gpu_obstacle is None) == (expected.latent_size == 0)
    dense = config_of(tmp_path, {"llama.expert_count": 0})
    assert (dense.experts, dense.num_experts) == (None, 0)
    assert dense.num_neurons == dense.intermediate_size


def test_experts_of_a_family_without_any_are_unsupported(tmp_path: Path) -> None:
    file = rewrite(tmp_path, TINY_MODELS["qwen2"], spec, metadata={"qwen2.expert_count": 8})
    with pytest.raises(UnsupportedError, match="8 experts per layer: qwen2 models"):
        read(file, get_architecture("qwen2"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"llama.attention.value_length": 16}, "value heads of width 16"),
        (MIXTRAL | {"llama.expert_gating_func": 4}, "gating_func is 4; supported are 1, 2, 3"),
        ({"powerinfer.layout": "rowz"}, "layout 'rowz'.*Supported: rows"),
        ({"llama.rope.scaling.type": "longrope"}, "longrope.*linear, none, yarn|longrope.*yarn"),
    ],
)
def test_unsupported_features_are_named(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        config_of(tmp_path, changes)


def test_an_unknown_architecture_lists_what_there_is() -> None:
    with pytest.raises(UnsupportedError, match=r"arcee, bamboo, falcon, .*llama, "):
        get_architecture("lama2")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (RopeScaling.NONE, 1.0)),
        ({"llama.rope.scale_linear": 4.0}, (RopeScaling.LINEAR, 4.0)),
        ({"llama.rope.scaling.factor": 2.0}, (RopeScaling.LINEAR, 2.0)),
        (
            {"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 2.0},
            (RopeScaling.NONE, 1.0),
        ),
        (
            {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 2.0},
            (RopeScaling.YARN, 2.0),
        ),
    ],
)
def test_rope_scaling(
    tmp_path: Path, changes: dict[str, Any], expected: tuple[RopeScaling, float]
) -> None:
    rope = config_of(tmp_path, changes).rope
    assert rope is not None
    assert (rope.scaling, rope.factor) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("relu", RELU),
        (" DReLU ", DRELU),
        ("silu", SILU),
        ("fatrelu:0.01", Activation(ActivationKind.FATRELU, 0.01)),
        ("fatrelu:0", Activation(ActivationKind.FATRELU, 0.0)),
    ],
)
def test_activation_option(text: str, expected: Activation) -> None:
    assert parse_activation(text) == expected
    assert parse_activation(str(expected)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("swish", "silu"),
        ("rel", "Did you mean 'relu'"),
        ("fatrelu", "fatrelu:0.01"),
        ("fatrelu:", "fatrelu:0.01"),
        ("fatrelu:x", "fatrelu:0.01"),
        ("fatrelu:-1", "0 or more"),
        ("fatrelu:nan", "0 or more"),
        ("relu:0.1", "takes no threshold"),
        ("", "Supported"),
    ],
)
def test_a_bad_activation_option_says_what_is_good(text: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        parse_activation(text)


def test_activation_precedence(tmp_path: Path) -> None:
    """Flag, then key, then container and architecture, then the architecture's default."""
    llama, bamboo = get_architecture("llama"), get_architecture("bamboo")
    key = {"powerinfer.ffn_activation": "drelu"}
    plain = open_with(tmp_path, {})
    assert read(plain, llama).activation == SILU
    assert read(open_with(tmp_path, key), llama).activation == DRELU
    assert read(open_with(tmp_path, key), llama, "relu").activation == RELU
    assert read(open_with(tmp_path, {}, "PWRI"), llama).activation == RELU
    assert read(open_with(tmp_path, key, "PWRI"), llama).activation == DRELU
    renamed = {key.replace("llama", "bamboo"): value for key, value in SIZES.items()}
    assert read(open_with(tmp_path, renamed), bamboo).activation == DRELU
    assert read(open_with(tmp_path, renamed, "PWRI"), bamboo).activation == DRELU


def test_fatrelu_key_needs_its_threshold(tmp_path: Path) -> None:
    key = {"powerinfer.ffn_activation": "fatrelu"}
    with pytest.raises(GGUFError, match=r"powerinfer\.fatrelu_threshold"):
        config_of(tmp_path, key)
    config = config_of(tmp_path, key | {"powerinfer.fatrelu_threshold": 0.5})
    assert config.activation == Activation(ActivationKind.FATRELU, 0.5)


@pytest.mark.parametrize("value", ["swiglu", "fatrelu:0.1", 3])
def test_a_bad_activation_key_is_a_bad_file(tmp_path: Path, value: Any) -> None:
    with pytest.raises(GGUFError, match=r"model\.gguf.*powerinfer\.ffn_activation"):
        config_of(tmp_path, {"powerinfer.ffn_activation": value})


@pytest.mark.parametrize("name", TINY_MODELS)
def test_vocabulary_is_the_token_list(name: str, tmp_path: Path) -> None:
    file = open_gguf(write_model(tmp_path / "m.gguf", TINY_MODELS[name]))
    architecture = get_architecture(TINY_MODELS[name].architecture)
    assert read(file, architecture).vocab_size == len(file.get_strings("tokenizer.ggml.tokens"))


YARN = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 2.0}


def rope_of(path: Path, changes: dict[str, Any]) -> RopeConfig:
    rope = config_of(path, changes).rope
    assert rope is not None
    return rope


def test_every_setting_of_yarn_is_read(tmp_path: Path) -> None:
    changes = {
        "llama.rope.freq_base": 500.0,
        "llama.rope.scaling.original_context_length": 64,
        "llama.rope.scaling.attn_factor": 1.5,
        "llama.rope.scaling.yarn_ext_factor": 0.5,
        "llama.rope.scaling.yarn_beta_fast": 16.0,
        "llama.rope.scaling.yarn_beta_slow": 2.0,
    }
    assert rope_of(tmp_path, YARN | changes) == RopeConfig(
        rotary_dim=8,
        freq_base=500.0,
        is_interleaved=True,
        scaling=RopeScaling.YARN,
        factor=2.0,
        original_context_length=64,
        attn_factor=1.5,
        ext_factor=0.5,
        beta_fast=16.0,
        beta_slow=2.0,
    )


def test_what_a_file_leaves_out_of_yarn_is_what_the_paper_says(tmp_path: Path) -> None:
    assert rope_of(tmp_path, YARN) == RopeConfig(
        rotary_dim=8,
        freq_base=10000.0,
        is_interleaved=True,
        scaling=RopeScaling.YARN,
        factor=2.0,
        original_context_length=128,
        attn_factor=1.0,
        ext_factor=1.0,
        beta_fast=32.0,
        beta_slow=1.0,
    )


def test_a_zero_of_rope_means_that_nothing_is_scaled(tmp_path: Path) -> None:
    changes = {"llama.rope.scaling.factor": 0.0, "llama.rope.scaling.attn_factor": 0.0}
    rope = rope_of(tmp_path, changes)
    assert (rope.scaling, rope.factor, rope.attn_factor) == (RopeScaling.NONE, 1.0, 1.0)
    rope = rope_of(tmp_path, changes | {"llama.rope.scaling.type": "yarn"})
    assert (rope.scaling, rope.factor, rope.attn_factor) == (RopeScaling.YARN, 1.0, 1.0)


@pytest.mark.parametrize(
    ("key", "largest", "too_large"),
    [
        ("llama.context_length", 1 << 31, (1 << 31) + 1),
        ("llama.rope.scaling.original_context_length", 1 << 31, (1 << 31) + 1),
        ("llama.rope.scaling.attn_factor", 1e3, 1000.5),
        ("llama.rope.scaling.yarn_ext_factor", 1e3, 1000.5),
        ("llama.rope.scaling.yarn_beta_fast", 1e6, 1000000.5),
        ("llama.rope.scaling.yarn_beta_slow", 1e6, 1000000.5),
    ],
)
def test_the_largest_values_of_rope(
    tmp_path: Path, key: str, largest: float, too_large: float
) -> None:
    assert rope_of(tmp_path, YARN | {key: largest})
    with pytest.raises(GGUFError, match=key):
        rope_of(tmp_path, YARN | {key: too_large})


def test_the_smallest_values_of_rope(tmp_path: Path) -> None:
    assert rope_of(tmp_path, {"llama.rope.freq_base": 1.0}).freq_base == 1.0
    with pytest.raises(GGUFError, match="dimension_count is 5; rotation needs an even number"):
        rope_of(tmp_path, {"llama.rope.dimension_count": 5})
