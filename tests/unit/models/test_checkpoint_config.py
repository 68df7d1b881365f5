"""From `config.json` to keys of a file, in the ways that versions of transformers wrote it."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from converted_cases import MODEL_TYPES
from powerinfer.errors import PowerInferError
from powerinfer.models.checkpoints.config import CheckpointConfig
from powerinfer.models.checkpoints.metadata import (
    architecture_of_checkpoint,
    is_tied,
    model_metadata,
    named_for,
)
from powerinfer.models.checkpoints.rope import rope_divisors
from transformers_cases import CASES, Case
from transformers_gemma4 import gemma4_keys
from transformers_scans import scan_keys

LLAMA: dict[str, Any] = CASES["llama-gqa"].arguments | {"model_type": "llama"}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


def config_of(case: Case) -> dict[str, Any]:
    model_type = MODEL_TYPES.get(case.kind, case.kind.lower())
    return case.arguments | {"model_type": model_type}


def metadata(values: dict[str, Any]) -> dict[str, Any]:
    """Keys without the prefix of their family."""
    config = CheckpointConfig("config.json", values)
    architecture = architecture_of_checkpoint(config)
    found = model_metadata(named_for(config, architecture), architecture)
    return {key.removeprefix(f"{architecture.name}."): value for key, value in found.items()}


@pytest.mark.parametrize("name", CASES)
def test_keys_are_those_of_the_files_of_the_tests(name: str) -> None:
    """Which were written by hand."""
    case = CASES[name]
    if case.architecture == "bamboo" or case.hidden_act in ("drelu", "fatrelu"):
        return  # transformers has no configuration of them
    found = metadata(config_of(case))
    expected = case.metadata | scan_keys(case)
    expected |= gemma4_keys(case) if case.kind == "Gemma4" else {}
    for key, value in expected.items():
        if key != "rope.scale_linear":
            np.testing.assert_array_equal(found[key.removeprefix("!")], value)
    if not expected.get("attention.head_count", 1):
        return
    num_kv_heads = expected.get("attention.head_count_kv", case.sizes["num_key_value_heads"])
    np.testing.assert_array_equal(found["attention.head_count_kv"], num_kv_heads)
    assert found["attention.key_length"] == expected.get("attention.key_length", case.head_dim)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, {"rope.freq_base": 5e5}),
        ({"rope_theta": 5e5, "rope_scaling": None}, {"rope.freq_base": 5e5}),
        (
            {"rope_scaling": {"type": "linear", "factor": 2}},
            {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0},
        ),
        ({"rope_scaling": {"rope_type": "default"}}, {"rope.freq_base": 10000.0}),
        (
            {"rope_scaling": _YARN | {"beta_fast": 16, "beta_slow": 2.0}},
            {"rope.scaling.yarn_beta_fast": 16.0, "rope.scaling.yarn_beta_slow": 2.0},
        ),
        (
            {"rope_scaling": {"rope_type": "yarn", "original_max_position_embeddings": 32}},
            {"rope.scaling.factor": 4.0},
        ),
        (
            {"rope_scaling": _YARN | {"attention_factor": 1.0}},
            {"rope.scaling.attn_factor": 1 / (1 + 0.1 * math.log(4))},
        ),
        (
            {"rope_scaling": _YARN | {"mscale": 2.0, "mscale_all_dim": 1.0}},
            {"rope.scaling.attn_factor": (1 + 0.2 * math.log(4)) / (1 + 0.1 * math.log(4)) ** 2},
        ),
        ({"num_key_value_heads": None}, {"attention.head_count_kv": 4}),
        ({"head_dim": None}, {"attention.key_length": 16}),
        ({"hidden_act": "swish"}, {"powerinfer.ffn_activation": "silu"}),
        (
            {"model_type": "sparsellama", "hidden_act": "fatrelu", "hidden_act_param": 0.01},
            {"powerinfer.ffn_activation": "fatrelu", "powerinfer.fatrelu_threshold": 0.01},
        ),
        ({"model_type": "mistral", "hidden_act": "relu"}, {"powerinfer.ffn_activation": "relu"}),
        ({"model_type": "bamboo", "hidden_act": "relu"}, {"powerinfer.ffn_activation": "drelu"}),
        ({"model_type": "bamboo", "hidden_act": None}, {"powerinfer.ffn_activation": "drelu"}),
        ({"model_type": "mistral", "sliding_window": 6}, {"attention.sliding_window": 6}),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 6}, {}),
    ],
)
def test_values_of_llama_and_its_kin(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    found = metadata(LLAMA | changes)
    for key, value in expected.items():
        assert found[key] == (pytest.approx(value) if isinstance(value, float) else value), key
    if "attention_factor" not in str(changes) and "mscale" not in str(changes):
        assert "rope.scaling.attn_factor" not in found


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({"model_type": "llama", "sliding_window": 6}, None),
        ({"model_type": "mistral", "sliding_window": None}, None),
        ({"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 6}, None),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 6}, [True, True]),
        (
            {
                "model_type": "qwen2",
                "use_sliding_window": True,
                "sliding_window": 6,
                "max_window_layers": 1,
            },
            [False, True],
        ),
        (
            {
                "model_type": "qwen3",
                "use_sliding_window": True,
                "sliding_window": 6,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            [True, False],
        ),
    ],
)
def test_windows(changes: dict[str, Any], window: list[bool] | None) -> None:
    found = metadata(LLAMA | changes)
    assert found.get("attention.sliding_window") == (6 if window else None)
    flags = found.get("attention.sliding_window_pattern")
    assert (flags is None) == (window is None or all(window))
    assert flags is None or flags.tolist() == window


def test_gemma3_of_version_4() -> None:
    found = metadata(
        config_of(CASES["gemma3"])
        | {
            "rope_theta": 5e5,
            "rope_local_base_freq": 700.0,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "sliding_window_pattern": 3,
        }
    )
    assert (found["rope.freq_base"], found["rope.freq_base_swa"]) == (5e5, 700.0)
    assert (found["rope.scaling.type"], found["rope.scaling.factor"]) == ("linear", 8.0)
    flags = found["attention.sliding_window_pattern"]
    assert flags.tolist() == [True, True, False, True, True, False]


def test_the_first_falcons() -> None:
    old = {
        "model_type": "RefinedWebModel",
        "alibi": False,
        "bias": False,
        "hidden_size": 64,
        "layer_norm_epsilon": 1e-5,
        "multi_query": True,
        "n_head": 4,
        "n_layer": 2,
        "parallel_attn": True,
        "vocab_size": 96,
    }
    found = metadata(old)
    assert (found["block_count"], found["attention.head_count_kv"]) == (2, 1)
    assert (found["feed_forward_length"], found["context_length"]) == (256, 2048)
    assert found["powerinfer.ffn_activation"] == "gelu"
    wide = metadata(old | {"model_type": "RefinedWeb", "n_head_kv": 2})
    assert wide["attention.head_count_kv"] == 2
    many = metadata(old | {"multi_query": False})
    assert many["attention.head_count_kv"] == 4
    for change in ({"alibi": True}, {"parallel_attn": False}):
        with pytest.raises(PowerInferError, match=next(iter(change))):
            metadata(old | change)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("qwen3moe", {"decoder_sparse_step": 2}),
        ("qwen3moe", {"mlp_only_layers": [0]}),
        ("olmoe", {"clip_qkv": 8.0}),
        ("gpt-oss", {"swiglu_limit": 6.0}),
        ("gpt-oss", {"hidden_act": "relu"}),
        ("gpt-oss", {"layer_types": ["chunked_attention"] * 3}),
        ("gpt-oss", {"layer_types": ["full_attention"] * 2}),
        ("gpt-oss", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}),
        ("gemma3", {"use_bidirectional_attention": True}),
        ("opt", {"word_embed_proj_dim": 32}),
        ("opt", {"_remove_final_layer_norm": True}),
        ("qwen2", {"num_local_experts": 4}),
    ],
)
def test_what_the_engine_cannot_run(name: str, change: dict[str, Any]) -> None:
    with pytest.raises(PowerInferError) as caught:
        metadata(config_of(CASES[name]) | change)
    assert str(caught.value).startswith("config.json") and next(iter(change)) in str(
        caught.value
    ).replace("activation", "hidden_act").replace("truncate", "rope_parameters")


def test_experts_are_counted_under_each_name() -> None:
    """Version 5 writes `num_local_experts` where version 4 wrote `num_experts`."""
    old = config_of(CASES["qwen3moe"])
    new = dict(old)
    new["num_local_experts"] = new.pop("num_experts")
    assert metadata(old) == metadata(new)
    assert metadata(old)["expert_count"] == 6


def test_divisors_of_llama_3() -> None:
    """In the words of its authors: waves above `low` divided, below `high` kept, between mixed."""
    scaling = CASES["llama3-divisors"].config["rope_scaling"]
    values = LLAMA | {"rope_scaling": scaling}
    config = CheckpointConfig("config.json", values)
    architecture = architecture_of_checkpoint(config)
    found = rope_divisors(config, architecture, 16)
    assert found is not None
    for number, divisor in enumerate(found):
        wave = 2 * math.pi * 10000.0 ** (2 * number / 16)
        expected = 1.0
        if wave > 32 / 1.0:
            expected = 8.0
        elif wave > 32 / 4.0:
            smooth = (32 / wave - 1.0) / (4.0 - 1.0)
            expected = 1.0 / ((1 - smooth) / 8.0 + smooth)
        assert divisor == pytest.approx(expected, rel=1e-6)
    assert rope_divisors(CheckpointConfig("c", LLAMA), architecture, 16) is None


def test_whether_the_embedding_is_the_head() -> None:
    for name, default in (("llama-gqa", False), ("falcon-7b", True), ("opt", True)):
        values = config_of(CASES[name])
        del values["tie_word_embeddings"]
        config = CheckpointConfig("config.json", values)
        architecture = architecture_of_checkpoint(config)
        assert is_tied(config, architecture) == default
        said = CheckpointConfig("c", values | {"tie_word_embeddings": not default})
        assert is_tied(said, architecture) != default


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from(["yarn", "linear", "llama3", "relu", "fatrelu", 0, 1, 2]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["rope_type", "factor", "rope_theta", "full_attention"]), inner
        ),
    ),
    max_leaves=5,
)
KEYS = st.sampled_from(
    sorted(
        {key for case in CASES.values() for key in config_of(case)} | {"rope_scaling", "head_dim"}
    )
)


@pytest.mark.slow
@given(name=st.sampled_from(sorted(CASES)), changes=st.dictionaries(KEYS, VALUES, max_size=4))
def test_any_configuration_is_read_or_refused(name: str, changes: dict[str, Any]) -> None:
    try:
        metadata(config_of(CASES[name]) | changes)
    except PowerInferError as error:
        assert "\n" not in str(error) and "config.json" in str(error)


LFM2: dict[str, Any] = config_of(CASES["lfm2"])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # Published sizes: those of the configuration, and those of the model.
        ({"intermediate_size": 12288, "block_auto_adjust_ff_dim": True}, 8192),
        ({"block_ff_dim": 6656, "block_auto_adjust_ff_dim": True}, 4608),
        ({"block_ff_dim": 10240, "block_auto_adjust_ff_dim": True}, 6912),
        ({"intermediate_size": 10752}, 10752),
    ],
)
def test_neurons_of_lfm2(changes: dict[str, Any], expected: int) -> None:
    assert metadata(LFM2 | changes)["feed_forward_length"] == expected


def test_lfm2_names_its_attention_by_number_or_by_type() -> None:
    old = {key: value for key, value in LFM2.items() if key != "layer_types"}
    for values in (LFM2, old | {"full_attn_idxs": [1]}):
        assert metadata(values)["attention.head_count_kv"].tolist() == [0, 2, 0, 0]


@pytest.mark.parametrize(
    ("case", "changes"),
    [
        ("lfm2", {"conv_bias": True}),
        ("lfm2", {"layer_types": ["conv", "full_attention", "conv", "mamba"]}),
        ("lfm2", {"layer_types": ["conv"]}),
        ("lfm2moe", {"routed_scaling_factor": 2.5}),
    ],
)
def test_what_lfm2_cannot_run_is_refused(case: str, changes: dict[str, Any]) -> None:
    with pytest.raises(PowerInferError, match=f"config.json: key {next(iter(changes))}"):
        metadata(config_of(CASES[case]) | changes)


def test_lfm2_may_have_no_dense_layers() -> None:
    found = metadata(config_of(CASES["lfm2moe"]) | {"num_dense_layers": 0})
    assert found["leading_dense_block_count"] == 0
