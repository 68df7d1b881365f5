"""Gemma 3, text only: the Llama block with four norms, a GELU gate and alternating windows.

The embedding is multiplied by sqrt(hidden_size). Five of six layers have a window and rotate with a
base of their own. In GGUF files the one that is added to the weights of norms is already added.
"""

from powerinfer.models.architecture import Architecture, QKNorm
from powerinfer.models.architectures.llama import HUGGING_FACE_NAMES, QK_NORM_NAMES, run_layer
from powerinfer.models.attention import WindowPattern
from powerinfer.models.scales import Scales, Sizes
from powerinfer.values import Activation, ActivationKind

__all__ = ["ARCHITECTURE"]

_NUM_LAYERS_27B = 62


def _scales(sizes: Sizes) -> Scales:
    # No key says it: the 27B scales as if its heads filled the layer.
    is_27b = sizes.num_layers == _NUM_LAYERS_27B
    width = sizes.hidden_size / sizes.num_heads if is_27b else sizes.head_dim
    return Scales(attention=width**-0.5, embedding=sizes.hidden_size**0.5)


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
    activation=Activation(ActivationKind.GELU),
    powerinfer_activation=Activation(ActivationKind.GELU),
    is_rope_interleaved=False,
    layer_norms=("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"),
    qk_norm=QKNorm.HEAD,
    windows=WindowPattern(period=6, window_freq_base=10000.0),
    scales=_scales,
)
