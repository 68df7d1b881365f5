"""A tiny checkpoint of a Puzzle model, which transformers does not have."""

import json
from pathlib import Path
from typing import Any

from checkpoint_files import write_checkpoint
from transformers_cases import CASES
from transformers_weights import transformers_state

__all__ = ["KINDS", "SIZES", "USED", "puzzle_config", "write_puzzle"]

_BASE = CASES["nemotron_h_moe-latent"]
# The layers of that model, without the last 16 neurons of each expert in one of them.
KINDS, SIZES, USED = ("mamba", "moe", "attention", "moe"), (0, 40, 0, 24), (0, 3, 0, 2)


def puzzle_config() -> dict[str, Any]:
    """As the published configuration says it: nothing about blocks outside their list."""
    left_out = ("hybrid_override_pattern", "moe_intermediate_size", "num_experts_per_tok")
    config = {key: value for key, value in _BASE.arguments.items() if key not in left_out}
    blocks: list[dict[str, Any]] = [{"block_type": kind} for kind in KINDS]
    for block, size, used in zip(blocks, SIZES, USED, strict=True):
        if size:
            block |= {"moe_intermediate_size": size, "num_experts_per_tok": used}
    return config | {"model_type": "nemotron_h_puzzle", "block_configs": blocks}


def write_puzzle(folder: Path, **changes: Any) -> Path:
    """Write it, with one tensor for each matrix of each expert.

    Args:
        folder: to write into.
        changes: of the configuration.
    """
    tensors = {}
    for name, values in transformers_state(_BASE).items():
        ours = name.replace("model.", "backbone.", 1)
        if ".experts." not in name:
            tensors[ours] = values
            continue
        neurons = SIZES[int(name.split(".")[2])]
        kept = values[:, :, :neurons] if "down" in name else values[:, :neurons]
        for expert, matrix in enumerate(kept):
            tensors[ours.replace("experts.", f"experts.{expert}.") + ".weight"] = matrix
    return write_checkpoint(folder, json.loads(json.dumps(puzzle_config() | changes)), tensors)
