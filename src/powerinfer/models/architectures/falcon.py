"""Falcon 7B, 40B and 180B: attention and FFN side by side, both from the input of the layer.

LayerNorm, RoPE over halves, one or a few key and value heads, an ungated FFN. Plain files run GELU
as trained; a file with PowerInfer's magic holds a model tuned for ReLU, whose predictors look at
the un-normalised input of the layer.

In 7B files one norm, `attn_norm`, feeds both. In 40B files `attn_norm` (Hugging Face `ln_mlp`)
feeds the FFN and `attn_norm_2` (`ln_attn`) the attention: the reverse of what the names suggest.
"""

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
from powerinfer.models.kv_cache import KVCache
from powerinfer.models.model import Model
from powerinfer.ops.some_backend import Activations
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
    """Run one layer; arguments and result as of `llama.run_layer`."""
    ops, layer = model.ops, model.weights.layers[number]
    ffn_input = normalize(ops, x, layer.attn_norm)
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


ARCHITECTURE = Architecture(
    name="falcon",
    run_layer=run_layer,
    hugging_face_names=HUGGING_FACE_NAMES,
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
