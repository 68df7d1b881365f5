"""Granite 4.0 H: the blocks of Granite with selective scans in most layers, dense or with experts.

`attention.head_count_kv` is 0 in layers with a scan. Attention rotates only if
`rope.scaling.finetuned` says so. Keys of the file scale the embedding, the output of blocks, scores
and logits. Checkpoints call the FFN of dense models a shared expert.
"""

from dataclasses import replace

import numpy as np

from powerinfer.gguf import keys
from powerinfer.models.architecture import Rotation
from powerinfer.models.architectures import granitemoe
from powerinfer.models.architectures.mamba2 import check_steps, scan_metadata, scan_names
from powerinfer.models.checkpoints.config import CheckpointConfig
from powerinfer.models.checkpoints.rules import CheckpointRules
from powerinfer.models.metadata import Metadata
from powerinfer.models.mixers import StateMixer
from powerinfer.models.scales import Sizes
from powerinfer.models.selective_scan import read_selective_scan

__all__ = ["ARCHITECTURE"]

# Names of versions 4 and 5 of transformers.
_ATTENDS = {
    "mamba": False,
    "linear_attention": False,
    "attention": True,
    "full_attention": True,
}


def _scans(metadata: Metadata, sizes: Sizes) -> dict[int, StateMixer]:
    counts = metadata.integers(keys.NUM_KV_HEADS, sizes.num_layers, low=0)
    numbers = [number for number, count in enumerate(counts) if not count]
    return dict.fromkeys(numbers, read_selective_scan(metadata)) if numbers else {}


def _metadata(config: CheckpointConfig) -> dict[str, object]:
    check_steps(config)
    count = config.integer("num_hidden_layers")
    kinds = config.items("layer_types", str, count)
    if not kinds:
        raise config.error("layer_types", "expected the kind of each layer")
    if any(kind not in _ATTENDS for kind in kinds):
        raise config.unsupported("layer_types", ", ".join(_ATTENDS))
    position = config.string("position_embedding_type", "nope")
    if position not in ("nope", "rope"):
        raise config.unsupported("position_embedding_type", "nope, rope")
    num_kv_heads = config.integer("num_key_value_heads", config.integer("num_attention_heads"))
    names = {"heads": "mamba_n_heads", "head_dim": "mamba_d_head", "state": "mamba_d_state"}
    found = granitemoe.scale_metadata(config) | {
        keys.NUM_KV_HEADS: np.array(
            [num_kv_heads if _ATTENDS[str(kind)] else 0 for kind in kinds], np.int32
        ),
        keys.ROPE_FINETUNED: position == "rope",
        **scan_metadata(config, **names, taps="mamba_d_conv", groups="mamba_n_groups"),
    }
    if not config.values.get("num_local_experts"):
        found[keys.INTERMEDIATE_SIZE] = config.integer("shared_intermediate_size")
    elif config.values.get("shared_intermediate_size"):
        found[keys.SHARED_EXPERT_SIZE] = config.integer("shared_intermediate_size")
    return found


ARCHITECTURE = replace(
    granitemoe.ARCHITECTURE,
    name="granitehybrid",
    hugging_face_names=dict(granitemoe.ARCHITECTURE.hugging_face_names)
    | scan_names("model.layers.{layer}.mamba"),
    checkpoint=CheckpointRules(
        ("granitemoehybrid",),
        hidden_act="silu",
        has_selective_scans=True,
        metadata=_metadata,
    ),
    rotation=Rotation.SWITCHED,
    state_mixers=_scans,
)
