"""Mamba-2: selective scans in all layers, without attention and without FFNs (arXiv 2405.21060)."""

import math

from powerinfer.gguf import keys
from powerinfer.kvcache.kv_cache import KVCache
from powerinfer.models.architecture import AbsentParts, Architecture, Rotation
from powerinfer.models.blocks import (
    Observer,
    Stage,
    end_of_layer,
    marks_of,
    mixer_block,
    normalize,
    select_rows,
    start_ffn_block,
)
from powerinfer.models.checkpoints.config import CheckpointConfig
from powerinfer.models.checkpoints.rules import CheckpointRules
from powerinfer.models.metadata import Metadata
from powerinfer.models.mixers import StateMixer
from powerinfer.models.model import Model
from powerinfer.models.scales import Scales, Sizes
from powerinfer.models.selective_scan import read_selective_scan
from powerinfer.ops.backend import Activations
from powerinfer.values import Batch, IntArray

__all__ = ["ARCHITECTURE", "check_steps", "run_layer", "scan_metadata", "scan_names"]

# Checkpoints do not say how long the texts of the training were; llama.cpp's converter writes this.
_CONTEXT = 1 << 20
# As versions 4 and 5 of transformers write it.
_INFINITY = (math.inf, {"__float__": "Infinity"})


def run_layer(
    model: Model,
    number: int,
    x: Activations,
    batch: Batch,
    cache: KVCache,
    *,
    wanted: IntArray | None,
    observe: Observer | None,
) -> Activations:
    """Run a layer with either a mixer or an FFN; see `llama.run_layer`."""
    ops, layer, options = model.ops, model.weights.layers[number], model.attention[number]
    norm = layer.norms["attn_norm"]
    if layer.own_mixer is not None:
        normed, own = normalize(ops, x, norm), cache.layers[number]
        ops.add(x, mixer_block(ops, layer, number, normed, own, batch, options, observe))
        x = select_rows(ops, x, wanted)
        if observe is not None and len(x):
            observe(Stage.ATTENTION, number, ops.to_host(x))
    else:
        x = select_rows(ops, x, wanted)
        if not len(x):
            return x
        marks, normed = marks_of(batch, wanted), normalize(ops, x, norm)
        finish = start_ffn_block(
            ops, layer, number, normed, raw=x, is_prompt=marks, observe=observe
        )
        ops.add(x, finish())
    return x if observe is None or not len(x) else end_of_layer(ops, number, x, observe)


def scan_names(mixer: str) -> dict[str, str | tuple[str, ...]]:
    """Names of a selective scan's tensors in checkpoints, under the name of its module."""
    return {
        "blk.{layer}.ssm_in": f"{mixer}.in_proj",
        "blk.{layer}.ssm_conv1d": f"{mixer}.conv1d",
        "blk.{layer}.ssm_a": f"{mixer}.A_log",
        "blk.{layer}.ssm_d": f"{mixer}.D",
        "blk.{layer}.ssm_dt": f"{mixer}.dt",
        "blk.{layer}.ssm_norm": f"{mixer}.norm",
        "blk.{layer}.ssm_out": f"{mixer}.out_proj",
    }


def scan_metadata(
    config: CheckpointConfig, *, heads: str, head_dim: str, state: str, taps: str, groups: str
) -> dict[str, object]:
    """Keys of a checkpoint's selective scans, from values with these names.

    Raises:
        UnsupportedError: heads do not fit groups.
    """
    num_heads, num_groups = config.integer(heads), config.integer(groups)
    if num_heads % num_groups:
        raise config.error(heads, f"expected a multiple of {groups} {num_groups}")
    return {
        keys.SSM_CONV_KERNEL: config.integer(taps),
        keys.SSM_STATE_SIZE: config.integer(state),
        keys.SSM_GROUP_COUNT: num_groups,
        keys.SSM_TIME_STEP_RANK: num_heads,
        keys.SSM_INNER_SIZE: num_heads * config.integer(head_dim),
    }


def check_steps(config: CheckpointConfig) -> None:
    """Raise UnsupportedError if the model clamps its steps."""
    if config.values.get("time_step_limit") not in (None, *([0.0, end] for end in _INFINITY)):
        raise config.unsupported("time_step_limit", "0 and infinity")


def _metadata(config: CheckpointConfig) -> dict[str, object]:
    check_steps(config)
    names = {"heads": "num_heads", "head_dim": "head_dim", "state": "state_size"}
    return scan_metadata(config, **names, taps="conv_kernel", groups="n_groups")


def _scans(metadata: Metadata, sizes: Sizes) -> dict[int, StateMixer]:
    return dict.fromkeys(range(sizes.num_layers), read_selective_scan(metadata))


ARCHITECTURE = Architecture(
    name="mamba2",
    run_layer=run_layer,
    hugging_face_names={
        "token_embd": "backbone.embeddings",
        "output_norm": "backbone.norm_f",
        "output": "lm_head",
        "blk.{layer}.attn_norm": "backbone.layers.{layer}.norm",
    }
    | scan_names("backbone.layers.{layer}.mixer"),
    checkpoint=CheckpointRules(
        ("mamba2",),
        config_names={"rms_norm_eps": ("layer_norm_epsilon",)},
        hidden_act="silu",
        context_length=_CONTEXT,
        has_selective_scans=True,
        metadata=_metadata,
    ),
    rotation=Rotation.NEVER,
    has_attention=False,
    layer_norms=("attn_norm",),
    scales=lambda _: Scales(attention=1.0),
    state_mixers=_scans,
    absent_parts=lambda _, num_layers: AbsentParts(ffns=frozenset(range(num_layers))),
)
