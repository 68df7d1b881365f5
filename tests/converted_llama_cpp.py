"""Converted checkpoints that llama.cpp runs, for the tests and `scripts/make-goldens-llama-cpp`."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from converted_cases import save_without_torch
from powerinfer.convert import planning
from powerinfer.convert.convert import convert
from transformers_cases import CASES, Case

__all__ = ["CONVERTED", "POSITIONS", "write_converted"]

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
}
CONVERTED: dict[str, Case] = {
    name: replace(CASES[name], config=CASES[name].config | changes)
    for name, changes in _CHANGES.items()
}
"""Models by name: every family that llama.cpp knows, with activations that it runs."""


def write_converted(folder: Path, name: str) -> Path:
    """Write the plain file of a checkpoint, without a vocabulary; returns it."""
    checkpoint = save_without_torch(folder / "hf", CONVERTED[name])
    path = folder / f"{name}.gguf"
    vocabulary = {"tokenizer.ggml.model": "none"}
    with (
        mock.patch.object(planning, "read_tokenizer", lambda _folder, _num_rows: vocabulary),
        mock.patch.object(planning, "check_tokenizer", lambda _folder, _metadata: None),
    ):
        convert(checkpoint, path, is_plain=True)
    return path
