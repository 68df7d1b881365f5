"""OPT in PowerInfer's naming: learned positions, LayerNorm, biases everywhere, ungated ReLU FFN.

Position p has row p + 2 of `position_embd` (the models were trained with two padding rows), so a
table of 2050 rows serves 2048 positions whatever `opt.context_length` says. The output head is the
embedding. Files carry no epsilon: it is the 1e-5 of the training, not PowerInfer's 0.

OPT-350m has norms after attention and FFN instead of before (key `powerinfer.post_norm`) and none
before the head. That model also projects its embeddings, which is rejected: the key serves models
of its form with embeddings as wide as the layers.
"""

from powerinfer.gguf import keys
from powerinfer.models.architecture import Architecture, NormKind
from powerinfer.models.architectures.llama import run_layer
from powerinfer.models.checkpoints.config import CheckpointConfig
from powerinfer.models.checkpoints.rules import CheckpointRules
from powerinfer.values import Activation, ActivationKind

__all__ = ["ARCHITECTURE"]

_POSITION_OFFSET = 2
_RELU = Activation(ActivationKind.RELU)
_BLOCK = "model.decoder.layers.{layer}"

HUGGING_FACE_NAMES = {
    "token_embd": "model.decoder.embed_tokens",
    "position_embd": "model.decoder.embed_positions",
    "output_norm": "model.decoder.final_layer_norm",
    "output": "lm_head",
    "blk.{layer}.attn_norm": f"{_BLOCK}.self_attn_layer_norm",
    "blk.{layer}.attn_q": f"{_BLOCK}.self_attn.q_proj",
    "blk.{layer}.attn_k": f"{_BLOCK}.self_attn.k_proj",
    "blk.{layer}.attn_v": f"{_BLOCK}.self_attn.v_proj",
    "blk.{layer}.attn_output": f"{_BLOCK}.self_attn.out_proj",
    "blk.{layer}.ffn_norm": f"{_BLOCK}.final_layer_norm",
    "blk.{layer}.ffn_up": f"{_BLOCK}.fc1",
    "blk.{layer}.ffn_down": f"{_BLOCK}.fc2",
}


def _metadata(config: CheckpointConfig) -> dict[str, object]:
    width = config.integer("hidden_size")
    if config.integer("word_embed_proj_dim", width) != width:
        raise config.unsupported("word_embed_proj_dim", f"hidden_size, {width}")
    is_post_norm = not config.flag("do_layer_norm_before", default=True)
    if config.flag("_remove_final_layer_norm", default=False) and not is_post_norm:
        raise config.unsupported("_remove_final_layer_norm", "false")
    return {f"!{keys.POST_NORM}": True} if is_post_norm else {}


ARCHITECTURE = Architecture(
    name="opt",
    run_layer=run_layer,
    hugging_face_names=HUGGING_FACE_NAMES,
    checkpoint=CheckpointRules(
        ("opt",),
        config_names={"hidden_act": ("activation_function",), "intermediate_size": ("ffn_dim",)},
        hidden_act="relu",
        is_tied=True,
        metadata=_metadata,
    ),
    activation=_RELU,
    powerinfer_activation=_RELU,
    position_offset=_POSITION_OFFSET,
    norm=NormKind.LAYER,
    norm_eps=1e-5,
    may_be_post_norm=True,
    is_gated=False,
    required_biases=frozenset({"attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down"}),
)
