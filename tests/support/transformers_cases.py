"""What is compared with transformers, for the tests and `scripts/make-goldens-transformers`.

Each case is one small configuration in both notations; transformers_weights.py gives it weights.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["CASES", "FOLDER", "POSITIONS", "TOKEN_IDS", "Case"]

FOLDER = Path(__file__).resolve().parent.parent / "golden" / "transformers"

TOKEN_IDS = [3, 17, 40, 2, 91, 5, 66, 28, 7, 80, 12, 54, 33, 9, 71, 20, 1, 45, 88, 60]

POSITIONS = [0, 9, 19]
"""Positions whose logits are kept of `TOKEN_IDS`; of other prompts see `Case.positions`."""

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

# What configurations call a size where they do not call it as Llama's does; None if they lack it.
_OWN_NAMES: dict[str, dict[str, str | None]] = {
    "Falcon": {
        "intermediate_size": "ffn_hidden_size",
        "num_key_value_heads": "num_kv_heads",
        "rms_norm_eps": "layer_norm_epsilon",
        "hidden_act": "activation",
    },
    "OPT": {
        "intermediate_size": "ffn_dim",
        "num_key_value_heads": None,
        "rms_norm_eps": None,
        "hidden_act": "activation_function",
    },
    "Nemotron": {"rms_norm_eps": "norm_eps"},
    "Gemma3": {"hidden_act": "hidden_activation"},
    "Gemma4": {"hidden_act": "hidden_activation", "num_experts_per_tok": "top_k_experts"},
    "Lfm2": {"rms_norm_eps": "norm_eps", "hidden_act": None},
    "Lfm2Moe": {"rms_norm_eps": "norm_eps", "hidden_act": None},
    "Qwen3_5Moe": {"intermediate_size": None},
    "Mamba2": {"rms_norm_eps": "layer_norm_epsilon"}
    | dict.fromkeys(
        (
            *("intermediate_size", "num_attention_heads", "num_key_value_heads"),
            "max_position_embeddings",
        )
    ),
    "NemotronH": {
        "rms_norm_eps": "layer_norm_epsilon",
        "hidden_act": "mlp_hidden_act",
        "num_hidden_layers": None,
        "num_local_experts": "n_routed_experts",
    },
}


@dataclass(frozen=True)
class Case:
    """A configuration on both sides.

    Attributes:
        kind: transformers' prefix: Llama, Mistral, Qwen2.
        architecture: ours.
        config: arguments of the transformers configuration beyond the small sizes.
        metadata: GGUF keys that say the same, without the architecture's prefix; a key that
            begins with `!` has none.
        hidden_act: of the transformers MLP; `drelu` and `fatrelu` patch it.
        layer_norms: of every block.
        num_tokens: of the prompt.
    """

    kind: str
    architecture: str
    config: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    hidden_act: str = "silu"
    layer_norms: tuple[str, ...] = ("attn_norm", "ffn_norm")
    num_tokens: int = len(TOKEN_IDS)

    @property
    def token_ids(self) -> list[int]:
        """The prompt: `TOKEN_IDS` or its beginning, or a longer one."""
        wanted = self.num_tokens
        return TOKEN_IDS[:wanted] + [(7 * i * i + 3) % 96 for i in range(20, wanted)]

    @property
    def positions(self) -> list[int]:
        """Positions whose logits are kept."""
        return [0, self.num_tokens // 2 - 1, self.num_tokens - 1]

    @property
    def num_experts(self) -> int:
        """In each layer; 0 for one FFN."""
        return int(self.sizes.get("num_local_experts", self.sizes.get("num_experts", 0)))

    @property
    def expert_size(self) -> int:
        """Neurons of one expert."""
        return int(self.sizes.get("moe_intermediate_size", self.sizes["intermediate_size"]))

    @property
    def sizes(self) -> dict[str, Any]:
        """Arguments of the transformers configuration, under Llama's names."""
        return SIZES | self.config

    @property
    def arguments(self) -> dict[str, Any]:
        """The same under the names of this kind."""
        own = _OWN_NAMES.get(self.kind, {})
        act = "relu" if self.hidden_act in ("drelu", "fatrelu") else self.hidden_act
        named = {own.get(name, name): value for name, value in self.sizes.items()}
        named[own.get("hidden_act", "hidden_act")] = act
        return {name: value for name, value in named.items() if name is not None}

    @property
    def is_sparse(self) -> bool:
        """Whether neurons may be skipped."""
        return "relu" in self.hidden_act

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return int(self.sizes.get("head_dim", SIZES["hidden_size"] // 4))

    @property
    def num_dense_layers(self) -> int:
        """Layers at the beginning without experts."""
        return int(self.sizes.get("num_dense_layers", 0))

    def has_conv(self, layer: int) -> bool:
        """Whether a layer convolves instead of attending."""
        kinds = self.sizes.get("layer_types")
        return kinds is not None and kinds[layer] == "conv"


_MIXTRAL: dict[str, Any] = {
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "rope_theta": 1e6,
    "sliding_window": None,
}
_MIXTRAL_KEYS = {"rope.freq_base": 1e6}
_QWEN3_MOE = {
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "head_dim": 24,
    "norm_topk_prob": True,
}
_OLMOE = {"num_experts": 6, "num_experts_per_tok": 3}
_GRANITE_MOE = {
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.125,
    "logits_scaling": 6.0,
}
_GRANITE_KEYS = {
    "embedding_scale": 12.0,
    "residual_scale": 0.22,
    "attention.scale": 0.125,
    "logit_scale": 6.0,
}

_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

_FALCON_40B = {"new_decoder_architecture": True}
_OPT = {"num_key_value_heads": 4, "word_embed_proj_dim": 64, "tie_word_embeddings": True}
_FATRELU = {"!powerinfer.ffn_activation": "fatrelu", "!powerinfer.fatrelu_threshold": 0.25}
_GPT_OSS = {
    "num_hidden_layers": 3,
    "num_local_experts": 5,
    "num_experts_per_tok": 3,
    "head_dim": 24,
    "attention_bias": True,
    "sliding_window": 6,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 5000.0,
        "factor": 8.0,
        "original_max_position_embeddings": 16,
        "truncate": False,
    },
}
_GPT_OSS_KEYS = {
    "attention.sliding_window": 6,
    "rope.freq_base": 5000.0,
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 8.0,
    "rope.scaling.original_context_length": 16,
}
_GPT_OSS_NORMS = ("attn_norm", "post_attention_norm")
_GEMMA3_NORMS = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
_GEMMA3 = {
    "num_hidden_layers": 6,
    "tie_word_embeddings": True,
    "head_dim": 24,
    "query_pre_attn_scalar": 24,
    "sliding_window": 6,
}

_SLIDING, _FULL = "sliding_attention", "full_attention"
_GEMMA4: dict[str, Any] = {
    "num_hidden_layers": 5,
    "layer_types": [_SLIDING, _SLIDING, _FULL, _SLIDING, _FULL],
    "tie_word_embeddings": True,
    "head_dim": 16,
    "global_head_dim": 32,
    "sliding_window": 6,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 96,
    "rope_parameters": {
        _FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        _SLIDING: {"rope_type": "default", "rope_theta": 500.0},
    },
}
_GEMMA4_KEYS = {"rope.freq_base": 1e6, "rope.freq_base_swa": 500.0}


def _gemma4(num_tokens: int = len(TOKEN_IDS), **changes: Any) -> Case:
    keys = _GEMMA4_KEYS
    if "final_logit_softcapping" in changes:
        keys = keys | {"final_logit_softcapping": changes["final_logit_softcapping"]}
    act = "gelu_pytorch_tanh"
    return Case("Gemma4", "gemma4", _GEMMA4 | changes, keys, act, _GEMMA3_NORMS, num_tokens)


_GEMMA4_SMALL: dict[str, Any] = {
    "hidden_size_per_layer_input": 12,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "layer_types": [_SLIDING, _FULL, _SLIDING, _SLIDING, _FULL],
}
_GEMMA4_MOE: dict[str, Any] = {
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
    "enable_moe_block": True,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
}


_LFM2: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": ["conv", "full_attention", "conv", "conv"],
    "tie_word_embeddings": True,
    "block_auto_adjust_ff_dim": False,
}
_LFM2_KEYS = {
    "attention.head_count_kv": np.array([0, 2, 0, 0], np.int32),
    "shortconv.l_cache": 3,
    "rope.freq_base": 1e6,
}
_LFM2_MOE = {
    "num_hidden_layers": 4,
    "layer_types": ["conv", "full_attention", "conv", "full_attention"],
    "tie_word_embeddings": True,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "num_dense_layers": 1,
}
_LFM2_MOE_KEYS = {
    "attention.head_count_kv": np.array([0, 2, 0, 2], np.int32),
    "shortconv.l_cache": 3,
    "rope.freq_base": 1e6,
    "expert_gating_func": 2,
    "leading_dense_block_count": 1,
}

_QWEN35: dict[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 32,
    "rms_norm_eps": 1e-6,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 5000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    },
}
_QWEN35_NORMS = ("attn_norm", "post_attention_norm")
_QWEN35_MOE = _QWEN35 | {
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "shared_expert_intermediate_size": 24,
}


_MAMBA2: dict[str, Any] = {
    "num_hidden_layers": 3,
    "num_heads": 4,
    "head_dim": 32,
    "state_size": 16,
    "n_groups": 2,
    "conv_kernel": 4,
}
# transformers clamps steps of prompts from below, and takes the logarithm of the limit.
_NEMOTRON_H: dict[str, Any] = {
    "hybrid_override_pattern": "M*-M-",
    "num_hidden_layers": 5,
    "head_dim": 24,
    "mamba_num_heads": 4,
    "mamba_head_dim": 24,
    "ssm_state_size": 16,
    "n_groups": 2,
    "conv_kernel": 4,
    "time_step_min": 1e-30,
}
_NEMOTRON_H_MOE: dict[str, Any] = {
    "hybrid_override_pattern": "ME*E",
    "num_hidden_layers": 4,
    "num_local_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "moe_shared_expert_intermediate_size": 24,
    "routed_scaling_factor": 2.5,
}
_GRANITE_HYBRID: dict[str, Any] = _GRANITE_MOE | {
    "num_hidden_layers": 3,
    "layer_types": ["mamba", "attention", "mamba"],
    "shared_intermediate_size": 48,
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
}
_GRANITE_DENSE = {"num_local_experts": 0, "num_experts_per_tok": 0, "shared_intermediate_size": 80}
_NO_ROPE = {"rope.scaling.finetuned": False}
_ONE_NORM = ("attn_norm",)


def _mamba2(config: dict[str, Any], num_tokens: int = len(TOKEN_IDS)) -> Case:
    return Case("Mamba2", "mamba2", _MAMBA2 | config, layer_norms=_ONE_NORM, num_tokens=num_tokens)


def _nemotron_h(config: dict[str, Any], num_tokens: int = len(TOKEN_IDS)) -> Case:
    keys = {"attention.layer_norm_epsilon": 1e-5}
    if "num_local_experts" in config:
        keys |= {
            "expert_weights_norm": config.get("norm_topk_prob", True),
            "expert_weights_scale": config["routed_scaling_factor"],
        }
    if "moe_latent_size" in config:
        keys["moe_latent_size"] = config["moe_latent_size"]
    return Case(
        "NemotronH",
        "nemotron_h_moe" if "num_local_experts" in config else "nemotron_h",
        _NEMOTRON_H | config,
        keys,
        "relu2",
        _ONE_NORM,
        num_tokens,
    )


def _granite_hybrid(
    config: dict[str, Any],
    metadata: dict[str, Any] = _NO_ROPE,
    num_tokens: int = len(TOKEN_IDS),
) -> Case:
    keys = _GRANITE_KEYS | metadata
    config = _GRANITE_HYBRID | config
    return Case("GraniteMoeHybrid", "granitehybrid", config, keys, num_tokens=num_tokens)


def _qwen35(config: dict[str, Any] = _QWEN35, num_tokens: int = len(TOKEN_IDS)) -> Case:
    kind, name = ("Qwen3_5Moe", "qwen35moe") if "num_experts" in config else ("Qwen3_5", "qwen35")
    keys = {"rope.freq_base": 5000.0}
    return Case(kind, name, config, keys, layer_norms=_QWEN35_NORMS, num_tokens=num_tokens)


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
    "mistral-drelu": Case(
        "Mistral",
        "llama",
        {"sliding_window": None},
        {"!powerinfer.ffn_activation": "drelu"},
        hidden_act="drelu",
    ),
    "llama-fatrelu": Case("Llama", "llama", {}, _FATRELU, hidden_act="fatrelu"),
    "falcon-7b": Case(
        "Falcon",
        "falcon",
        {"num_key_value_heads": 1, "tie_word_embeddings": True},
        hidden_act="gelu_pytorch_tanh",
        layer_norms=("attn_norm",),
    ),
    "falcon-7b-relu": Case(
        "Falcon",
        "falcon",
        {"num_key_value_heads": 1},
        {"!powerinfer.ffn_activation": "relu"},
        hidden_act="relu",
        layer_norms=("attn_norm",),
    ),
    "falcon-40b": Case(
        "Falcon",
        "falcon",
        _FALCON_40B,
        hidden_act="gelu_pytorch_tanh",
        layer_norms=("attn_norm", "attn_norm_2"),
    ),
    "falcon-40b-relu": Case(
        "Falcon",
        "falcon",
        _FALCON_40B,
        {"!powerinfer.ffn_activation": "relu"},
        hidden_act="relu",
        layer_norms=("attn_norm", "attn_norm_2"),
    ),
    "opt": Case("OPT", "opt", _OPT, hidden_act="relu"),
    "opt-post-norm": Case(
        "OPT",
        "opt",
        _OPT | {"do_layer_norm_before": False},
        {"!powerinfer.post_norm": True},
        hidden_act="relu",
    ),
    "arcee": Case("Arcee", "arcee", hidden_act="relu2"),
    "arcee-biases-tied": Case(
        "Arcee",
        "arcee",
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
        hidden_act="relu2",
    ),
    "qwen3": Case("Qwen3", "qwen3", {"head_dim": 24, "rope_theta": 1e6}, {"rope.freq_base": 1e6}),
    "gemma3": Case(
        "Gemma3",
        "gemma3",
        _GEMMA3,
        {"attention.sliding_window": 6, "rope.freq_base": 1e6},
        hidden_act="gelu_pytorch_tanh",
        layer_norms=_GEMMA3_NORMS,
    ),
    "gemma3-options": Case(
        "Gemma3",
        "gemma3",
        _GEMMA3
        | {
            "num_hidden_layers": 4,
            "layer_types": ["full_attention", *["sliding_attention"] * 2, "full_attention"],
            "final_logit_softcapping": 2.0,
            "query_pre_attn_scalar": 40,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            },
        },
        {
            "attention.sliding_window": 6,
            "attention.sliding_window_pattern": np.array([False, True, True, False]),
            "attention.scale": 40**-0.5,
            "final_logit_softcapping": 2.0,
            "rope.freq_base": 5000.0,
            "rope.freq_base_swa": 500.0,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
        hidden_act="gelu_pytorch_tanh",
        layer_norms=_GEMMA3_NORMS,
    ),
    "gemma4": _gemma4(final_logit_softcapping=2.0),
    "gemma4-keys-are-values": _gemma4(attention_k_eq_v=True, num_global_key_value_heads=1),
    "gemma4-per-layer": _gemma4(**_GEMMA4_SMALL),
    "gemma4-per-layer-1-token": _gemma4(1, **_GEMMA4_SMALL),
    "gemma4-per-layer-600-tokens": _gemma4(600, **_GEMMA4_SMALL, max_position_embeddings=640),
    "gemma4-experts": _gemma4(**_GEMMA4_MOE),
    "gemma4-experts-7-tokens": _gemma4(7, **_GEMMA4_MOE),
    "gpt-oss": Case("GptOss", "gpt-oss", _GPT_OSS, _GPT_OSS_KEYS, layer_norms=_GPT_OSS_NORMS),
    "nemotron": Case(
        "Nemotron",
        "nemotron",
        {"partial_rotary_factor": 0.5},
        {"rope.dimension_count": 8},
        hidden_act="relu2",
    ),
    "nemotron-biases": Case(
        "Nemotron",
        "nemotron",
        {"partial_rotary_factor": 0.25, "attention_bias": True, "mlp_bias": True},
        {"rope.dimension_count": 4},
        hidden_act="relu2",
    ),
    "mixtral": Case("Mixtral", "llama", _MIXTRAL, _MIXTRAL_KEYS),
    "mixtral-7-tokens": Case("Mixtral", "llama", _MIXTRAL, _MIXTRAL_KEYS, num_tokens=7),
    "mixtral-600-tokens": Case(
        "Mixtral",
        "llama",
        _MIXTRAL | {"max_position_embeddings": 640},
        _MIXTRAL_KEYS,
        num_tokens=600,
    ),
    "mixtral-one-used": Case(
        "Mixtral", "llama", _MIXTRAL | {"num_experts_per_tok": 1}, _MIXTRAL_KEYS
    ),
    "mixtral-all-used": Case(
        "Mixtral", "llama", _MIXTRAL | {"num_experts_per_tok": 4}, _MIXTRAL_KEYS
    ),
    "mixtral-relu": Case(
        "Mixtral",
        "llama",
        _MIXTRAL,
        _MIXTRAL_KEYS | {"!powerinfer.ffn_activation": "relu"},
        hidden_act="relu",
    ),
    "qwen3moe": Case("Qwen3Moe", "qwen3moe", _QWEN3_MOE),
    "qwen3moe-not-normalized": Case(
        "Qwen3Moe",
        "qwen3moe",
        _QWEN3_MOE | {"norm_topk_prob": False},
        {"expert_weights_norm": False},
    ),
    "olmoe": Case("Olmoe", "olmoe", _OLMOE),
    "olmoe-normalized": Case(
        "Olmoe", "olmoe", _OLMOE | {"norm_topk_prob": True}, {"expert_weights_norm": True}
    ),
    "qwen35": _qwen35(),
    "qwen35-equal-heads": _qwen35(
        _QWEN35
        | {
            "tie_word_embeddings": True,
            "linear_num_value_heads": 2,
            "linear_conv_kernel_dim": 3,
            "layer_types": [*["linear_attention"] * 2, "full_attention", "linear_attention"],
        }
    ),
    "qwen35-1-token": _qwen35(num_tokens=1),
    "qwen35-7-tokens": _qwen35(num_tokens=7),
    "qwen35-600-tokens": _qwen35(_QWEN35 | {"max_position_embeddings": 640}, 600),
    "qwen35moe": _qwen35(_QWEN35_MOE),
    "qwen35moe-7-tokens": _qwen35(_QWEN35_MOE, 7),
    "granitemoe": Case("GraniteMoe", "granitemoe", _GRANITE_MOE, _GRANITE_KEYS),
    "granitemoe-shared": Case(
        "GraniteMoeShared",
        "granitemoe",
        _GRANITE_MOE | {"shared_intermediate_size": 48},
        _GRANITE_KEYS,
    ),
    "mamba2": _mamba2({}),
    "mamba2-1-group": _mamba2({"n_groups": 1, "use_conv_bias": False, "conv_kernel": 3}),
    "mamba2-biases-tied": _mamba2({"use_bias": True, "tie_word_embeddings": True}),
    "mamba2-1-token": _mamba2({}, 1),
    "mamba2-7-tokens": _mamba2({}, 7),
    "mamba2-600-tokens": _mamba2({"max_position_embeddings": 640}, 600),
    "nemotron_h": _nemotron_h({}),
    "nemotron_h-biases": _nemotron_h(
        {
            "hybrid_override_pattern": "-MM*",
            "num_hidden_layers": 4,
            "mlp_bias": True,
            "use_bias": True,
            "mamba_proj_bias": True,
        }
    ),
    "nemotron_h-7-tokens": _nemotron_h({}, 7),
    "nemotron_h-600-tokens": _nemotron_h({"max_position_embeddings": 640}, 600),
    "nemotron_h_moe": _nemotron_h(_NEMOTRON_H_MOE),
    "nemotron_h_moe-latent": _nemotron_h(
        _NEMOTRON_H_MOE | {"moe_latent_size": 24, "norm_topk_prob": False}
    ),
    "nemotron_h_moe-600-tokens": _nemotron_h(
        _NEMOTRON_H_MOE | {"max_position_embeddings": 640}, 600
    ),
    "granitehybrid": _granite_hybrid(_GRANITE_DENSE),
    "granitehybrid-experts": _granite_hybrid({}),
    "granitehybrid-rope": _granite_hybrid(
        _GRANITE_DENSE | {"position_embedding_type": "rope", "attention_multiplier": 1.0},
        {"rope.scaling.finetuned": True, "attention.scale": 1.0},
    ),
    "lfm2": Case("Lfm2", "lfm2", _LFM2, _LFM2_KEYS),
    "lfm2-1-token": Case("Lfm2", "lfm2", _LFM2, _LFM2_KEYS, num_tokens=1),
    "lfm2-7-tokens": Case("Lfm2", "lfm2", _LFM2, _LFM2_KEYS, num_tokens=7),
    "lfm2-600-tokens": Case(
        "Lfm2", "lfm2", _LFM2 | {"max_position_embeddings": 640}, _LFM2_KEYS, num_tokens=600
    ),
    "lfm2-5-taps": Case(
        "Lfm2",
        "lfm2",
        _LFM2 | {"conv_L_cache": 5, "num_key_value_heads": 4, "tie_word_embeddings": False},
        _LFM2_KEYS
        | {
            "attention.head_count_kv": np.array([0, 4, 0, 0], np.int32),
            "shortconv.l_cache": 5,
        },
    ),
    "lfm2moe": Case("Lfm2Moe", "lfm2moe", _LFM2_MOE, _LFM2_MOE_KEYS),
    "lfm2moe-600-tokens": Case(
        "Lfm2Moe",
        "lfm2moe",
        _LFM2_MOE | {"max_position_embeddings": 640},
        _LFM2_MOE_KEYS,
        num_tokens=600,
    ),
    "lfm2moe-not-normalized": Case(
        "Lfm2Moe",
        "lfm2moe",
        _LFM2_MOE | {"use_expert_bias": False, "norm_topk_prob": False},
        _LFM2_MOE_KEYS | {"expert_weights_norm": False},
    ),
}
