"""Seeded tiny models, written as GGUF: one row per architecture, for every test that runs one.

Weights come from the raw stream of PCG64, which numpy guarantees, so a file is the same bytes with
any numpy: golden files rely on it. In block formats the blocks themselves are random (see
`random_blocks`), which also exercises every bit.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from powerinfer.gguf import TensorSpec, write_gguf
from powerinfer.quant import get_format
from random_blocks import random_blocks
from tiny_gemma4 import SMALL_NORMS, Gemma4Layers, with_small_scores

__all__ = ["TINY_EXPERTS", "TINY_MODELS", "Stream", "TinyModel", "wide", "write_model"]

FloatArray = npt.NDArray[np.float32]

_SPECIAL = ("<unk>", "<s>", "</s>")
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6


@dataclass(frozen=True)
class TinyModel:
    """Recipe of a tiny model.

    Attributes:
        architecture: `general.architecture`.
        activation: `powerinfer.ffn_activation`, or None to leave the key out.
        metadata: further keys, without the architecture's prefix.
        format: of all matrices; norms and biases are f32.
        is_tied: no `output.weight`.
        is_down_transposed: `ffn_down_t` instead of `ffn_down`.
        is_qkv_fused: `attn_qkv` instead of three matrices.
        has_qkv_bias: biases on q, k and v.
        has_vocabulary: a SentencePiece-style vocabulary of bytes; needs vocab_size >= 259.
        predictor_rank: rows of `fc1` of a PowerInfer predictor; 0 for none.
        predictor_rank_step: by how many it grows from layer to layer.
        has_shared_fc1: all experts share the predictor's first matrix; else each has its own.
        has_linear_biases: biases on every linear layer.
        norms: of every block.
        has_norm_biases: LayerNorms, which have biases.
        is_gated: `ffn_gate` beside `ffn_up`.
        has_positions: learned positions; two rows more than `context_length`.
        is_post_norm: no `output_norm`, and the key that says so.
        has_head_norms: norms of the heads of q and k.
        has_projection_norms: norms of all of q and of k.
        has_sinks: attention sinks.
        embedding_spread: standard deviation of the embedding.
        other_formats: format of single matrices, by name without block and `.weight`.
        num_experts: in each layer, beside a router; 0 for one FFN.
        num_used_experts: of a token.
        expert_layout: how experts are stored, see `powerinfer.models.tensors.ffn_tensors`.
        shared_size: neurons of a shared expert; 0 for none.
        ffn_sizes: neurons of each layer's FFN, or of each of its experts; empty if all have
            `intermediate_size`.
        latent_size: width of the experts' input and output; 0 for that of the model.
        has_selection_bias: of the router, as in models with dense layers before the others.
        num_dense_layers: layers before those with experts.
        conv_layers: layers with a short convolution instead of attention.
        final_norm: name of the norm before the head.
        has_shared_gate: of the shared expert's output.
        delta_rule: key heads, value heads and the width of both in layers with a delta rule; None
            for attention in all layers. Attention has gates then.
        attention_interval: of these layers, each that often has attention instead.
        pattern: kind of each layer: M for a scan, * for attention, - for an FFN, E for experts;
            empty for layers told apart by other attributes.
        scan: groups, heads, their width and that of their states in layers with a scan.
        has_single_parts: a layer of a pattern has nothing else; else it also has an FFN.
        gemma4: how the layers of Gemma 4 differ; None for other architectures.
    """

    architecture: str
    hidden_size: int = 32
    intermediate_size: int = 48
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 8
    vocab_size: int = 288
    context_length: int = 160
    activation: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    format: str = "f32"
    magic: str = "GGUF"
    is_tied: bool = False
    is_down_transposed: bool = False
    is_qkv_fused: bool = False
    has_qkv_bias: bool = False
    has_vocabulary: bool = True
    predictor_rank: int = 0
    predictor_rank_step: int = 0
    has_shared_fc1: bool = False
    has_linear_biases: bool = False
    norms: tuple[str, ...] = ("attn_norm", "ffn_norm")
    has_norm_biases: bool = False
    is_gated: bool = True
    has_positions: bool = False
    is_post_norm: bool = False
    has_head_norms: bool = False
    has_projection_norms: bool = False
    has_sinks: bool = False
    embedding_spread: float = 1.0
    other_formats: dict[str, str] = field(default_factory=dict)
    num_experts: int = 0
    num_used_experts: int = 2
    expert_layout: Literal["merged", "single", "fused"] = "merged"
    shared_size: int = 0
    ffn_sizes: tuple[int, ...] = ()
    latent_size: int = 0
    has_selection_bias: bool = False
    num_dense_layers: int = 0
    conv_layers: tuple[int, ...] = ()
    final_norm: str = "output_norm"
    has_shared_gate: bool = False
    delta_rule: tuple[int, int, int] | None = None
    attention_interval: int = 2
    pattern: str = ""
    scan: tuple[int, int, int, int] | None = None
    has_single_parts: bool = False
    gemma4: Gemma4Layers | None = None

    def is_recurrent(self, layer: int) -> bool:
        """Whether a layer has a delta rule."""
        return self.delta_rule is not None and (layer + 1) % self.attention_interval != 0

    @property
    def has_ffns(self) -> bool:
        """Whether any layer has an FFN."""
        return any(map(self.has_ffn, range(self.num_layers)))

    def has_ffn(self, layer: int) -> bool:
        """Whether a layer has an FFN."""
        return not self.has_single_parts or self.pattern[layer] in "-E"

    def ffn_size(self, layer: int) -> int:
        """Neurons of the FFN of a layer, or of each of its experts."""
        return self.ffn_sizes[layer] if self.ffn_sizes else self.intermediate_size


_FALCON = TinyModel(
    "falcon",
    num_kv_heads=1,
    is_qkv_fused=True,
    norms=("attn_norm",),
    has_norm_biases=True,
    is_gated=False,
)
_FALCON_40B = replace(_FALCON, num_kv_heads=2, norms=("attn_norm", "attn_norm_2"))
_OPT = TinyModel(
    "opt",
    num_kv_heads=4,
    is_tied=True,
    has_linear_biases=True,
    has_norm_biases=True,
    is_gated=False,
    has_positions=True,
)
_NEMOTRON = TinyModel(
    "nemotron", has_norm_biases=True, is_gated=False, metadata={"rope.dimension_count": 4}
)

_QWEN3 = TinyModel("qwen3", head_dim=16, has_head_norms=True)
_GEMMA3 = TinyModel(
    "gemma3",
    is_tied=True,
    has_head_norms=True,
    norms=("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"),
    metadata={
        "attention.sliding_window": 7,
        "attention.sliding_window_pattern": 2,
        "rope.freq_base": 500.0,
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 2.0,
    },
)


_MIXTRAL = TinyModel("llama", num_experts=4)
_QWEN3_MOE = TinyModel("qwen3moe", head_dim=16, has_head_norms=True, num_experts=6)
_OLMOE = TinyModel("olmoe", has_projection_norms=True, num_experts=6, num_used_experts=3)
_GRANITE_MOE = TinyModel(
    "granitemoe",
    num_experts=5,
    metadata={
        "embedding_scale": 12.0,
        "residual_scale": 0.22,
        "attention.scale": 0.125,
        "logit_scale": 6.0,
    },
)
_SMALLTHINKER = TinyModel(
    "smallthinker",
    num_experts=5,
    is_tied=True,
    metadata={"expert_gating_func": 2, "rope.freq_base": 1.5e6},
)
_GPT_OSS = TinyModel(
    "gpt-oss",
    num_experts=4,
    has_linear_biases=True,
    has_sinks=True,
    norms=("attn_norm", "post_attention_norm"),
    metadata={
        "attention.sliding_window": 7,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 40,
    },
)
_QWEN35 = TinyModel(
    "qwen35",
    num_layers=3,
    head_dim=16,
    has_head_norms=True,
    norms=("attn_norm", "post_attention_norm"),
    delta_rule=(2, 4, 8),
    metadata={"rope.dimension_count": 4},
)
_QWEN35_MOE = replace(
    _QWEN35,
    architecture="qwen35moe",
    num_experts=6,
    shared_size=24,
    has_shared_gate=True,
)


_GEMMA4 = TinyModel(
    "gemma4",
    num_layers=5,
    is_tied=True,
    embedding_spread=0.25,
    metadata={"final_logit_softcapping": 30.0},
    gemma4=Gemma4Layers(),
)
_GEMMA4_SMALL = Gemma4Layers(
    (True, False, True, True, False),
    num_kv_heads=(1, 1),
    num_shared=2,
    per_layer_size=12,
    is_wide_when_shared=True,
)
_GEMMA4_MOE = Gemma4Layers(
    (True, True, False), num_kv_heads=(2, 1), has_full_values=False, has_experts=True
)


_LFM2 = TinyModel(
    "lfm2",
    num_layers=3,
    is_tied=True,
    has_head_norms=True,
    conv_layers=(0, 2),
    final_norm="token_embd_norm",
    metadata={"shortconv.l_cache": 3, "rope.freq_base": 1e6},
)
_LFM2_MOE = replace(
    _LFM2,
    architecture="lfm2moe",
    num_experts=5,
    num_dense_layers=1,
    metadata=_LFM2.metadata | {"expert_gating_func": 2, "leading_dense_block_count": 1},
)


_NEMOTRON_H = TinyModel(
    "nemotron_h",
    num_layers=5,
    norms=("attn_norm",),
    is_gated=False,
    pattern="M*-M-",
    scan=(2, 4, 8, 16),
    has_single_parts=True,
)
_NEMOTRON_H_MOE = replace(
    _NEMOTRON_H,
    architecture="nemotron_h_moe",
    pattern="ME*E",
    num_layers=4,
    num_experts=5,
    shared_size=24,
    has_selection_bias=True,
    metadata={"expert_weights_norm": True, "expert_weights_scale": 2.5},
)
_GRANITE_HYBRID = TinyModel(
    "granitehybrid",
    num_layers=3,
    pattern="M*M",
    scan=(1, 4, 16, 8),
    metadata=_GRANITE_MOE.metadata | {"rope.scaling.finetuned": False},
)


def _as_powerinfer(model: TinyModel) -> TinyModel:
    """As PowerInfer's converters store it: magic, transposed down, predictors."""
    return replace(
        model,
        magic="PWRI",
        is_down_transposed=True,
        predictor_rank=16,
        predictor_rank_step=8,
    )


TINY_MODELS = {
    "llama": TinyModel("llama"),
    "llama-tied": TinyModel("llama", is_tied=True, num_kv_heads=4),
    "llama-fused": TinyModel("llama", is_qkv_fused=True, has_qkv_bias=True, num_kv_heads=1),
    "llama-window": TinyModel("llama", metadata={"attention.sliding_window": 7}),
    "llama-wide-heads": TinyModel(
        "llama", head_dim=16, metadata={"rope.dimension_count": 8, "rope.freq_base": 500.0}
    ),
    "llama-yarn": TinyModel(
        "llama",
        metadata={
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 40,
        },
    ),
    "llama-relu": TinyModel("llama", activation="relu"),
    "llama-relu2": TinyModel("llama", activation="relu2"),
    "llama-drelu-transposed": TinyModel("llama", activation="drelu", is_down_transposed=True),
    "llama-powerinfer": TinyModel(
        "llama", magic="PWRI", is_down_transposed=True, predictor_rank=16
    ),
    "qwen2": TinyModel("qwen2", has_qkv_bias=True),
    "qwen2-drelu": TinyModel("qwen2", has_qkv_bias=True, activation="drelu"),
    "bamboo": TinyModel("bamboo", magic="PWRI", is_down_transposed=True, predictor_rank=16),
    "falcon": _FALCON,
    "falcon-40b-relu": replace(_FALCON_40B, activation="relu"),
    "falcon-powerinfer": _as_powerinfer(_FALCON),
    "falcon-40b-powerinfer": _as_powerinfer(_FALCON_40B),
    "opt": _OPT,
    "opt-post-norm": replace(_OPT, is_post_norm=True),
    "opt-powerinfer": _as_powerinfer(_OPT),
    "arcee": TinyModel("arcee", is_gated=False),
    "arcee-transposed": TinyModel("arcee", is_gated=False, is_down_transposed=True),
    "qwen3": _QWEN3,
    "qwen3-drelu": replace(_QWEN3, activation="drelu", is_down_transposed=True),
    "mixtral": _MIXTRAL,
    "mixtral-single": replace(_MIXTRAL, expert_layout="single"),
    "mixtral-fused": replace(_MIXTRAL, expert_layout="fused", num_used_experts=1),
    "mixtral-drelu-transposed": replace(
        _MIXTRAL, activation="drelu", is_down_transposed=True, num_experts=5, num_used_experts=3
    ),
    "mixtral-relu-biases": replace(_MIXTRAL, activation="relu", has_linear_biases=True),
    "qwen3moe": _QWEN3_MOE,
    "qwen3moe-relu": replace(_QWEN3_MOE, activation="relu", is_down_transposed=True),
    "olmoe": _OLMOE,
    "olmoe-all-used": replace(_OLMOE, num_used_experts=6),
    "granitemoe": _GRANITE_MOE,
    "granitemoe-shared": replace(_GRANITE_MOE, shared_size=24),
    "smallthinker": _SMALLTHINKER,
    "smallthinker-window": replace(
        _SMALLTHINKER,
        is_down_transposed=True,
        num_used_experts=3,
        metadata={
            "expert_gating_func": 1,
            "attention.sliding_window": 7,
            "attention.sliding_window_pattern": 2,
        },
    ),
    "gpt-oss": _GPT_OSS,
    "qwen35": _QWEN35,
    "qwen35-equal-heads": replace(
        _QWEN35, delta_rule=(3, 3, 8), num_kv_heads=4, is_tied=True, attention_interval=3
    ),
    "qwen35-relu": replace(_QWEN35, activation="relu", is_down_transposed=True),
    "qwen35moe": _QWEN35_MOE,
    "qwen35moe-fused": replace(
        _QWEN35_MOE, expert_layout="fused", num_layers=2, delta_rule=(1, 3, 8)
    ),
    "gemma3": _GEMMA3,
    "gemma3-capped": replace(
        _GEMMA3,
        metadata={
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 30.0,
            "attention.scale": 0.5,
            "embedding_scale": 2.0,
        },
    ),
    "gemma4": _GEMMA4,
    "gemma4-per-layer": replace(_GEMMA4, gemma4=_GEMMA4_SMALL),
    "gemma4-experts": replace(
        _GEMMA4, num_layers=3, num_experts=5, gemma4=_GEMMA4_MOE, expert_layout="fused"
    ),
    "lfm2": _LFM2,
    "lfm2-last-attends": replace(
        _LFM2, conv_layers=(0,), num_kv_heads=1, metadata={"shortconv.l_cache": 4}
    ),
    "lfm2moe": _LFM2_MOE,
    "mamba2": TinyModel(
        "mamba2",
        norms=("attn_norm",),
        pattern="MM",
        scan=(2, 4, 16, 8),
        has_single_parts=True,
        metadata={"attention.head_count": 0, "feed_forward_length": 0},
    ),
    "nemotron_h": _NEMOTRON_H,
    "nemotron_h-biases": replace(
        _NEMOTRON_H,
        pattern="-*M",
        num_layers=3,
        scan=(1, 2, 16, 20),
        has_linear_biases=True,
        is_down_transposed=True,
    ),
    "nemotron_h_moe": _NEMOTRON_H_MOE,
    "nemotron_h_moe-latent": replace(
        _NEMOTRON_H_MOE, latent_size=20, is_down_transposed=True, num_used_experts=3
    ),
    "granitehybrid": _GRANITE_HYBRID,
    "granitehybrid-experts": replace(
        _GRANITE_HYBRID,
        num_experts=5,
        shared_size=24,
        metadata=_GRANITE_MOE.metadata | {"rope.scaling.finetuned": True},
    ),
    "nemotron": _NEMOTRON,
    "nemotron-biases": replace(_NEMOTRON, has_linear_biases=True, is_down_transposed=True),
}
"""Recipes by name: at least one per file in ``models/architectures``."""

TINY_EXPERTS = {name: model for name, model in TINY_MODELS.items() if model.num_experts} | {
    "mixtral-drelu-predictors": replace(
        _MIXTRAL,
        activation="drelu",
        is_down_transposed=True,
        predictor_rank=16,
        predictor_rank_step=8,
    ),
    "smallthinker-predictors": replace(
        _SMALLTHINKER,
        is_down_transposed=True,
        num_used_experts=3,
        predictor_rank=16,
        has_shared_fc1=True,
    ),
}
"""Those with experts, and some with predictors of experts, which no published model has."""


def wide(model: TinyModel, format_name: str = "f32") -> TinyModel:
    """The same recipe with sizes that are multiples of 256, as block formats need."""
    return replace(
        model,
        hidden_size=256,
        intermediate_size=512,
        shared_size=256 if model.shared_size else 0,
        latent_size=256 if model.latent_size else 0,
        num_heads=4,
        num_kv_heads=2,
        head_dim=64,
        vocab_size=512,
        format=format_name,
        delta_rule=(2, 4, 64) if model.delta_rule else None,
        scan=(model.scan[0], 8, 64, 64) if model.scan else None,
        gemma4=model.gemma4
        and replace(
            model.gemma4,
            head_dims=(64, 128),
            per_layer_size=256 if model.gemma4.per_layer_size else 0,
        ),
    )


def write_model(path: Path, model: TinyModel, seed: int = 0) -> Path:
    """Write the model of a recipe; the same bytes for the same recipe and seed.

    Args:
        path: file to make.
        model: recipe.
        seed: of the weights.

    Returns:
        `path`.
    """
    stream = Stream(seed)
    write_gguf(path, _metadata(model), list(_tensors(model, stream)), magic=model.magic)
    return path


class Stream:
    """Numbers whose values numpy guarantees: raw 64-bit output of PCG64."""

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(seed)

    def bytes(self, count: int) -> npt.NDArray[np.uint8]:
        """u8[count], uniform."""
        raw = np.asarray(self._bits.random_raw(-(-count // 8)), "<u8")
        return raw.view(np.uint8)[:count]

    def numbers(self, shape: tuple[int, ...], spread: float) -> FloatArray:
        """f32[shape], uniform with mean 0 and this standard deviation."""
        raw = np.asarray(self._bits.random_raw(int(np.prod(shape))), "<u8")
        unit = (raw >> np.uint64(40)).astype(np.float64) / float(1 << 24)
        numbers: FloatArray = ((2.0 * unit - 1.0) * spread * 3.0**0.5).astype(np.float32)
        return numbers.reshape(shape)


def _metadata(model: TinyModel) -> dict[str, Any]:
    prefix = model.architecture
    sizes: dict[str, Any] = {
        "context_length": model.context_length,
        "embedding_length": model.hidden_size,
        "block_count": model.num_layers,
        "feed_forward_length": model.intermediate_size,
        "attention.head_count": model.num_heads,
        "attention.head_count_kv": model.num_kv_heads,
        "attention.key_length": model.head_dim,
        "attention.value_length": model.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": model.head_dim,
        "vocab_size": model.vocab_size,
    }
    sizes |= _layer_keys(model)
    if model.has_norm_biases:
        sizes["attention.layer_norm_epsilon"] = sizes.pop("attention.layer_norm_rms_epsilon")
    if model.has_positions:
        del sizes["rope.dimension_count"]
    metadata: dict[str, Any] = {"general.architecture": prefix, "general.name": "tiny"}
    metadata |= {f"{prefix}.{key}": value for key, value in (sizes | model.metadata).items()}
    if model.activation is not None:
        metadata["powerinfer.ffn_activation"] = model.activation
    if model.is_post_norm:
        metadata["powerinfer.post_norm"] = True
    return metadata | (_vocabulary(model) if model.has_vocabulary else _no_vocabulary())


def _layer_keys(model: TinyModel) -> dict[str, Any]:
    """Keys of layers that have something else than attention and a dense FFN, all the same."""
    found: dict[str, Any] = {}
    if model.conv_layers:
        heads = [model.num_kv_heads] * model.num_layers
        for layer in model.conv_layers:
            heads[layer] = 0
        found["attention.head_count_kv"] = np.array(heads, "i4")
    if model.scan is not None:
        found |= _scan_keys(model, *model.scan)
    if model.num_experts:
        found |= _expert_keys(model)
    if model.gemma4 is not None:
        found |= model.gemma4.keys(model.intermediate_size)
    if model.delta_rule is not None:
        found |= _delta_rule_keys(*model.delta_rule, model.attention_interval)
    return found


def _expert_keys(model: TinyModel) -> dict[str, Any]:
    keys = {
        "expert_count": model.num_experts,
        "expert_used_count": model.num_used_experts,
        "expert_feed_forward_length": np.array(model.ffn_sizes, "i4")
        if model.ffn_sizes
        else model.intermediate_size,
        "expert_shared_feed_forward_length": model.shared_size,
    }
    return keys | ({"moe_latent_size": model.latent_size} if model.latent_size else {})


def _delta_rule_keys(
    num_key_heads: int, num_value_heads: int, width: int, interval: int
) -> dict[str, Any]:
    return {
        "attention.layer_norm_rms_epsilon": 1e-6,
        "full_attention_interval": interval,
        "rope.dimension_sections": np.array([11, 11, 10, 0], np.int32),
        "ssm.conv_kernel": 4,
        "ssm.state_size": width,
        "ssm.group_count": num_key_heads,
        "ssm.time_step_rank": num_value_heads,
        "ssm.inner_size": num_value_heads * width,
    }


def _scan_keys(
    model: TinyModel, num_groups: int, num_heads: int, width: int, state_dim: int
) -> dict[str, Any]:
    counts = [model.num_kv_heads if kind == "*" else 0 for kind in model.pattern]
    neurons = [model.ffn_size(n) * model.has_ffn(n) for n in range(model.num_layers)]
    found: dict[str, Any] = {
        "attention.head_count_kv": np.array(counts, "i4"),
        "ssm.conv_kernel": 4,
        "ssm.state_size": state_dim,
        "ssm.group_count": num_groups,
        "ssm.time_step_rank": num_heads,
        "ssm.inner_size": num_heads * width,
    }
    if model.has_single_parts:
        # llama.cpp requires both.
        found |= {
            "feed_forward_length": np.array(neurons, "i4"),
            "attention.layer_norm_epsilon": 1e-5,
        }
    return found


def _no_vocabulary() -> dict[str, Any]:
    return {"tokenizer.ggml.model": "none"}


def _vocabulary(model: TinyModel) -> dict[str, Any]:
    """Special tokens, all bytes, then pieces of one letter with a space before them or not."""
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    pieces = ["\u2581", *letters, *(f"\u2581{letter}" for letter in letters)]
    pieces += [f"{first}{second}" for first in letters for second in letters]
    tokens = [*_SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces][: model.vocab_size]
    num_pieces = len(tokens) - 259
    types = [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * 256, *[_NORMAL] * num_pieces]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.array(
            [0.0] * 259 + [-1.0 - i for i in range(num_pieces)], "f4"
        ),
        "tokenizer.ggml.token_type": np.array(types, "i4"),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
    }


def _tensors(model: TinyModel, stream: Stream) -> Iterator[TensorSpec]:
    hidden = model.hidden_size
    vocab_shape = (model.vocab_size, hidden)
    yield _matrix("token_embd.weight", vocab_shape, model.format, stream, model.embedding_spread)
    if model.has_positions:
        positions = (model.context_length + 2, hidden)
        yield _matrix("position_embd.weight", positions, model.format, stream, 0.5)
    if model.gemma4 is not None:
        divisors = model.gemma4.divisors()
        yield "rope_freqs.weight", divisors.shape, "f32", divisors.tobytes()
        for name, shape in model.gemma4.outer(hidden, model.vocab_size):
            yield _tensor(name, shape, model.format, stream)
    for layer in range(model.num_layers):
        for name, shape, format_name in _layer_tensors(model, layer):
            made = _tensor(f"blk.{layer}.{name}", shape, format_name, stream)
            is_small = model.gemma4 is not None and name in SMALL_NORMS
            yield with_small_scores(made) if is_small else made
    if not model.is_post_norm:
        yield _tensor(f"{model.final_norm}.weight", (hidden,), "f32", stream)
        if model.has_norm_biases:
            yield _tensor("output_norm.bias", (hidden,), "f32", stream)
    if not model.is_tied:
        format_name = model.other_formats.get("output", model.format)
        yield _tensor("output.weight", vocab_shape, format_name, stream)


def _layer_tensors(model: TinyModel, layer: int) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Name without the block's prefix, shape, format."""
    hidden = model.hidden_size
    if model.gemma4 is not None:
        yield from _gemma4(model, model.gemma4, layer)
        return
    yield from _norm(model, model.norms[0])
    kind = model.pattern[layer : layer + 1]
    if model.is_recurrent(layer):
        yield from _delta_rule(model)
    elif kind == "M":
        yield from _scan(model)
    elif kind not in ("-", "E"):
        yield from _conv(model) if layer in model.conv_layers else _attention(model)
    for norm in model.norms[1:]:
        yield from _norm(model, norm)
    if model.has_ffn(layer):
        yield from _ffn(model, layer)
    if model.predictor_rank:
        rank = model.predictor_rank + layer * model.predictor_rank_step
        experts = (model.num_experts,) if model.num_experts else ()
        shapes = {"fc1": (rank, hidden), "fc2": (model.intermediate_size, rank)}
        for name, shape in shapes.items():
            is_shared = name == "fc1" and model.has_shared_fc1
            own = () if is_shared else experts
            stored = f"{name}_exps.weight" if own else f"{name}.weight"
            yield stored, (*own, *shape), model.other_formats.get(name, "f32")


def _gemma4(
    model: TinyModel, layers: Gemma4Layers, layer: int
) -> Iterator[tuple[str, tuple[int, ...], str]]:
    hidden = model.hidden_size
    for name, shape in layers.block(layer, hidden, model.num_heads, model.intermediate_size):
        yield name, shape, model.format
    if layers.has_experts:
        yield from _experts(model, model.intermediate_size)
        for name, shape in layers.beside_experts(hidden, model.num_experts):
            yield name, shape, "f32"


def _conv(model: TinyModel) -> Iterator[tuple[str, tuple[int, ...], str]]:
    hidden = model.hidden_size
    yield from _linear(model, "shortconv.in_proj", (3 * hidden, hidden))
    yield "shortconv.conv.weight", (hidden, model.metadata["shortconv.l_cache"]), "f32"
    yield from _linear(model, "shortconv.out_proj", (hidden, hidden))


def _attention(model: TinyModel) -> Iterator[tuple[str, tuple[int, ...], str]]:
    hidden, q_size = model.hidden_size, model.num_heads * model.head_dim
    for name, size in _attention_inputs(model).items():
        yield from _linear(model, name, (size, hidden), has_bias=model.has_qkv_bias)
    if model.has_head_norms:
        yield "attn_q_norm.weight", (model.head_dim,), "f32"
        yield "attn_k_norm.weight", (model.head_dim,), "f32"
    if model.has_projection_norms:
        yield "attn_q_norm.weight", (q_size,), "f32"
        yield "attn_k_norm.weight", (model.num_kv_heads * model.head_dim,), "f32"
    if model.has_sinks:
        yield "attn_sinks.weight", (model.num_heads,), "f32"
    yield from _linear(model, "attn_output", (hidden, q_size))


def _delta_rule(model: TinyModel) -> Iterator[tuple[str, tuple[int, ...], str]]:
    key_heads, value_heads, width = model.delta_rule or (0, 0, 0)
    hidden, inner = model.hidden_size, value_heads * width
    channels = 2 * key_heads * width + inner
    yield from _linear(model, "attn_qkv", (channels, hidden))
    yield from _linear(model, "attn_gate", (inner, hidden))
    yield "ssm_conv1d.weight", (channels, 4), "f32"
    yield "ssm_dt.bias", (value_heads,), "f32"
    yield "ssm_a", (value_heads,), "f32"
    yield "ssm_beta.weight", (value_heads, hidden), "f32"
    yield "ssm_alpha.weight", (value_heads, hidden), "f32"
    yield "ssm_norm.weight", (width,), "f32"
    yield from _linear(model, "ssm_out", (hidden, inner))


def _scan(model: TinyModel) -> Iterator[tuple[str, tuple[int, ...], str]]:
    groups, heads, width, state_dim = model.scan or (0, 0, 0, 0)
    inner = heads * width
    channels = inner + 2 * groups * state_dim
    yield from _linear(model, "ssm_in", (inner + channels + heads, model.hidden_size))
    yield "ssm_conv1d.weight", (channels, 4), "f32"
    yield "ssm_conv1d.bias", (channels,), "f32"
    yield "ssm_dt.bias", (heads,), "f32"
    yield "ssm_a", (heads, 1), "f32"
    yield "ssm_d", (heads, 1), "f32"
    yield "ssm_norm.weight", (groups, inner // groups), "f32"
    yield from _linear(model, "ssm_out", (model.hidden_size, inner))


def _attention_inputs(model: TinyModel) -> dict[str, int]:
    """Name and rows of what makes queries, keys and values."""
    q_size, kv_size = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    if model.is_qkv_fused:
        return {"attn_qkv": q_size + 2 * kv_size}
    has_gate = model.delta_rule is not None
    return {"attn_q": q_size * (1 + has_gate), "attn_k": kv_size, "attn_v": kv_size}


def _ffn(model: TinyModel, layer: int) -> Iterator[tuple[str, tuple[int, ...], str]]:
    if model.num_experts and layer >= model.num_dense_layers:
        yield from _experts(model, model.ffn_size(layer))
    else:
        yield from _dense(model, "", model.ffn_size(layer))
    if model.shared_size:
        yield from _dense(model, "_shexp", model.shared_size)
    if model.has_shared_gate:
        yield "ffn_gate_inp_shexp.weight", (1, model.hidden_size), "f32"


def _dense(
    model: TinyModel, suffix: str, neurons: int
) -> Iterator[tuple[str, tuple[int, ...], str]]:
    hidden = model.hidden_size
    if model.is_gated:
        yield from _linear(model, f"ffn_gate{suffix}", (neurons, hidden))
    yield from _linear(model, f"ffn_up{suffix}", (neurons, hidden))
    if not model.is_down_transposed:
        yield from _linear(model, f"ffn_down{suffix}", (hidden, neurons))
        return
    yield from _linear(model, f"ffn_down{suffix}_t", (neurons, hidden))


def _experts(model: TinyModel, neurons: int) -> Iterator[tuple[str, tuple[int, ...], str]]:
    hidden, count = model.hidden_size, model.num_experts
    yield "ffn_gate_inp.weight", (count, hidden), "f32"
    if model.latent_size:
        yield from _linear(model, "ffn_latent_down", (model.latent_size, hidden))
        yield from _linear(model, "ffn_latent_up", (hidden, model.latent_size))
        hidden = model.latent_size
    if model.num_dense_layers or model.has_selection_bias:
        yield "exp_probs_b.bias", (count,), "f32"
    if model.has_linear_biases:
        yield "ffn_gate_inp.bias", (count,), "f32"
    is_fused = model.expert_layout == "fused" and model.is_gated
    names = ["ffn_gate_up"] if is_fused else ["ffn_gate"] * model.is_gated + ["ffn_up"]
    shapes = dict.fromkeys(names, (neurons, hidden))
    if is_fused:
        shapes["ffn_gate_up"] = (2 * neurons, hidden)
    shapes["ffn_down"] = (neurons, hidden) if model.is_down_transposed else (hidden, neurons)
    for name, shape in shapes.items():
        format_name = model.other_formats.get(name, model.format)
        if model.expert_layout == "single":
            for expert in range(count):
                yield f"{name}.{expert}.weight", shape, format_name
            continue
        is_turned = name == "ffn_down" and model.is_down_transposed
        stored = f"{name}_exps_t" if is_turned else f"{name}_exps"
        yield f"{stored}.weight", (count, *shape), format_name
        if model.has_linear_biases:
            size = hidden if name == "ffn_down" else shape[0]
            yield f"{stored}.bias", (count, size), "f32"


def _linear(
    model: TinyModel, name: str, shape: tuple[int, int], *, has_bias: bool = False
) -> Iterator[tuple[str, tuple[int, ...], str]]:
    yield f"{name}.weight", shape, model.other_formats.get(name, model.format)
    if has_bias or model.has_linear_biases:
        is_turned = name.startswith("ffn_down") and name.endswith("_t")
        yield f"{name}.bias", (model.hidden_size,) if is_turned else shape[:1], "f32"


def _norm(model: TinyModel, name: str) -> Iterator[tuple[str, tuple[int, ...], str]]:
    yield f"{name}.weight", (model.hidden_size,), "f32"
    if model.has_norm_biases:
        yield f"{name}.bias", (model.hidden_size,), "f32"


def _tensor(name: str, shape: tuple[int, ...], format_name: str, stream: Stream) -> TensorSpec:
    if len(shape) >= 2 and name.endswith("weight") and "norm" not in name:
        return _matrix(name, shape, format_name, stream, shape[-1] ** -0.5)
    if "norm" in name and name.endswith("weight"):
        return name, shape, "f32", (1.0 + stream.numbers(shape, 0.1)).astype("<f4").tobytes()
    numbers = stream.numbers(shape, 0.3)
    if name.endswith("gate_inp.scale"):
        numbers = (1.0 + numbers) * np.float32(shape[0] ** 0.5)
    elif "scale" in name:
        numbers = np.float32(1.0) + numbers
    if name.endswith("ssm_a"):
        numbers = -np.abs(numbers)
    return name, shape, "f32", numbers.astype("<f4").tobytes()


def _matrix(
    name: str, shape: tuple[int, ...], format_name: str, stream: Stream, spread: float
) -> TensorSpec:
    """Weights with this standard deviation, nearly."""
    known = get_format(format_name)
    if known.block_size == 1:
        return name, shape, format_name, known.encode(stream.numbers(shape, spread)).tobytes()
    num_blocks = int(np.prod(shape)) // known.block_size
    codes = stream.bytes(num_blocks * known.block_bytes).reshape(num_blocks, -1)
    jitter = 0.5 + stream.bytes(num_blocks).astype(np.float64) / 255.0
    return name, shape, format_name, random_blocks(format_name, codes, spread, jitter).tobytes()
