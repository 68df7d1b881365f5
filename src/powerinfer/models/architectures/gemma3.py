"""Gemma 3, text only: the Llama block with four norms, a GELU gate and alternating windows.

The embedding is scaled by sqrt(hidden_size). Five of six layers have a window and their own rotary
base. GGUF files store norm weights with the offset of one already added.
"""

from powerinfer.gguf import keys
from powerinfer.models.architecture import Architecture, QKNorm
from powerinfer.models.architectures.llama import HUGGING_FACE_NAMES, QK_NORM_NAMES, run_layer
from powerinfer.models.attention import WindowPattern
from powerinfer.models.checkpoints.config import CheckpointConfig
from powerinfer.models.checkpoints.rules import CheckpointRules
from powerinfer.models.checkpoints.windows import by_layer_types
from powerinfer.models.scales import Scales, Sizes
from powerinfer.values import Activation, ActivationKind

__all__ = ["ARCHITECTURE"]

_NUM_LAYERS_27B = 62


def _scales(sizes: Sizes) -> Scales:
    # There is no key for it: the 27B model scales as if its heads filled the layer.
    is_27b = sizes.num_layers == _NUM_LAYERS_27B
    width = sizes.hidden_size / sizes.num_heads if is_27b else sizes.head_dim
    return Scales(attention=width**-0.5, embedding=sizes.hidden_size**0.5)


def _windows(config: CheckpointConfig) -> list[bool]:
    return by_layer_types(config, config.integer("sliding_window_pattern", 6))


def _metadata(config: CheckpointConfig) -> dict[str, object]:
    """Scales and caps that differ from those of the published models."""
    if config.flag("use_bidirectional_attention", default=False):
        raise config.unsupported("use_bidirectional_attention", "false")
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    head_dim = config.integer("head_dim", 256)
    sizes = Sizes(hidden_size, config.integer("num_hidden_layers"), num_heads, 1, head_dim)
    found: dict[str, object] = {keys.HEAD_DIM: head_dim, keys.VALUE_DIM: head_dim}
    scale = config.number("query_pre_attn_scalar", 256) ** -0.5
    if scale != _scales(sizes).attention:
        found[keys.ATTENTION_SCALE] = scale
    for name in (keys.LOGIT_SOFT_CAP, keys.ATTENTION_SOFT_CAP):
        if config.has(name):
            found[name] = config.number(name)
    return found


ARCHITECTURE = Architecture(
    name="gemma3",
    run_layer=run_layer,
    hugging_face_names=HUGGING_FACE_NAMES
    | QK_NORM_NAMES
    | {
        "blk.{layer}.post_attention_norm": "model.layers.{layer}.post_attention_layernorm",
        "blk.{layer}.ffn_norm": "model.layers.{layer}.pre_feedforward_layernorm",
        "blk.{layer}.post_ffw_norm": "model.layers.{layer}.post_feedforward_layernorm",
    },
    checkpoint=CheckpointRules(
        ("gemma3_text",),
        config_names={
            "hidden_act": ("hidden_activation",),
            "sliding_window_pattern": ("_sliding_window_pattern",),
        },
        hidden_act="gelu_pytorch_tanh",
        is_tied=True,
        rope_base=1e6,
        adds_one_to_norms=True,
        windows=_windows,
        metadata=_metadata,
    ),
    activation=Activation(ActivationKind.GELU),
    powerinfer_activation=Activation(ActivationKind.GELU),
    is_rope_interleaved=False,
    layer_norms=("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"),
    qk_norm=QKNorm.HEAD,
    windows=WindowPattern(period=6, window_freq_base=10000.0),
    scales=_scales,
)
