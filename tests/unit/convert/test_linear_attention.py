"""Checkpoints of Qwen3.5: the order of value heads, models of more than text, and faults."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint_files import write_checkpoint
from powerinfer.convert.arrange import Piece, Target
from powerinfer.convert.checkpoint import CheckpointTensor
from powerinfer.convert.convert import convert
from powerinfer.convert.encode import encoded, steps
from powerinfer.convert.value_heads import ValueHeads, with_tiled_heads
from powerinfer.errors import CheckpointError, NumericsError, PowerInferError, UnsupportedError
from powerinfer.gguf import open_gguf
from transformers_cases import CASES, Case
from transformers_weights import transformers_state

pytestmark = pytest.mark.usefixtures("without_tokenizers")

DENSE, EXPERTS = CASES["qwen35"], CASES["qwen35moe"]
MIXER = "model.layers.1.linear_attn"


def config_of(case: Case) -> dict[str, Any]:
    name = "qwen3_5_moe_text" if case.num_experts else "qwen3_5_text"
    return case.arguments | {"model_type": name}


def write(folder: Path, case: Case = DENSE, *, state: Any = None, **changes: Any) -> Path:
    config = {key: value for key, value in (config_of(case) | changes).items() if value is not None}
    return write_checkpoint(folder, config, state or transformers_state(case))


def refused(folder: Path, *parts: str, error: type[PowerInferError] = CheckpointError) -> None:
    with pytest.raises(error) as caught:
        convert(folder, folder / "m.gguf")
    assert "\n" not in str(caught.value)
    for part in parts:
        assert part in str(caught.value)
    assert not (folder / "m.gguf").exists()


@given(
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(1, 5),
    st.sampled_from(["attn_qkv.weight", "attn_gate.weight", "ssm_beta.weight", "ssm_a", "ssm_out"]),
)
def test_value_head_j_belongs_to_key_head_j_modulo_key_heads(
    key_heads: int, each: int, key_dim: int, value_dim: int, name: str
) -> None:
    """Every row, or column of the output, says which value head it belongs to."""
    num_heads = key_heads * each
    width = 1 if name in ("ssm_beta.weight", "ssm_a") else value_dim
    first = 2 * key_heads * key_dim if "qkv" in name else 0
    rows = np.concatenate([np.full(first, -1), np.repeat(np.arange(num_heads), width)])
    values = np.stack([rows, np.arange(len(rows))], axis=1).astype(np.float32)
    values = values.T if name == "ssm_out" else values[:, 0] if name == "ssm_a" else values
    stored = f"blk.7.{name}.weight" if name == "ssm_out" else f"blk.7.{name}"
    source = CheckpointTensor("w", "f32", values, values.shape, Path("w"))
    target = Target(stored, values.shape, (Piece(source, values),))
    got = with_tiled_heads(target, ValueHeads(key_heads, num_heads, key_dim, value_dim))
    written = np.concatenate([encoded(step, "f32", got.shape[-1]) for step in steps(got)])
    array = written.view(np.float32).reshape(values.shape)
    labels = array[0] if name == "ssm_out" else array if name == "ssm_a" else array[:, 0]
    assert (labels[:first] == -1).all()
    heads = labels[first:].reshape(num_heads, width)
    assert (heads == heads[:, :1]).all()
    # In the checkpoint, `each` consecutive value heads belong to a key head.
    np.testing.assert_array_equal(heads[:, 0] // each, np.arange(num_heads) % key_heads)
    assert sorted(heads[:, 0]) == list(range(num_heads))


@pytest.mark.parametrize("case", [DENSE, EXPERTS], ids=["dense", "experts"])
def test_a_model_of_more_than_text(case: Case, tmp_path: Path) -> None:
    """Its text model is converted; images and further predicted tokens are left out."""
    plain = open_gguf(convert(write(tmp_path / "a", case), tmp_path / "a.gguf").path)
    named = {
        name.replace("model.", "model.language_model.", 1): values
        for name, values in transformers_state(case).items()
    }
    block = {"mtp.fc.weight": 2, "mtp.layers.0.mlp.gate_proj.weight": 3, "model.visual.x.weight": 4}
    named |= {name: np.zeros((size, size), np.float32) for name, size in block.items()}
    text = config_of(case)
    outer = {
        "model_type": text["model_type"].removesuffix("_text"),
        "tie_word_embeddings": text.pop("tie_word_embeddings"),
        "text_config": text | {"mtp_num_hidden_layers": 1},
        "vision_config": {"hidden_size": 7},
    }
    folder = write_checkpoint(tmp_path / "b", outer, named)
    whole = open_gguf(convert(folder, tmp_path / "b.gguf").path)
    assert {**whole.metadata, "general.name": "a"}.keys() == plain.metadata.keys()
    assert not any("nextn" in key for key in whole.metadata)
    assert list(whole.tensors) == list(plain.tensors)
    for name, tensor in plain.tensors.items():
        np.testing.assert_array_equal(whole.tensors[name].data, tensor.data)


def test_columns_stay_whole_in_blocks(tmp_path: Path) -> None:
    """Heads of 16 columns are half a block of Q8_0."""
    file = open_gguf(convert(write(tmp_path), tmp_path / "m.gguf", outtype="q8_0").path)
    assert file.tensors["blk.1.ssm_out.weight"].format == "q8_0"
    kept = ("ssm_alpha.weight", "ssm_beta.weight", "ssm_conv1d.weight", "ssm_a", "ssm_dt.bias")
    assert {file.tensors[f"blk.1.{name}"].format for name in kept} == {"f32"}
    wide = open_gguf(convert(tmp_path, tmp_path / "f32.gguf", outtype="f32").path)
    got, expected = (each.tensors["blk.1.ssm_out.weight"].decode() for each in (file, wide))
    np.testing.assert_allclose(got, expected, atol=2e-3)


@pytest.mark.parametrize(
    ("changes", "parts", "error"),
    [
        (
            {"linear_num_value_heads": 5},
            ("linear_num_value_heads is 5", "multiple of linear_num_key_heads 2"),
            CheckpointError,
        ),
        ({"linear_num_key_heads": None}, ("linear_num_key_heads is missing",), CheckpointError),
        ({"linear_num_key_heads": 0}, ("linear_num_key_heads is 0",), CheckpointError),
        (
            {"linear_value_head_dim": 8},
            ("linear_value_head_dim is 8", "linear_key_head_dim, 16"),
            UnsupportedError,
        ),
        ({"linear_conv_kernel_dim": None}, ("linear_conv_kernel_dim is missing",), CheckpointError),
        ({"layer_types": ["full_attention"]}, ("has 1 entries; expected 4",), CheckpointError),
        (
            {"layer_types": ["sliding_attention"] * 4},
            ("layer_types", "linear_attention, full_attention"),
            UnsupportedError,
        ),
        (
            {"rope_parameters": DENSE.sizes["rope_parameters"] | {"mrope_section": [4]}},
            ("mrope_section has 1 entries; expected 3",),
            CheckpointError,
        ),
        ({"hidden_act": "gelu"}, ("activation 'gelu'",), UnsupportedError),
        ({"attn_output_gate": False}, ("attn_output_gate is False",), UnsupportedError),
    ],
)
def test_configurations(
    changes: dict[str, Any], parts: tuple[str, ...], error: type[PowerInferError], tmp_path: Path
) -> None:
    refused(write(tmp_path, **changes), "config.json", *parts, error=error)


@pytest.mark.parametrize("name", ["A_log", "dt_bias", "conv1d.weight", "in_proj_z.weight"])
def test_a_missing_tensor(name: str, tmp_path: Path) -> None:
    state = transformers_state(DENSE)
    del state[f"{MIXER}.{name}"]
    refused(write(tmp_path, state=state), f"{MIXER}.{name} is missing")


@pytest.mark.parametrize(
    "name", ["A_log", "conv1d.weight", "out_proj.weight", "in_proj_qkv.weight"]
)
def test_a_tensor_of_another_shape(name: str, tmp_path: Path) -> None:
    state = transformers_state(DENSE)
    state[f"{MIXER}.{name}"] = state[f"{MIXER}.{name}"][:-1]
    refused(write(tmp_path, state=state), f"{MIXER}.{name}")


def test_a_decay_beyond_every_number(tmp_path: Path) -> None:
    state = transformers_state(DENSE)
    state[f"{MIXER}.A_log"] = np.full_like(state[f"{MIXER}.A_log"], 100.0)
    refused(write(tmp_path, state=state), f"{MIXER}.A_log", error=NumericsError)


def test_a_shared_expert_without_a_size(tmp_path: Path) -> None:
    folder = write(tmp_path, EXPERTS, shared_expert_intermediate_size=None)
    refused(folder, "shared_expert_intermediate_size is missing")
