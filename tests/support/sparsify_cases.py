"""Tiny models and texts for the tests of sparsify."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenizer_checkpoints import WORDS, byte_fallback_json, write_files

__all__ = ["LLAMA", "MISTRAL", "random_tokens", "write_sample"]

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


def write_sample(folder: Path, config: dict[str, Any]) -> tuple[Path, Path]:
    """A SwiGLU checkpoint with random weights and a tokenizer, and a text; returns both paths."""
    from powerinfer.train.sparsify.model import random_model
    from powerinfer.train.sparsify.saving import save

    checkpoint = folder / "swiglu"
    checkpoint.mkdir(parents=True)
    write_files(
        checkpoint,
        {
            "tokenizer.json": byte_fallback_json(),
            "tokenizer_config.json": {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": "<s>",
                "eos_token": "</s>",
                "unk_token": "<unk>",
            },
        },
    )
    save(random_model(config | {"vocab_size": 420}, 1), None, checkpoint)
    text = folder / "text.txt"
    words = WORDS.split()
    generator = np.random.default_rng(3)
    lines = (" ".join(generator.choice(words, 12)) for _ in range(600))
    text.write_text("\n".join(lines), encoding="utf-8")
    return checkpoint, text
