"""Qwen3.5, 3.6 and 3.8: gated delta rules, and gated attention in one of four layers.

The norm of the FFN's input is called `post_attention_norm`. Each head of `attn_q` has its query
and, below, its gate. Text has one position per token, so `rope.dimension_sections` change nothing.
Blocks that predict further tokens come last and are not run.
"""

import numpy as np
import numpy.typing as npt

from powerinfer.gguf import keys
from powerinfer.models.architecture import Architecture, QKNorm
from powerinfer.models.architectures.llama import HUGGING_FACE_NAMES, QK_NORM_NAMES, run_layer
from powerinfer.models.checkpoints.config import CheckpointConfig
from powerinfer.models.checkpoints.rules import CheckpointRules
from powerinfer.models.metadata import Metadata
from powerinfer.models.mixers import MAX_TAPS, DeltaRuleMixer, StateMixer
from powerinfer.models.scales import Sizes
from powerinfer.values import ActivationKind

__all__ = ["ARCHITECTURE", "LEFT_OUT", "MIXER_NAMES", "checkpoint_metadata"]

_INTERVAL = 4
# Far above any published model (64 value heads of width 128).
_MAX_HEADS, _MAX_WIDTH = 1 << 10, 1 << 10
_SECTIONS = (11, 11, 10)
_KINDS = {"linear_attention": True, "full_attention": False}
_MIXER = "model.layers.{layer}.linear_attn"

LEFT_OUT = ("mtp.", "model.mtp.", "model.visual.", "visual.")
"""Tensors of checkpoints that text does not need: further predicted tokens, and images."""

MIXER_NAMES: dict[str, str | tuple[str, ...]] = {
    ours: theirs
    for ours, theirs in (HUGGING_FACE_NAMES | QK_NORM_NAMES).items()
    if "ffn_norm" not in ours
} | {
    "blk.{layer}.post_attention_norm": "model.layers.{layer}.post_attention_layernorm",
    "blk.{layer}.attn_qkv": f"{_MIXER}.in_proj_qkv",
    "blk.{layer}.attn_gate": f"{_MIXER}.in_proj_z",
    "blk.{layer}.ssm_alpha": f"{_MIXER}.in_proj_a",
    "blk.{layer}.ssm_beta": f"{_MIXER}.in_proj_b",
    "blk.{layer}.ssm_conv1d": f"{_MIXER}.conv1d",
    "blk.{layer}.ssm_a": f"{_MIXER}.A_log",
    "blk.{layer}.ssm_dt": f"{_MIXER}.dt",
    "blk.{layer}.ssm_norm": f"{_MIXER}.norm",
    "blk.{layer}.ssm_out": f"{_MIXER}.out_proj",
}


def read_delta_rules(metadata: Metadata, sizes: Sizes) -> dict[int, StateMixer]:
    """Read the mixers of all layers without attention.

    Raises:
        GGUFError: a key is missing, out of range or contradicts another.
    """
    key_heads = metadata.integer(keys.SSM_GROUP_COUNT, high=_MAX_HEADS)
    value_heads = metadata.integer(keys.SSM_TIME_STEP_RANK, high=_MAX_HEADS)
    width = metadata.integer(keys.SSM_STATE_SIZE, high=_MAX_WIDTH)
    inner = metadata.integer(keys.SSM_INNER_SIZE)
    if value_heads % key_heads:
        raise metadata.error(
            metadata.key(keys.SSM_TIME_STEP_RANK),
            f"is {value_heads}; expected a multiple of the {key_heads} key heads",
        )
    if inner != value_heads * width:
        raise metadata.error(
            metadata.key(keys.SSM_INNER_SIZE),
            f"is {inner}; expected {value_heads} value heads of width {width}, "
            f"{value_heads * width}",
        )
    num_taps = metadata.integer(keys.SSM_CONV_KERNEL, low=2, high=MAX_TAPS)
    eps = metadata.number(keys.RMS_NORM_EPSILON, high=1.0)
    mixer = DeltaRuleMixer(key_heads, value_heads, width, num_taps, eps)
    return dict.fromkeys(_recurrent_layers(metadata, sizes.num_layers), mixer)


def _recurrent_layers(metadata: Metadata, num_layers: int) -> list[int]:
    """List the layers without attention, from one flag per block or from an interval."""
    key = metadata.key(keys.RECURRENT_LAYERS)
    if metadata.has(keys.RECURRENT_LAYERS):
        flags = metadata.file.get_array(key)
        num_blocks = num_layers + metadata.integer(keys.NUM_NEXTN_LAYERS, default=0, low=0)
        if flags.shape != (num_blocks,):
            raise metadata.error(
                key, f"has {flags.size} flags; expected one for each of {num_blocks} layers"
            )
        found = np.flatnonzero(flags[:num_layers]).tolist()
    else:
        key = metadata.key(keys.FULL_ATTENTION_INTERVAL)
        interval = metadata.integer(keys.FULL_ATTENTION_INTERVAL, default=_INTERVAL)
        found = [number for number in range(num_layers) if (number + 1) % interval]
    if len(found) == num_layers:
        raise metadata.error(key, f"leaves no layer with attention among {num_layers}")
    return found


def checkpoint_metadata(config: CheckpointConfig) -> dict[str, object]:
    """Keys of the mixers of a checkpoint.

    Raises:
        UnsupportedError: layers of an unknown type, attention without a gate, or value heads of
            another width than key heads.
    """
    key_heads = config.integer("linear_num_key_heads")
    value_heads = config.integer("linear_num_value_heads")
    if value_heads % key_heads:
        raise config.error(
            "linear_num_value_heads", f"expected a multiple of linear_num_key_heads {key_heads}"
        )
    width = config.integer("linear_key_head_dim")
    if config.integer("linear_value_head_dim") != width:
        raise config.unsupported("linear_value_head_dim", f"linear_key_head_dim, {width}")
    if not config.flag("attn_output_gate", default=True):
        raise config.unsupported("attn_output_gate", "true")
    interval = config.integer("full_attention_interval", _INTERVAL)
    found: dict[str, object] = {
        keys.FULL_ATTENTION_INTERVAL: interval,
        keys.ROPE_DIMENSION_SECTIONS: _sections(config),
        keys.SSM_CONV_KERNEL: config.integer("linear_conv_kernel_dim"),
        keys.SSM_STATE_SIZE: width,
        keys.SSM_GROUP_COUNT: key_heads,
        keys.SSM_TIME_STEP_RANK: value_heads,
        keys.SSM_INNER_SIZE: value_heads * width,
    }
    count = config.integer("num_hidden_layers")
    kinds = config.items("layer_types", str, count)
    if any(kind not in _KINDS for kind in kinds):
        raise config.unsupported("layer_types", ", ".join(_KINDS))
    flags = [_KINDS[str(kind)] for kind in kinds]
    if flags and flags != [(number + 1) % interval != 0 for number in range(count)]:
        found[keys.RECURRENT_LAYERS] = np.array(flags)
    return found


def _sections(config: CheckpointConfig) -> npt.NDArray[np.int32]:
    """Return i32[4]; llama.cpp requires the key."""
    parameters = config.part("rope_parameters")
    sections = parameters.items("mrope_section", int, len(_SECTIONS)) or _SECTIONS
    return np.array([*sections, 0], np.int32)


ARCHITECTURE = Architecture(
    name="qwen35",
    run_layer=run_layer,
    hugging_face_names=MIXER_NAMES,
    checkpoint=CheckpointRules(
        ("qwen3_5_text",),
        multimodal_types=("qwen3_5",),
        left_out=LEFT_OUT,
        activations={"silu": ActivationKind.SILU},
        rotary_share=0.25,
        adds_one_to_norms=True,
        has_value_groups=True,
        metadata=checkpoint_metadata,
    ),
    is_rope_interleaved=False,
    norm_names={"ffn_norm": "post_attention_norm"},
    qk_norm=QKNorm.HEAD,
    has_attention_gate=True,
    state_mixers=read_delta_rules,
)
