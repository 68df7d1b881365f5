"""Logits of every architecture against transformers, on tiny seeded random configurations.

The transformers model is made here, its weights are saved as GGUF under our names (with the row
permutation of q and k that `llama` files have), and our model is run on that file. No downloads.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from powerinfer.gguf import TensorSpec, encode_tensor, open_gguf, write_gguf
from powerinfer.models import get_architecture, load_model
from powerinfer.ops.reference import ReferenceOps
from tolerances import assert_close

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

TOKEN_IDS = [3, 17, 40, 2, 91, 5, 66, 28, 7, 80, 12, 54, 33, 9, 71, 20, 1, 45, 88, 60]


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


@pytest.mark.parametrize("name", CASES)
def test_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    theirs = _make_theirs(case)
    expected = _run_theirs(theirs)
    path = tmp_path / "model.gguf"
    _save(path, case, theirs)
    model = load_model(open_gguf(path), ReferenceOps())
    cache = model.new_cache()
    got = model.forward(cache.batch([(0, TOKEN_IDS, 0)]), cache)
    assert_close(got, expected, "transformers")


def test_activation_option_overrides_a_plain_file(tmp_path: Path) -> None:
    """A ReLU model from llama.cpp's converter carries no key: the option must make it right."""
    case = Case("Llama", "llama", hidden_act="relu")
    theirs = _make_theirs(case)
    path = tmp_path / "model.gguf"
    _save(path, case, theirs)
    expected = _run_theirs(theirs)
    for activation, is_right in (("relu", True), (None, False)):
        model = load_model(open_gguf(path), ReferenceOps(), activation=activation)
        cache = model.new_cache()
        got = model.forward(cache.batch([(0, TOKEN_IDS, 0)]), cache)
        assert (np.abs(got - expected).max() < 0.01) == is_right


def _make_theirs(case: Case) -> Any:
    torch.manual_seed(11)
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 96,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "attn_implementation": "eager",
        "hidden_act": "relu" if case.hidden_act == "drelu" else case.hidden_act,
    }
    config = getattr(transformers, f"{case.kind}Config")(**(sizes | case.config))
    theirs = getattr(transformers, f"{case.kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            # The default spread of 0.02 would make every logit nearly equal.
            spread = 0.1 if parameter.ndim == 1 else parameter.shape[1] ** -0.5
            parameter.normal_(1.0 if "norm" in name else 0.0, spread)
        theirs.model.embed_tokens.weight.normal_(0.0, 1.0)
    if case.hidden_act == "drelu":
        for layer in theirs.model.layers:
            layer.mlp.forward = _drelu(layer.mlp)
    return theirs


def _drelu(mlp: Any) -> Callable[[Any], Any]:
    return lambda x: mlp.down_proj(torch.relu(mlp.gate_proj(x)) * torch.relu(mlp.up_proj(x)))


def _run_theirs(theirs: Any) -> npt.NDArray[np.float32]:
    with torch.no_grad():
        logits = theirs(torch.tensor([TOKEN_IDS])).logits[0].numpy()
    assert isinstance(logits, np.ndarray)
    return logits


def _save(path: Path, case: Case, theirs: Any) -> None:
    config = theirs.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    keys = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
    } | case.metadata
    metadata: dict[str, Any] = {"general.architecture": case.architecture}
    for key, value in keys.items():
        metadata[key[1:] if key.startswith("!") else f"{case.architecture}.{key}"] = value
    write_gguf(path, metadata, _tensors(case, theirs, head_dim))


def _tensors(case: Case, theirs: Any, head_dim: int) -> list[TensorSpec]:
    architecture = get_architecture(case.architecture)
    state = {name: tensor.numpy() for name, tensor in theirs.state_dict().items()}
    if theirs.config.tie_word_embeddings:
        del state["lm_head.weight"]
    tensors = []
    for ours, name in architecture.hugging_face_names.items():
        for layer in range(theirs.config.num_hidden_layers if "{layer}" in ours else 1):
            for part in ("weight", "bias"):
                values = state.pop(f"{name.format(layer=layer)}.{part}", None)
                if values is None:
                    continue
                if architecture.is_rope_interleaved and ours.endswith(("attn_q", "attn_k")):
                    values = _interleave(values, head_dim)
                tensors.append(encode_tensor(f"{ours.format(layer=layer)}.{part}", values))
    assert not state, f"weights without a name of ours: {list(state)}"
    if case.config.get("rope_scaling", {}).get("rope_type") == "llama3":
        tensors.append(encode_tensor("rope_freqs.weight", _divisors(theirs, head_dim)))
    return tensors


def _interleave(values: npt.NDArray[np.float32], head_dim: int) -> npt.NDArray[np.float32]:
    """Rows i and i + head_dim / 2 of each head become neighbours."""
    halves = values.reshape(-1, 2, head_dim // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


def _divisors(theirs: Any, head_dim: int) -> npt.NDArray[np.float32]:
    """What converters store: plain frequencies over transformers' scaled ones."""
    scaled = theirs.model.rotary_emb.inv_freq.numpy()
    plain = 10000.0 ** (-np.arange(0, head_dim, 2) / head_dim)
    divisors: npt.NDArray[np.float32] = (plain / scaled).astype(np.float32)
    return divisors
