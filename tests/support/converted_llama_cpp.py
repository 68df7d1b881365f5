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
}
# Rows of whole blocks of 256, and few roundings.
_WIDE = {
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "hidden_size": 256,
    "intermediate_size": 256,
    "head_dim": 64,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
}
# All experts are chosen, as in llama_cpp_cases.py.
_WIDE_EXPERTS = _WIDE | {
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 256,
    "shared_expert_intermediate_size": 256,
}
QUANTIZED = {
    "qwen35-wide-Q4_0": "Q4_0",
    "qwen35-wide-Q8_0": "Q8_0",
    "qwen35-wide-Q4_K_M": "Q4_K_M",
    "qwen35moe-wide-Q4_K_S": "Q4_K_S",
}
"""Models that are quantized after they were converted, and the type."""
CONVERTED: dict[str, Case] = {
    name: replace(CASES[name], config=CASES[name].config | changes)
    for name, changes in _CHANGES.items()
} | {
    name: replace(CASES[base], config=CASES[base].config | changes)
    for name in QUANTIZED
    for base, changes in (("qwen35moe", _WIDE_EXPERTS) if "moe" in name else ("qwen35", _WIDE),)
}
"""Models by name: every family that llama.cpp knows, with activations that it runs."""


NAMES = (*CONVERTED, "smallthinker", "smallthinker-window")
"""All models: these, and two that transformers does not have."""


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
    has_window = name == "smallthinker-window"
    # llama.cpp takes 4096 whatever the file says.
    config = smallthinker_config(is_softmax=not has_window, has_window=has_window, window=4096)
    return write_checkpoint(folder, config, smallthinker_state(is_tied=not has_window))
