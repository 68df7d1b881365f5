"""Falcon 7B, 40B and 180B: attention and FFN in parallel, both from the input of the layer.

LayerNorm, RoPE over halves, one or a few key and value heads, an ungated FFN. Plain files run GELU
as trained; a file with PowerInfer's magic holds a model tuned for ReLU, whose predictors see the
unnormalized input of the layer.

In 7B files one norm, `attn_norm`, feeds both. In 40B files `attn_norm` (Hugging Face `ln_mlp`)
feeds the FFN and `attn_norm_2` (`ln_attn`) the attention: the reverse of what the names suggest.
"""

from powerinfer.gguf import keys
from powerinfer.kvcache.kv_cache import KVCache
from powerinfer.models.architecture import Architecture, NormKind
from powerinfer.models.blocks import (
    Observer,
    Stage,
    attention_block,
    end_of_layer,
    marks_of,
    normalize,
    select_rows,
    start_ffn_block,
)
from powerinfer.models.checkpoints.config import CheckpointConfig
from powerinfer.models.checkpoints.rules import CheckpointRules
from powerinfer.models.model import Model
from powerinfer.ops.backend import Activations
from powerinfer.predictors import PredictorInput
from powerinfer.values import Activation, ActivationKind, Batch, IntArray

__all__ = ["ARCHITECTURE", "run_layer"]

_BLOCK = "transformer.h.{layer}"

HUGGING_FACE_NAMES: dict[str, str | tuple[str, ...]] = {
    "token_embd": "transformer.word_embeddings",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "blk.{layer}.attn_norm": (f"{_BLOCK}.input_layernorm", f"{_BLOCK}.ln_mlp"),
    "blk.{layer}.attn_norm_2": f"{_BLOCK}.ln_attn",
    "blk.{layer}.attn_qkv": f"{_BLOCK}.self_attention.query_key_value",
    "blk.{layer}.attn_output": f"{_BLOCK}.self_attention.dense",
    "blk.{layer}.ffn_up": f"{_BLOCK}.mlp.dense_h_to_4h",
    "blk.{layer}.ffn_down": f"{_BLOCK}.mlp.dense_4h_to_h",
}


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
    """Run one layer; arguments and result as for `llama.run_layer`."""
    ops, layer = model.ops, model.weights.layers[number]
    ffn_input = normalize(ops, x, layer.norms["attn_norm"])
    second = layer.norms.get("attn_norm_2")
    attention_input = ffn_input if second is None else normalize(ops, x, second)
    x, ffn_input = (select_rows(ops, part, wanted) for part in (x, ffn_input))
    # The FFN does not wait for the attention, and its predictor sees the layer's input.
    marks = marks_of(batch, wanted)
    finish_ffn = start_ffn_block(
        ops, layer, number, ffn_input, raw=x, is_prompt=marks, observe=observe
    )
    options = model.attention[number]
    mixed = attention_block(
        ops, layer, number, attention_input, cache.layers[number], batch, options, observe
    )
    if not len(x):
        return x
    mixed = select_rows(ops, mixed, wanted)
    if observe is not None:
        observe(Stage.ATTENTION, number, ops.to_host(x) + ops.to_host(mixed))
    ops.add(mixed, finish_ffn())
    ops.add(x, mixed)
    return x if observe is None else end_of_layer(ops, number, x, observe)


def _metadata(config: CheckpointConfig) -> dict[str, object]:
    """Keys that old and new configurations name differently or omit."""
    if config.flag("alibi", default=False):
        raise config.unsupported("alibi", "false")
    is_first_40b = config.string("model_type") == "RefinedWeb"
    is_new = config.flag("new_decoder_architecture", default=is_first_40b)
    if not is_new and not config.flag("parallel_attn", default=True):
        raise config.unsupported("parallel_attn", "true")
    num_heads = config.integer("num_attention_heads")
    num_kv_heads = 1
    if is_new:
        num_kv_heads = config.integer("num_kv_heads", num_heads)
    elif not config.flag("multi_query", default=True):
        num_kv_heads = num_heads
    hidden_size = config.integer("hidden_size")
    return {
        keys.NUM_KV_HEADS: num_kv_heads,
        keys.INTERMEDIATE_SIZE: config.integer("ffn_hidden_size", 4 * hidden_size),
    }


ARCHITECTURE = Architecture(
    name="falcon",
    run_layer=run_layer,
    hugging_face_names=HUGGING_FACE_NAMES,
    checkpoint=CheckpointRules(
        # The first checkpoints of 7B and 40B use their own names.
        ("falcon", "RefinedWebModel", "RefinedWeb"),
        config_names={
            "hidden_act": ("activation",),
            "rms_norm_eps": ("layer_norm_epsilon",),
            "num_hidden_layers": ("n_layer",),
            "num_attention_heads": ("n_head",),
            "num_kv_heads": ("n_head_kv",),
        },
        hidden_act="gelu",
        is_tied=True,
        context_length=2048,
        is_qkv_grouped=True,
        metadata=_metadata,
    ),
    activation=Activation(ActivationKind.GELU),
    powerinfer_activation=Activation(ActivationKind.RELU),
    is_rope_interleaved=False,
    norm=NormKind.LAYER,
    layer_norms=("attn_norm",),
    optional_layer_norms=("attn_norm_2",),
    is_parallel=True,
    is_gated=False,
    predictor_input=PredictorInput.LAYER_INPUT,
)
