"""Gated delta rules of the models of transformers_cases.py: as transformers has them and in files.

transformers keeps the value heads of a key head together; files have the first of each key head,
then the second of each.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from transformers_cases import Case

__all__ = ["delta_rule_keys", "delta_rule_shapes", "has_delta_rule", "stored_delta_rule"]

FloatArray = npt.NDArray[np.float32]

# Rows per value head, None for the width of a head; and what begins with rows of q and k.
_ROWS: dict[str, int | None] = {"attn_qkv": None, "attn_gate": None, "ssm_conv1d": None}
_ROWS |= {"ssm_alpha": 1, "ssm_beta": 1, "ssm_a": 1, "ssm_dt": 1}
_MIXED = ("attn_qkv", "ssm_conv1d")


def has_delta_rule(case: Case, layer: int) -> bool:
    """Whether a layer has a delta rule instead of attention."""
    sizes = case.sizes
    if "linear_num_key_heads" not in sizes:
        return False
    if "layer_types" in sizes:
        return bool(sizes["layer_types"][layer] == "linear_attention")
    return (layer + 1) % 4 != 0


def delta_rule_keys(case: Case) -> dict[str, Any]:
    """Keys of a file about its delta rules; none without."""
    sizes = case.sizes
    if "linear_num_key_heads" not in sizes:
        return {}
    width, heads = sizes["linear_key_head_dim"], sizes["linear_num_value_heads"]
    keys = {
        "ssm.conv_kernel": sizes["linear_conv_kernel_dim"],
        "ssm.state_size": width,
        "ssm.group_count": sizes["linear_num_key_heads"],
        "ssm.time_step_rank": heads,
        "ssm.inner_size": heads * width,
        "rope.dimension_count": case.head_dim // 4,
        "rope.dimension_sections": np.array([11, 11, 10, 0], np.int32),
    }
    if "layer_types" in sizes:
        count = sizes["num_hidden_layers"]
        keys["attention.recurrent_layers"] = np.array(
            [has_delta_rule(case, i) for i in range(count)]
        )
    return keys


def delta_rule_shapes(case: Case) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Our names and transformers' shapes in a recurrent layer, without the block's prefix."""
    sizes, hidden = case.sizes, case.sizes["hidden_size"]
    width, heads = sizes["linear_key_head_dim"], sizes["linear_num_value_heads"]
    channels = (2 * sizes["linear_num_key_heads"] + heads) * width
    yield "attn_qkv.weight", (channels, hidden)
    yield "attn_gate.weight", (heads * width, hidden)
    yield "ssm_alpha.weight", (heads, hidden)
    yield "ssm_beta.weight", (heads, hidden)
    yield "ssm_conv1d.weight", (channels, 1, sizes["linear_conv_kernel_dim"])
    yield "ssm_a.weight", (heads,)
    yield "ssm_dt.bias", (heads,)
    yield "ssm_norm.weight", (width,)
    yield "ssm_out.weight", (hidden, heads * width)


def stored_delta_rule(name: str, values: FloatArray, case: Case) -> tuple[str, FloatArray]:
    """Name and values in a file of one of these tensors; others are returned unchanged."""
    own = name.split(".")[2] if name.startswith("blk.") else ""
    width = case.sizes.get("linear_key_head_dim")
    if width is None or own not in {"ssm_out", *_ROWS}:  # Falcon names its attention likewise
        return name, values
    if own == "ssm_out":
        return name, values[:, _order(case, width)]
    first = 2 * case.sizes["linear_num_key_heads"] * width if own in _MIXED else 0
    rows = np.concatenate([np.arange(first), first + _order(case, _ROWS[own] or width)])
    values = values[rows]
    if own == "ssm_a":
        return name.removesuffix(".weight"), -np.exp(values)
    return name, values[:, 0] if own == "ssm_conv1d" else values


def _order(case: Case, width: int) -> npt.NDArray[np.int64]:
    """Rows of all value heads in the order of a file."""
    groups, heads = case.sizes["linear_num_key_heads"], case.sizes["linear_num_value_heads"]
    each = heads // groups
    order = [group * each + number for number in range(each) for group in range(groups)]
    return np.concatenate([np.arange(head * width, (head + 1) * width) for head in order])
