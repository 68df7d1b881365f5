"""Converted checkpoints that llama.cpp runs, for the tests and `scripts/make-goldens-llama-cpp`."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from checkpoint_files import write_checkpoint
from converted_cases import save_without_torch
from powerinfer.convert import planning
from powerinfer.convert.convert import convert
from smallthinker_checkpoint import smallthinker_config, smallthinker_state
from transformers_cases import CASES, TOKEN_IDS, Case

__all__ = ["NAMES", "POSITIONS", "token_ids", "write_converted"]

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
}
CONVERTED: dict[str, Case] = {
    name: replace(CASES[name], config=CASES[name].config | changes)
    for name, changes in _CHANGES.items()
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
    return path


def _save(folder: Path, name: str) -> Path:
    if name in CONVERTED:
        return save_without_torch(folder, CONVERTED[name])
    has_window = name == "smallthinker-window"
    # llama.cpp takes 4096 whatever the file says.
    config = smallthinker_config(is_softmax=not has_window, has_window=has_window, window=4096)
    return write_checkpoint(folder, config, smallthinker_state(is_tied=not has_window))
