"""Converted checkpoints that llama.cpp runs, for the tests and `scripts/make-goldens-llama-cpp`."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from checkpoint_files import write_checkpoint
from converted_cases import save_without_torch
from powerinfer.convert import planning
from powerinfer.convert.convert import convert
from powerinfer.convert.quantize.file_types import find_file_type
from powerinfer.convert.quantize.plan import QuantizeOptions
from powerinfer.convert.quantize.quantize import quantize
from powerinfer.gguf import open_gguf
from puzzle_checkpoint import write_puzzle
from smallthinker_checkpoint import smallthinker_config, smallthinker_state
from transformers_cases import CASES, TOKEN_IDS, Case

__all__ = ["NAMES", "POSITIONS", "QUANTIZED", "token_ids", "write_converted"]

POSITIONS = (0, 9, 19)

# As llama_cpp_cases.py: what llama.cpp takes for granted of a family.
_WHOLE_RAMP = {
    "rope_type": "yarn",
    "rope_theta": 5.0,
    "factor": 8.0,
    "original_max_position_embeddings": 160,
    "truncate": False,
}
_FULL, _SLIDING_TWICE = "full_attention", ["sliding_attention"] * 2
_CHANGES: dict[str, dict[str, Any]] = {
    "llama-gqa": {},
    "llama-mqa-tied": {},
    "llama-wide-heads": {},
    "llama-biases": {},
    "llama-linear": {},
    "llama-yarn": {},
    "llama3-divisors": {},
    "mistral": {},
    "qwen2-tied-base": {},
    "falcon-7b": {},
    "falcon-40b": {},
    "arcee": {},
    "qwen3": {"head_dim": 128},
    "gemma3": {},
    # A third layer's roundings would leave the tolerance: 0.0004 on average.
    "gpt-oss": {
        "num_attention_heads": 8,
        "num_hidden_layers": 2,
        "rope_parameters": _WHOLE_RAMP,
    },
    "nemotron": {},
    "nemotron-biases": {},
    "mixtral": {},
    "qwen3moe": {"head_dim": 128},
    "olmoe": {"num_key_value_heads": 4},
    "granitemoe": {},
    "granitemoe-shared": {},
    "lfm2": {},
    "lfm2moe": {},
    "qwen35": {},
    "qwen35-equal-heads": {},
    "qwen35moe": {},
    # The others have no bias in the convolution, or in projections of scans: llama.cpp needs and
    # refuses these.
    "mamba2": {},
    "nemotron_h": {},
    "nemotron_h-biases": {"use_bias": False, "mamba_proj_bias": False, "attention_bias": True},
    "nemotron_h_moe": {},
    "nemotron_h_moe-latent": {},
    # Of twice the hidden size, as llama.cpp takes for granted.
    "granitehybrid": {},
    "granitehybrid-experts": {},
    "granitehybrid-rope": {},
    "gemma4": {},
    "gemma4-keys-are-values": {},
    # As in llama_cpp_cases.py: the last two of the layers with own keys are one of each kind.
    "gemma4-per-layer": {"layer_types": [*_SLIDING_TWICE, _FULL, _SLIDING_TWICE[0], _FULL]},
    "gemma4-experts": {},
}
# Rows of whole blocks of 256, and few roundings.
_WIDE = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
_WIDE_EXPERTS = {"moe_intermediate_size": 256}
_WIDE_QWEN35 = _WIDE | {
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
}
_WIDE_NEMOTRON_H = _WIDE | {
    "hybrid_override_pattern": "M*-",
    "num_hidden_layers": 3,
    "mamba_num_heads": 8,
    "mamba_head_dim": 64,
    "ssm_state_size": 64,
}
_WIDE_GEMMA4 = _WIDE | {
    "num_hidden_layers": 3,
    "layer_types": [*_SLIDING_TWICE, _FULL],
    "global_head_dim": 128,
}
_WIDE_CHANGES: dict[str, dict[str, Any]] = {
    "qwen35": _WIDE_QWEN35,
    # All experts are chosen, as in llama_cpp_cases.py.
    "qwen35moe": _WIDE_QWEN35
    | _WIDE_EXPERTS
    | {"num_experts_per_tok": 6, "shared_expert_intermediate_size": 256},
    "mamba2": {
        "num_hidden_layers": 1,
        "hidden_size": 256,
        "num_heads": 8,
        "head_dim": 64,
        "state_size": 64,
    },
    "nemotron_h": _WIDE_NEMOTRON_H,
    "nemotron_h_moe-latent": _WIDE_NEMOTRON_H
    | _WIDE_EXPERTS
    | {
        "hybrid_override_pattern": "ME*",
        "num_experts_per_tok": 6,
        "moe_shared_expert_intermediate_size": 256,
        "moe_latent_size": 256,
    },
    "granitehybrid": {
        "num_hidden_layers": 2,
        "layer_types": ["mamba", "attention"],
        "hidden_size": 256,
        "head_dim": 64,
        "shared_intermediate_size": 256,
        "mamba_n_heads": 8,
        "mamba_d_head": 64,
        "mamba_d_state": 64,
    },
    "gemma4-per-layer": _WIDE_GEMMA4
    | {
        "num_hidden_layers": 5,
        "layer_types": [*_SLIDING_TWICE, _FULL, _SLIDING_TWICE[0], _FULL],
        "hidden_size_per_layer_input": 256,
    },
    "gemma4-experts": _WIDE_GEMMA4 | _WIDE_EXPERTS | {"num_experts_per_tok": 6},
}
_TYPES = {"qwen35moe": ("Q4_K_S",)}
_QUANTIZED = {
    f"{base}-wide-{type_name}": (base, type_name)
    for base in _WIDE_CHANGES
    for type_name in _TYPES.get(base, ("Q4_0", "Q8_0", "Q4_K_M"))
}
QUANTIZED = {name: type_name for name, (_, type_name) in _QUANTIZED.items()}
"""Models that are quantized after they were converted, and the type."""
CONVERTED: dict[str, Case] = {
    name: replace(CASES[name], config=CASES[name].config | changes)
    for name, changes in _CHANGES.items()
} | {
    name: replace(CASES[base], config=CASES[base].config | _WIDE_CHANGES[base])
    for name, (base, _) in _QUANTIZED.items()
}
"""Models by name: every family that llama.cpp knows, with activations that it runs."""


_PUZZLE = "nemotron_h_moe-puzzle"
NAMES = (*CONVERTED, "smallthinker", "smallthinker-window", _PUZZLE)
"""All models: these, and three that transformers does not have."""


def token_ids(name: str) -> list[int]:
    """The prompt of a model."""
    return CONVERTED[name].token_ids if name in CONVERTED else TOKEN_IDS


def write_converted(folder: Path, name: str) -> Path:
    """Write the plain file of a checkpoint, without a vocabulary; returns it."""
    checkpoint = _save(folder / "hf", name)
    path = folder / f"{name}.gguf"
    vocabulary = {"tokenizer.ggml.model": "none"}
    with (
        mock.patch.object(planning, "read_tokenizer", lambda _folder, _num_rows: vocabulary),
        mock.patch.object(planning, "check_tokenizer", lambda _folder, _metadata: None),
    ):
        convert(checkpoint, path, is_plain=True)
    if name not in QUANTIZED:
        return path
    options = QuantizeOptions(find_file_type(QUANTIZED[name]), threads=1)
    return quantize(open_gguf(path), folder / f"{name}-quantized.gguf", options).path


def _save(folder: Path, name: str) -> Path:
    if name in CONVERTED:
        return save_without_torch(folder, CONVERTED[name])
    if name == _PUZZLE:
        return write_puzzle(folder)
    has_window = name == "smallthinker-window"
    # llama.cpp takes 4096 whatever the file says.
    config = smallthinker_config(is_softmax=not has_window, has_window=has_window, window=4096)
    return write_checkpoint(folder, config, smallthinker_state(is_tied=not has_window))
