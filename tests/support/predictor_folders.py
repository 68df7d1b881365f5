"""Folders of predictors as PowerInfer publishes them, and what its files then hold."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tiny_models import Stream
from transformers_cases import CASES, Case

__all__ = [
    "HIDDEN",
    "LAYERS",
    "LAYOUTS",
    "NEURONS",
    "PREDICTOR",
    "predictor_weights",
    "save_predictor",
    "sparse_case",
    "write_predictors",
    "write_threshold",
]

FloatArray = npt.NDArray[np.float32]
HIDDEN, NEURONS, LAYERS = 64, 96, 2
"""Sizes of the models of transformers_cases.py."""

_PRE_NORM = {"attn_norm.weight", "ffn_norm.weight"}
_ATTENTION = {f"attn_{name}.weight" for name in ("q", "k", "v", "output")}
PREDICTOR = {"fc1.weight", "fc2.weight"}
_GATED = {"ffn_gate.weight", "ffn_up.weight", "ffn_down_t.weight"}
_OUTER = {"token_embd.weight", "output_norm.weight", "output.weight"}
_FALCON_BLOCK = {
    *("attn_norm.weight", "attn_norm.bias", "attn_qkv.weight", "attn_output.weight"),
    *("ffn_up.weight", "ffn_down_t.weight"),
}
_OPT_LINEARS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down_t")
_OPT_NORMS = ("attn_norm", "ffn_norm")
# Case: architecture, tensors outside blocks, tensors of a block.
LAYOUTS: dict[str, tuple[str, set[str], set[str]]] = {
    "llama-relu": ("llama", _OUTER, _PRE_NORM | _ATTENTION | _GATED),
    "llama-fatrelu": ("llama", _OUTER, _PRE_NORM | _ATTENTION | _GATED),
    "llama-drelu": ("bamboo", _OUTER, _PRE_NORM | _ATTENTION | _GATED),
    "mistral-drelu": ("bamboo", _OUTER, _PRE_NORM | _ATTENTION | _GATED),
    "bamboo": ("bamboo", _OUTER, _PRE_NORM | _ATTENTION | _GATED),
    "falcon-7b-relu": ("falcon", _OUTER | {"output_norm.bias"}, _FALCON_BLOCK),
    "falcon-40b-relu": (
        "falcon",
        _OUTER | {"output_norm.bias"},
        _FALCON_BLOCK | {"attn_norm_2.weight", "attn_norm_2.bias"},
    ),
    "opt": (
        "opt",
        {"token_embd.weight", "position_embd.weight", "output_norm.weight", "output_norm.bias"},
        {f"{name}.{part}" for name in (*_OPT_LINEARS, *_OPT_NORMS) for part in ("weight", "bias")},
    ),
}


def sparse_case(name: str) -> Case:
    """A case; OPT with the number of positions that PowerInfer's loader takes."""
    case = CASES[name]
    if case.architecture != "opt":
        return case
    return replace(case, config=case.config | {"max_position_embeddings": 2048})


def predictor_weights(layer: int) -> dict[str, FloatArray]:
    """Ranks differ from layer to layer."""
    rank = 16 + 8 * layer
    stream = Stream(layer)
    return {
        "fc1.weight": stream.numbers((rank, HIDDEN), HIDDEN**-0.5),
        "fc2.weight": stream.numbers((NEURONS, rank), rank**-0.5),
    }


def write_predictors(folder: Path, *, threshold: float | None = 0.25) -> Path:
    """As PowerInfer publishes them, with statistics of neurons; needs torch."""
    import torch

    (folder / "activation").mkdir(parents=True)
    for layer in range(LAYERS):
        save_predictor(folder, layer, predictor_weights(layer))
        torch.save(torch.arange(NEURONS), folder / "activation" / f"activation_{layer}.pt")
    write_threshold(folder, threshold)
    return folder


def save_predictor(folder: Path, layer: int, weights: Mapping[str, FloatArray]) -> None:
    """Write the file of a layer; needs torch."""
    import torch

    state = {name: torch.from_numpy(values).half() for name, values in weights.items()}
    torch.save(state, folder / f"model_{layer}.pt")


def write_threshold(folder: Path, threshold: float | None) -> None:
    """Write the configuration, if there is to be one."""
    if threshold is not None:
        (folder / "config.json").write_text(json.dumps({"sparse_threshold": threshold}))
