"""A tiny checkpoint of SmallThinker, which transformers does not have."""

from typing import Any

import numpy as np
import numpy.typing as npt

from numpy_smallthinker import WINDOW
from tiny_models import Stream

__all__ = ["EXPERTS", "LAYERS", "smallthinker_config", "smallthinker_state"]

FloatArray = npt.NDArray[np.float32]

LAYERS, HIDDEN, EXPERTS, SIZE, HEAD_DIM = 5, 32, 5, 24, 8


def smallthinker_config(
    *, is_softmax: bool, has_window: bool, window: int = WINDOW
) -> dict[str, Any]:
    """As the published configurations say it."""
    windowed = [int(has_window and number % 4 != 0) for number in range(LAYERS)]
    return {
        "model_type": "smallthinker",
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": HEAD_DIM,
        "vocab_size": 96,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 500.0,
        "rope_layout": windowed if has_window else [1] * LAYERS,
        "sliding_window_layout": windowed,
        "sliding_window_size": window,
        "moe_num_primary_experts": EXPERTS,
        "moe_num_active_primary_experts": 3,
        "moe_ffn_hidden_size": SIZE,
        "moe_primary_router_apply_softmax": is_softmax,
        "tie_word_embeddings": not has_window,
    }


def smallthinker_state(*, is_tied: bool) -> dict[str, FloatArray]:
    """Random weights under the names of the published checkpoints."""
    stream = Stream(5)

    def matrix(*shape: int) -> FloatArray:
        return stream.numbers(shape, shape[-1] ** -0.5)

    state = {
        "model.embed_tokens.weight": stream.numbers((96, HIDDEN), 1.0),
        "model.norm.weight": stream.numbers((HIDDEN,), 0.1) + np.float32(1.0),
    }
    if not is_tied:
        state["lm_head.weight"] = matrix(96, HIDDEN)
    for number in range(LAYERS):
        block, moe = f"model.layers.{number}", f"model.layers.{number}.block_sparse_moe"
        for name in ("input_layernorm", "post_attention_layernorm"):
            state[f"{block}.{name}.weight"] = stream.numbers((HIDDEN,), 0.1) + np.float32(1.0)
        for name, rows in (("q", 4 * HEAD_DIM), ("k", 2 * HEAD_DIM), ("v", 2 * HEAD_DIM)):
            state[f"{block}.self_attn.{name}_proj.weight"] = matrix(rows, HIDDEN)
        state[f"{block}.self_attn.o_proj.weight"] = matrix(HIDDEN, 4 * HEAD_DIM)
        state[f"{moe}.primary_router.weight"] = matrix(EXPERTS, HIDDEN)
        for expert in range(EXPERTS):
            state[f"{moe}.experts.{expert}.gate.weight"] = matrix(SIZE, HIDDEN)
            state[f"{moe}.experts.{expert}.up.weight"] = matrix(SIZE, HIDDEN)
            state[f"{moe}.experts.{expert}.down.weight"] = matrix(HIDDEN, SIZE)
    return state
