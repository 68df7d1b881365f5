"""Selective scans of the models of transformers_cases.py: as transformers has them and in files.

Kinds of layers are those of Nemotron-H's patterns: M has a scan, * attention, - an FFN, E experts.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from transformers_cases import Case

__all__ = ["layer_kind", "scan_keys", "scan_linears", "scan_shapes", "stored_scan"]

FloatArray = npt.NDArray[np.float32]

# What the configurations call taps, states, groups, heads and their width.
_NAMES = {
    "Mamba2": ("conv_kernel", "state_size", "n_groups", "num_heads", "head_dim"),
    "NemotronH": (
        *("conv_kernel", "ssm_state_size", "n_groups"),
        *("mamba_num_heads", "mamba_head_dim"),
    ),
    "GraniteMoeHybrid": (
        *("mamba_d_conv", "mamba_d_state", "mamba_n_groups"),
        *("mamba_n_heads", "mamba_d_head"),
    ),
}
_BIASES = {"Mamba2": "use_bias", "NemotronH": "use_bias", "GraniteMoeHybrid": "mamba_proj_bias"}


def layer_kind(case: Case, layer: int) -> str:
    """M, *, - or E; empty for models without scans."""
    if case.kind == "NemotronH":
        return str(case.sizes["hybrid_override_pattern"][layer])
    if case.kind == "GraniteMoeHybrid":
        return "M" if case.sizes["layer_types"][layer] == "mamba" else "*"
    return "M" if case.kind == "Mamba2" else ""


def scan_keys(case: Case) -> dict[str, Any]:
    """Keys of a file about its scans, and numbers that differ by layer; none without scans."""
    if case.kind not in _NAMES:
        return {}
    sizes = case.sizes
    taps, state_dim, groups, heads, width = _sizes(case)
    kinds = [layer_kind(case, layer) for layer in range(sizes["num_hidden_layers"])]
    counts = [sizes["num_key_value_heads"] if kind == "*" else 0 for kind in kinds]
    keys: dict[str, Any] = {
        "ssm.conv_kernel": taps,
        "ssm.state_size": state_dim,
        "ssm.group_count": groups,
        "ssm.time_step_rank": heads,
        "ssm.inner_size": heads * width,
    }
    if case.kind == "Mamba2":
        return keys | {"attention.head_count": 0, "feed_forward_length": 0}
    keys["attention.head_count_kv"] = np.array(counts, np.int32)
    if case.kind == "NemotronH":
        size = case.expert_size if case.num_experts else sizes["intermediate_size"]
        neurons = [size if kind in "-E" else 0 for kind in kinds]
        keys["feed_forward_length"] = np.array(neurons, np.int32)
    elif not case.num_experts:
        keys["feed_forward_length"] = sizes["shared_intermediate_size"]
    return keys


def scan_linears(case: Case) -> dict[str, tuple[tuple[int, int], bool]]:
    """Shape of each matrix of a layer with a scan, and whether it has a bias."""
    _, state_dim, groups, heads, width = _sizes(case)
    hidden, inner = case.sizes["hidden_size"], heads * width
    has_bias = case.sizes.get(_BIASES[case.kind], False)
    rows = 2 * inner + 2 * groups * state_dim + heads
    return {"ssm_in": ((rows, hidden), has_bias), "ssm_out": ((hidden, inner), has_bias)}


def scan_shapes(case: Case) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Our names and transformers' shapes of the rest of it, without the block's prefix."""
    taps, state_dim, groups, heads, width = _sizes(case)
    channels = heads * width + 2 * groups * state_dim
    yield "ssm_conv1d.weight", (channels, 1, taps)
    if case.sizes.get("use_conv_bias", True):
        yield "ssm_conv1d.bias", (channels,)
    yield "ssm_a.weight", (heads,)
    yield "ssm_d.weight", (heads,)
    yield "ssm_dt.bias", (heads,)
    yield "ssm_norm.weight", (heads * width,)


def stored_scan(name: str, values: FloatArray, case: Case) -> tuple[str, FloatArray]:
    """Name and values in a file of one of these tensors; others are returned unchanged."""
    if case.kind not in _NAMES:
        return name, values
    own = name.split(".")[2] if name.startswith("blk.") else ""
    if own in ("ssm_a", "ssm_d"):
        numbers = -np.exp(values) if own == "ssm_a" else values
        return name.removesuffix(".weight"), numbers[:, None]
    if own == "ssm_norm":
        return name, values.reshape(_sizes(case)[2], -1)
    if own == "ssm_conv1d" and values.ndim == 3:
        return name, values[:, 0]
    # Dense models of Granite have their FFN under the name of a shared expert.
    return (name if case.num_experts else name.replace("_shexp", "")), values


def _sizes(case: Case) -> tuple[int, ...]:
    return tuple(int(case.sizes[name]) for name in _NAMES[case.kind])
