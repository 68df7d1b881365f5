"""What is compared with transformers, for the tests and `scripts/make-goldens-transformers`.

Weights are made without torch, from the raw stream of PCG64 (see tiny_models.py), named as in
transformers. Both sides get them: transformers directly, we through a GGUF file with the row
permutation of q and k that `llama` files have. torch is imported only to run transformers.
"""

import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from powerinfer.gguf import TensorSpec, encode_tensor, write_gguf
from powerinfer.models import get_architecture
from tiny_models import Stream

__all__ = ["CASES", "FOLDER", "POSITIONS", "TOKEN_IDS", "Case", "run_transformers", "save"]

FloatArray = npt.NDArray[np.float32]

FOLDER = Path(__file__).resolve().parent / "golden" / "transformers"

TOKEN_IDS = [3, 17, 40, 2, 91, 5, 66, 28, 7, 80, 12, 54, 33, 9, 71, 20, 1, 45, 88, 60]

POSITIONS = [0, 9, 19]
"""Positions whose logits are kept."""

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True)
class Case:
    """A configuration on both sides.

    Attributes:
        kind: transformers' prefix: Llama, Mistral, Qwen2.
        architecture: ours.
        config: arguments of the transformers configuration beyond the small sizes.
        metadata: GGUF keys that say the same, without the architecture's prefix.
        hidden_act: of the transformers MLP; `drelu` patches it.
    """

    kind: str
    architecture: str
    config: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    hidden_act: str = "silu"

    @property
    def sizes(self) -> dict[str, Any]:
        """Arguments of the transformers configuration."""
        return SIZES | self.config

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return int(self.sizes.get("head_dim", SIZES["hidden_size"] // 4))


_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

CASES = {
    "llama-gqa": Case("Llama", "llama"),
    "llama-mha": Case("Llama", "llama", {"num_key_value_heads": 4}),
    "llama-mqa-tied": Case(
        "Llama", "llama", {"num_key_value_heads": 1, "tie_word_embeddings": True}
    ),
    "llama-wide-heads": Case("Llama", "llama", {"head_dim": 24}),
    "llama-biases": Case("Llama", "llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-base": Case("Llama", "llama", {"rope_theta": 500000.0}, {"rope.freq_base": 500000.0}),
    "llama-linear": Case(
        "Llama",
        "llama",
        {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    ),
    "llama-old-linear-key": Case(
        "Llama",
        "llama",
        {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        {"rope.scale_linear": 4.0},
    ),
    "llama-yarn": Case(
        "Llama",
        "llama",
        {
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 32,
        },
    ),
    "llama3-divisors": Case("Llama", "llama", {"rope_scaling": _LLAMA3}),
    "llama-relu": Case(
        "Llama", "llama", {}, {"!powerinfer.ffn_activation": "relu"}, hidden_act="relu"
    ),
    "llama-relu2": Case(
        "Llama", "llama", {}, {"!powerinfer.ffn_activation": "relu2"}, hidden_act="relu2"
    ),
    "llama-gelu": Case(
        "Llama",
        "llama",
        {},
        {"!powerinfer.ffn_activation": "gelu"},
        hidden_act="gelu_pytorch_tanh",
    ),
    "llama-drelu": Case(
        "Llama", "llama", {}, {"!powerinfer.ffn_activation": "drelu"}, hidden_act="drelu"
    ),
    "bamboo": Case("Llama", "bamboo", {}, {}, hidden_act="drelu"),
    "mistral": Case("Mistral", "llama", {"sliding_window": None}),
    "mistral-window": Case(
        "Mistral", "llama", {"sliding_window": 6}, {"attention.sliding_window": 6}
    ),
    "qwen2": Case("Qwen2", "qwen2"),
    "qwen2-tied-base": Case(
        "Qwen2",
        "qwen2",
        {"tie_word_embeddings": True, "rope_theta": 1e6},
        {"rope.freq_base": 1e6},
    ),
}


def save(path: Path, case: Case) -> Path:
    """Write the model of a case as GGUF, under our names."""
    sizes = case.sizes
    keys = {
        "context_length": sizes["max_position_embeddings"],
        "embedding_length": sizes["hidden_size"],
        "block_count": sizes["num_hidden_layers"],
        "feed_forward_length": sizes["intermediate_size"],
        "attention.head_count": sizes["num_attention_heads"],
        "attention.head_count_kv": sizes["num_key_value_heads"],
        "attention.key_length": case.head_dim,
        "attention.value_length": case.head_dim,
        "attention.layer_norm_rms_epsilon": sizes["rms_norm_eps"],
    } | case.metadata
    metadata: dict[str, Any] = {"general.architecture": case.architecture}
    for key, value in keys.items():
        metadata[key[1:] if key.startswith("!") else f"{case.architecture}.{key}"] = value
    write_gguf(path, metadata, list(_tensors(case)))
    return path


def run_transformers(case: Case) -> FloatArray:
    """Logits of every position from transformers: f32[tokens, vocab_size]."""
    import torch
    import transformers

    act = "relu" if case.hidden_act == "drelu" else case.hidden_act
    config = getattr(transformers, f"{case.kind}Config")(
        **case.sizes, hidden_act=act, attn_implementation="eager"
    )
    model = getattr(transformers, f"{case.kind}ForCausalLM")(config).eval()
    state = {name: torch.from_numpy(values) for name, values in _weights(case).items()}
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True)
    if case.hidden_act == "drelu":
        for layer in model.model.layers:
            layer.mlp.forward = _drelu(layer.mlp, torch.relu)
    with torch.no_grad():
        logits: FloatArray = model(torch.tensor([TOKEN_IDS])).logits[0].numpy()
    return logits


def _drelu(mlp: Any, relu: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: mlp.down_proj(relu(mlp.gate_proj(x)) * relu(mlp.up_proj(x)))


def _weights(case: Case) -> dict[str, FloatArray]:
    """Weights by transformers' names; each from its own stream, seeded by its name."""
    weights = {}
    for name, shape in _shapes(case):
        stream = Stream(zlib.crc32(name.encode()))
        if "norm" in name:
            weights[name] = 1.0 + stream.numbers(shape, 0.1)
        elif len(shape) == 1:
            weights[name] = stream.numbers(shape, 0.1)
        else:
            is_embedding = "embed_tokens" in name
            weights[name] = stream.numbers(shape, 1.0 if is_embedding else shape[1] ** -0.5)
    return weights


def _shapes(case: Case) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every parameter."""
    sizes = case.sizes
    hidden, neurons = sizes["hidden_size"], sizes["intermediate_size"]
    vocab_shape = (sizes["vocab_size"], hidden)
    q_size = sizes["num_attention_heads"] * case.head_dim
    kv_size = sizes["num_key_value_heads"] * case.head_dim
    qkv_bias = case.kind == "Qwen2" or sizes.get("attention_bias", False)
    mlp_bias = sizes.get("mlp_bias", False)
    yield "model.embed_tokens.weight", vocab_shape
    for layer in range(sizes["num_hidden_layers"]):
        linears = {
            "self_attn.q_proj": (q_size, hidden, qkv_bias),
            "self_attn.k_proj": (kv_size, hidden, qkv_bias),
            "self_attn.v_proj": (kv_size, hidden, qkv_bias),
            "self_attn.o_proj": (hidden, q_size, sizes.get("attention_bias", False)),
            "mlp.gate_proj": (neurons, hidden, mlp_bias),
            "mlp.up_proj": (neurons, hidden, mlp_bias),
            "mlp.down_proj": (hidden, neurons, mlp_bias),
        }
        for name, (rows, columns, has_bias) in linears.items():
            yield f"model.layers.{layer}.{name}.weight", (rows, columns)
            if has_bias:
                yield f"model.layers.{layer}.{name}.bias", (rows,)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"model.layers.{layer}.{norm}.weight", (hidden,)
    yield "model.norm.weight", (hidden,)
    if not sizes["tie_word_embeddings"]:
        yield "lm_head.weight", vocab_shape


def _tensors(case: Case) -> Iterator[TensorSpec]:
    architecture = get_architecture(case.architecture)
    weights = _weights(case)
    for ours, name in architecture.hugging_face_names.items():
        for layer in range(case.sizes["num_hidden_layers"] if "{layer}" in ours else 1):
            for part in ("weight", "bias"):
                values = weights.pop(f"{name.format(layer=layer)}.{part}", None)
                if values is None:
                    continue
                if architecture.is_rope_interleaved and ours.endswith(("attn_q", "attn_k")):
                    values = _interleave(values, case.head_dim)
                yield encode_tensor(f"{ours.format(layer=layer)}.{part}", values)
    assert not weights, f"weights without a name of ours: {list(weights)}"
    scaling = case.config.get("rope_scaling", {})
    if scaling.get("rope_type") == "llama3":
        yield encode_tensor("rope_freqs.weight", _llama3_divisors(scaling, case.head_dim))


def _interleave(values: FloatArray, head_dim: int) -> FloatArray:
    """Rows i and i + head_dim / 2 of each head become neighbours."""
    halves = values.reshape(-1, 2, head_dim // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


def _llama3_divisors(scaling: dict[str, Any], head_dim: int) -> FloatArray:
    """What converters store: long waves divided by the factor, short ones kept, a ramp between."""
    wavelengths = 2.0 * math.pi * 10000.0 ** (np.arange(0, head_dim, 2) / head_dim)
    turns = scaling["original_max_position_embeddings"] / wavelengths
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    divisors: FloatArray = (1.0 / (kept + (1.0 - kept) / scaling["factor"])).astype(np.float32)
    return divisors
