"""LFM2 and LFM2.5: the Llama block, but most layers convolve a few tokens instead of attending.

`attention.head_count_kv` is 0 in layers with a short convolution. Attention normalizes the heads of
q and k and rotates halves. The final norm is named `token_embd_norm`; the head is the embedding.
"""

from collections.abc import Mapping

import numpy as np

from powerinfer.gguf import keys
from powerinfer.models.architecture import Architecture, QKNorm
from powerinfer.models.architectures.llama import run_layer
from powerinfer.models.checkpoints.config import CheckpointConfig
from powerinfer.models.checkpoints.rules import CheckpointRules
from powerinfer.models.metadata import Metadata
from powerinfer.models.mixers import MAX_TAPS, ShortConvMixer, StateMixer
from powerinfer.models.scales import Sizes

__all__ = ["ARCHITECTURE", "BLOCK_NAMES", "CONFIG_NAMES", "mixer_metadata", "short_convs"]

_KINDS = ("conv", "full_attention")

_BLOCK = "model.layers.{layer}"

BLOCK_NAMES: dict[str, str | tuple[str, ...]] = {
    "token_embd": "model.embed_tokens",
    "token_embd_norm": "model.embedding_norm",
    "output": "lm_head",
    "blk.{layer}.attn_norm": f"{_BLOCK}.operator_norm",
    "blk.{layer}.attn_q": f"{_BLOCK}.self_attn.q_proj",
    "blk.{layer}.attn_k": f"{_BLOCK}.self_attn.k_proj",
    "blk.{layer}.attn_v": f"{_BLOCK}.self_attn.v_proj",
    "blk.{layer}.attn_output": f"{_BLOCK}.self_attn.out_proj",
    "blk.{layer}.attn_q_norm": f"{_BLOCK}.self_attn.q_layernorm",
    "blk.{layer}.attn_k_norm": f"{_BLOCK}.self_attn.k_layernorm",
    "blk.{layer}.shortconv.in_proj": f"{_BLOCK}.conv.in_proj",
    "blk.{layer}.shortconv.conv": f"{_BLOCK}.conv.conv",
    "blk.{layer}.shortconv.out_proj": f"{_BLOCK}.conv.out_proj",
    "blk.{layer}.ffn_norm": f"{_BLOCK}.ffn_norm",
    "blk.{layer}.ffn_gate": f"{_BLOCK}.feed_forward.w1",
    "blk.{layer}.ffn_up": f"{_BLOCK}.feed_forward.w3",
    "blk.{layer}.ffn_down": f"{_BLOCK}.feed_forward.w2",
}

CONFIG_NAMES: dict[str, tuple[str, ...]] = {
    "rms_norm_eps": ("norm_eps",),
    "tie_word_embeddings": ("tie_embedding",),
}


def short_convs(metadata: Metadata, sizes: Sizes) -> Mapping[int, StateMixer]:
    """Read which layers convolve, and how many tokens."""
    counts = metadata.integers(keys.NUM_KV_HEADS, sizes.num_layers, default=1, low=0)
    numbers = [number for number, count in enumerate(counts) if not count]
    if not numbers:
        return {}
    num_taps = metadata.integer(keys.SHORT_CONV_TAPS, low=2, high=MAX_TAPS)
    return dict.fromkeys(numbers, ShortConvMixer(sizes.hidden_size, num_taps))


def mixer_metadata(config: CheckpointConfig) -> dict[str, object]:
    """Keys of a checkpoint's mixers: heads of keys and values of each layer, and taps."""
    count, num_heads = config.integer("num_hidden_layers"), config.integer("num_attention_heads")
    if config.flag("conv_bias", default=False):
        raise config.unsupported("conv_bias", "false")
    kinds = config.items("layer_types", str, count)
    if any(kind not in _KINDS for kind in kinds):
        raise config.unsupported("layer_types", ", ".join(_KINDS))
    attending = [number for number, kind in enumerate(kinds) if kind == "full_attention"]
    if not kinds:
        listed = config.values.get("full_attn_idxs") or []
        attending = list(listed) if isinstance(listed, list) else []
    num_kv_heads = config.integer("num_key_value_heads", num_heads)
    counts = [num_kv_heads if number in attending else 0 for number in range(count)]
    return {
        keys.NUM_KV_HEADS: np.array(counts, np.int32),
        keys.SHORT_CONV_TAPS: config.integer("conv_L_cache", 3),
    }


def _metadata(config: CheckpointConfig) -> dict[str, object]:
    return mixer_metadata(config) | {keys.INTERMEDIATE_SIZE: _intermediate_size(config)}


def _intermediate_size(config: CheckpointConfig) -> int:
    """Neurons of the FFN, which configurations only say indirectly."""
    size = config.integer("intermediate_size")
    if not config.flag("block_auto_adjust_ff_dim", default=True):
        return size
    multiple = config.integer("block_multiple_of", 256)
    scaled = int(config.number("block_ffn_dim_multiplier", 1.0) * int(2 * size / 3))
    return multiple * -(-scaled // multiple)


ARCHITECTURE = Architecture(
    name="lfm2",
    run_layer=run_layer,
    hugging_face_names=BLOCK_NAMES,
    checkpoint=CheckpointRules(
        ("lfm2",),
        config_names=CONFIG_NAMES | {"intermediate_size": ("block_ff_dim",)},
        hidden_act="silu",
        is_tied=True,
        rope_base=1e6,
        metadata=_metadata,
    ),
    is_rope_interleaved=False,
    norm_names={"output_norm": "token_embd_norm"},
    qk_norm=QKNorm.HEAD,
    state_mixers=short_convs,
)
