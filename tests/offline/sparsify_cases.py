"""Tiny models and texts for the tests of sparsify."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["LLAMA", "MISTRAL", "random_tokens"]

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "a_foreign_key": {"kept": True},
}
MISTRAL = LLAMA | {
    "model_type": "mistral",
    "architectures": ["MistralForCausalLM"],
    "sliding_window": 7,
    "head_dim": 24,
}


def random_tokens(count: int = 4000) -> NDArray[np.uint16]:
    """Token ids that can be learned: each mostly follows from the one before."""
    generator = np.random.default_rng(5)
    noise = generator.integers(0, 96, count)
    is_noise = generator.random(count) < 0.2
    ids = np.empty(count, np.uint16)
    ids[0] = 3
    for place in range(1, count):
        ids[place] = noise[place] if is_noise[place] else (5 * int(ids[place - 1]) + 1) % 96
    return ids
