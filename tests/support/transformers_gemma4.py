"""Gemma 4 models of transformers_cases.py: keys of a file, and shapes as transformers has them."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from transformers_cases import Case

__all__ = ["divisors", "gemma4_block", "gemma4_keys", "gemma4_outer"]

_NORMS = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")


def gemma4_keys(case: Case) -> dict[str, Any]:
    """Keys of a file about layers that differ."""
    sizes, windows = case.sizes, _windows(case)
    width, full_width = sizes["head_dim"], sizes["global_head_dim"]
    heads = [_num_kv_heads(case, layer) for layer in range(len(windows))]
    neurons = [_neurons(case, layer) for layer in range(len(windows))]
    keys: dict[str, Any] = {
        "attention.key_length": full_width,
        "attention.value_length": full_width,
        "attention.key_length_swa": width,
        "attention.value_length_swa": width,
        "attention.head_count_kv": np.array(heads, np.int32) if len(set(heads)) > 1 else heads[0],
        "attention.sliding_window": sizes["sliding_window"],
        "attention.sliding_window_pattern": np.array(windows),
        "attention.shared_kv_layers": sizes.get("num_kv_shared_layers", 0),
        "embedding_length_per_layer_input": sizes["hidden_size_per_layer_input"],
        "rope.dimension_count": full_width,
        "rope.dimension_count_swa": width,
    }
    if len(set(neurons)) > 1:
        keys["feed_forward_length"] = np.array(neurons, np.int32)
    return keys


def divisors(case: Case) -> npt.NDArray[np.float32]:
    """Of the frequencies of layers without a window: most of their pairs do not rotate."""
    width = case.sizes["global_head_dim"]
    share = case.sizes["rope_parameters"]["full_attention"]["partial_rotary_factor"]
    pairs = np.arange(width // 2)
    return np.where(pairs < int(share * width // 2), 1.0, 1e30).astype(np.float32)


def gemma4_outer(case: Case) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Our names and transformers' shapes outside the blocks, besides those of all models."""
    sizes = case.sizes
    size = sizes["hidden_size_per_layer_input"]
    columns = sizes["num_hidden_layers"] * size
    if size:
        yield "per_layer_token_embd.weight", (sizes["vocab_size"], columns)
        yield "per_layer_model_proj.weight", (columns, sizes["hidden_size"])
        yield "per_layer_proj_norm.weight", (size,)


def gemma4_block(case: Case, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The same of a block, without its prefix."""
    sizes, hidden = case.sizes, case.sizes["hidden_size"]
    is_full = not _windows(case)[layer]
    width = sizes["global_head_dim"] if is_full else sizes["head_dim"]
    q_size = sizes["num_attention_heads"] * width
    kv_size = _num_kv_heads(case, layer) * width
    yield "attn_q.weight", (q_size, hidden)
    yield "attn_q_norm.weight", (width,)
    if not _is_shared(case, layer):
        yield "attn_k.weight", (kv_size, hidden)
        yield "attn_k_norm.weight", (width,)
        if not (is_full and sizes.get("attention_k_eq_v")):
            yield "attn_v.weight", (kv_size, hidden)
    yield "attn_output.weight", (hidden, q_size)
    neurons = _neurons(case, layer)
    yield "ffn_gate.weight", (neurons, hidden)
    yield "ffn_up.weight", (neurons, hidden)
    yield "ffn_down.weight", (hidden, neurons)
    for norm in _NORMS:
        yield f"{norm}.weight", (hidden,)
    yield "layer_output_scale.weight", (1,)
    size = sizes["hidden_size_per_layer_input"]
    if size:
        yield "inp_gate.weight", (size, hidden)
        yield "proj.weight", (hidden, size)
        yield "post_norm.weight", (hidden,)
    if sizes.get("enable_moe_block"):
        yield from _experts(case)


def _experts(case: Case) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, count, neurons = case.sizes["hidden_size"], case.num_experts, case.expert_size
    yield "ffn_gate_inp.weight", (count, hidden)
    yield "ffn_gate_inp.scale.weight", (hidden,)
    yield "ffn_down_exps.scale.weight", (count,)
    yield "ffn_gate_up_exps.weight", (count, 2 * neurons, hidden)
    yield "ffn_down_exps.weight", (count, hidden, neurons)
    for norm in ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"):
        yield f"{norm}.weight", (hidden,)


def _windows(case: Case) -> list[bool]:
    return [kind == "sliding_attention" for kind in case.sizes["layer_types"]]


def _is_shared(case: Case, layer: int) -> bool:
    sizes = case.sizes
    return bool(layer >= sizes["num_hidden_layers"] - sizes.get("num_kv_shared_layers", 0))


def _num_kv_heads(case: Case, layer: int) -> int:
    sizes = case.sizes
    has_own = not _windows(case)[layer] and sizes.get("attention_k_eq_v")
    own = sizes.get("num_global_key_value_heads") if has_own else None
    return int(own or sizes["num_key_value_heads"])


def _neurons(case: Case, layer: int) -> int:
    is_wide = case.sizes.get("use_double_wide_mlp") and _is_shared(case, layer)
    return int(case.sizes["intermediate_size"]) * (2 if is_wide else 1)
