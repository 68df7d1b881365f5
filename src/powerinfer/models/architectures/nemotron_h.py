"""Nemotron-H and the dense Nemotron Nano 2 and 3: a layer is a selective scan, attention or an FFN.

`attention.head_count_kv` and `feed_forward_length` have a number per layer: both are 0 for scans,
the second for attention, which does not rotate. FFNs are ungated, with ReLU^2. Any matrix may have
a bias. transformers clamps the steps of prompts' scans to `time_step_min`, but not those of
generated tokens; this engine, like llama.cpp, never clamps.
"""

import numpy as np

from powerinfer.gguf import keys
from powerinfer.models.architecture import AbsentParts, Architecture, Rotation
from powerinfer.models.architectures.mamba2 import run_layer, scan_metadata, scan_names
from powerinfer.models.checkpoints.config import CheckpointConfig
from powerinfer.models.checkpoints.rules import CheckpointRules
from powerinfer.models.metadata import Metadata
from powerinfer.models.mixers import StateMixer
from powerinfer.models.scales import Sizes
from powerinfer.models.selective_scan import read_selective_scan
from powerinfer.predictors import PredictorInput
from powerinfer.values import Activation, ActivationKind

__all__ = [
    "ARCHITECTURE",
    "HUGGING_FACE_NAMES",
    "MIXER",
    "OUTER",
    "blocks_of",
    "has_experts",
    "mixer_metadata",
]

_RELU2 = Activation(ActivationKind.RELU2)
_MAMBA, _ATTENTION, _MLP, _MOE = "mamba", "attention", "mlp", "moe"
# Names of versions 4 and 5 of transformers.
_KINDS = {
    "M": _MAMBA,
    "*": _ATTENTION,
    "-": _MLP,
    "E": _MOE,
    "mamba": _MAMBA,
    "linear_attention": _MAMBA,
    "attention": _ATTENTION,
    "full_attention": _ATTENTION,
    "mlp": _MLP,
    "moe": _MOE,
}
OUTER = ("model", "backbone")
"""The inner model in versions 5 and 4 of transformers."""

_LAYER = "layers.{layer}"
MIXER = f"{_LAYER}.mixer"
"""Module of any layer's only part in checkpoints, within the inner model."""


def _counts(metadata: Metadata, num_layers: int) -> tuple[list[int], list[int]]:
    """Key and value heads of each layer, and neurons."""
    heads = metadata.integers(keys.NUM_KV_HEADS, num_layers, low=0)
    return heads, metadata.integers(keys.INTERMEDIATE_SIZE, num_layers, low=0)


def _absent_parts(metadata: Metadata, num_layers: int) -> AbsentParts:
    _, sizes = _counts(metadata, num_layers)
    with_ffn = frozenset(number for number, size in enumerate(sizes) if size)
    return AbsentParts(mixers=with_ffn, ffns=frozenset(range(num_layers)) - with_ffn)


def _scans(metadata: Metadata, sizes: Sizes) -> dict[int, StateMixer]:
    counts = zip(*_counts(metadata, sizes.num_layers), strict=True)
    numbers = [number for number, pair in enumerate(counts) if pair == (0, 0)]
    return dict.fromkeys(numbers, read_selective_scan(metadata)) if numbers else {}


def blocks_of(config: CheckpointConfig) -> list[CheckpointConfig]:
    """Values of each layer in a Puzzle checkpoint, whose layers differ; empty in others."""
    key = "block_configs"
    found = config.values.get(key)
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(block, dict) for block in found):
        raise config.error(key, "expected a list of objects")
    return [
        CheckpointConfig(f"{config.path}: {key}[{number}]", block)
        for number, block in enumerate(found)
    ]


def _kinds(config: CheckpointConfig) -> tuple[str, list[str]]:
    """Name of the key with the kind of each layer, and its values, whatever they are."""
    if blocks := blocks_of(config):
        return "block_configs", [block.string("block_type") for block in blocks]
    names = ("layers_block_type", "hybrid_override_pattern")
    key = next((key for key in names if config.has(key)), names[0])
    found = config.values.get(key)
    return key, list(found) if isinstance(found, str | list) else []


def has_experts(config: CheckpointConfig) -> bool:
    """Look for a layer with experts."""
    return any(_KINDS.get(kind) == _MOE for kind in _kinds(config)[1])


def mixer_metadata(config: CheckpointConfig, neurons: int | list[int]) -> dict[str, object]:
    """Keys of a checkpoint's layers.

    Args:
        neurons: of the FFN, or of each expert, in layers that have one of them; a number per layer
            where these differ.

    Raises:
        UnsupportedError: layers of an unknown kind, FFNs beside experts, or sliding windows.
    """
    key, found = _kinds(config)
    if not found:
        raise config.error(key, "expected the kind of each layer")
    if any(kind not in _KINDS for kind in found):
        raise config.unsupported(key, ", ".join(_KINDS))
    kinds = [_KINDS[kind] for kind in found]
    if _MLP in kinds and _MOE in kinds:
        raise config.unsupported(key, "either FFNs or experts in all layers that have one of them")
    if config.has("sliding_window"):
        raise config.unsupported("sliding_window", "none")
    if config.string("mamba_hidden_act", "silu") != "silu":
        raise config.unsupported("mamba_hidden_act", "silu")
    num_kv_heads = config.integer("num_key_value_heads")
    counts = [num_kv_heads if kind == _ATTENTION else 0 for kind in kinds]
    by_layer = neurons if isinstance(neurons, list) else [neurons] * len(kinds)
    has_ffn = [kind in (_MLP, _MOE) for kind in kinds]
    sizes = [size if has else 0 for size, has in zip(by_layer, has_ffn, strict=True)]
    names = {"heads": "mamba_num_heads", "head_dim": "mamba_head_dim", "state": "ssm_state_size"}
    return {
        keys.NUM_LAYERS: len(kinds),
        keys.NUM_KV_HEADS: np.array(counts, np.int32),
        keys.INTERMEDIATE_SIZE: np.array(sizes, np.int32),
        # llama.cpp requires both.
        keys.LAYER_NORM_EPSILON: config.number("rms_norm_eps"),
        **scan_metadata(config, **names, taps="conv_kernel", groups="n_groups"),
    }


def _metadata(config: CheckpointConfig) -> dict[str, object]:
    if blocks_of(config):
        raise config.unsupported("block_configs", "those of models with experts")
    return mixer_metadata(config, config.integer("intermediate_size"))


_NAMES: dict[str, str | tuple[str, ...]] = {
    "token_embd": "embeddings",
    "output_norm": "norm_f",
    "blk.{layer}.attn_norm": f"{_LAYER}.norm",
    "blk.{layer}.attn_q": f"{MIXER}.q_proj",
    "blk.{layer}.attn_k": f"{MIXER}.k_proj",
    "blk.{layer}.attn_v": f"{MIXER}.v_proj",
    "blk.{layer}.attn_output": f"{MIXER}.o_proj",
    "blk.{layer}.ffn_up": f"{MIXER}.up_proj",
    "blk.{layer}.ffn_down": f"{MIXER}.down_proj",
    **scan_names(MIXER),
}
HUGGING_FACE_NAMES: dict[str, str | tuple[str, ...]] = {
    ours: tuple(f"{outer}.{theirs}" for outer in OUTER) for ours, theirs in _NAMES.items()
}
HUGGING_FACE_NAMES["output"] = "lm_head"

ARCHITECTURE = Architecture(
    name="nemotron_h",
    run_layer=run_layer,
    hugging_face_names=HUGGING_FACE_NAMES,
    checkpoint=CheckpointRules(
        ("nemotron_h",),
        left_out=("mtp.",),
        config_names={
            "rms_norm_eps": ("layer_norm_epsilon",),
            "hidden_act": ("mlp_hidden_act",),
            "head_dim": ("attention_head_dim",),
        },
        hidden_act="relu2",
        has_selective_scans=True,
        fits=lambda config: not has_experts(config),
        metadata=_metadata,
    ),
    activation=_RELU2,
    powerinfer_activation=_RELU2,
    is_rope_interleaved=False,
    rotation=Rotation.NEVER,
    layer_norms=("attn_norm",),
    is_gated=False,
    state_mixers=_scans,
    absent_parts=_absent_parts,
    # The original PowerInfer has no such models; what decides is the normalized input.
    predictor_input=PredictorInput.FFN_INPUT,
)
