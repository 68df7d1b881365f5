"""Llama and its kin in GGUF (Llama 1-3, Mistral, TinyLlama, SmolLM, ReluLLaMA, ProSparse, ...).

Pre-norm blocks with RMSNorm, rotary grouped-query attention with interleaved pairs and a gated
FFN. The converters permute the rows of q and k so that pairs are interleaved.
"""

from powerinfer.models.architecture import Architecture
from powerinfer.models.blocks import (
    NO_ROWS,
    Observer,
    Stage,
    StepControl,
    attention_block,
    ffn_block,
    normalize,
    select_rows,
)
from powerinfer.models.kv_cache import KVCache
from powerinfer.models.model import Model
from powerinfer.ops.some_backend import Activations, SomeOps
from powerinfer.values import Batch, IntArray

__all__ = ["ARCHITECTURE", "HUGGING_FACE_NAMES", "forward"]

HUGGING_FACE_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.{layer}.attn_norm": "model.layers.{layer}.input_layernorm",
    "blk.{layer}.attn_q": "model.layers.{layer}.self_attn.q_proj",
    "blk.{layer}.attn_k": "model.layers.{layer}.self_attn.k_proj",
    "blk.{layer}.attn_v": "model.layers.{layer}.self_attn.v_proj",
    "blk.{layer}.attn_output": "model.layers.{layer}.self_attn.o_proj",
    "blk.{layer}.ffn_norm": "model.layers.{layer}.post_attention_layernorm",
    "blk.{layer}.ffn_gate": "model.layers.{layer}.mlp.gate_proj",
    "blk.{layer}.ffn_up": "model.layers.{layer}.mlp.up_proj",
    "blk.{layer}.ffn_down": "model.layers.{layer}.mlp.down_proj",
}


def forward(
    ops: SomeOps,
    model: Model,
    x: Activations,
    batch: Batch,
    cache: KVCache,
    *,
    wanted: IntArray | None,
    observe: Observer | None = None,
) -> Activations:
    """Run one step.

    Args:
        ops: the backend that prepared the weights.
        model: configuration, weights and rotary table.
        x: f32[num_tokens, hidden_size], the embedded tokens; the layers add to it in place.
        batch: tokens of the step; their blocks are allocated.
        cache: keys and values; those of the step are added.
        wanted: i32[num_selected], tokens of the batch whose row of the result is wanted; None for
            all.
        observe: sees the stages of each layer, see `blocks.Observer`.

    Returns:
        f32[num_selected, hidden_size], the end of the residual stream, before the final norm.
    """
    config, weights = model.config, model.weights
    last = len(weights.layers) - 1
    for number, (layer, kv) in enumerate(zip(weights.layers, cache.layers, strict=True)):
        normed = normalize(ops, x, layer.attn_norm)
        ops.add(x, attention_block(ops, config, layer, normed, kv, batch, model.rope))
        if number == last:
            # Behind the last attention tokens no longer meet: the rest runs for a few only.
            x = select_rows(ops, x, wanted)
            if not len(x):
                break
        if observe is not None:
            observe(Stage.ATTENTION, number, ops.to_host(x))
        normed = normalize(ops, x, layer.ffn_norm)
        ops.add(x, ffn_block(ops, layer, number, normed, raw=x, observe=observe))
        if observe is not None:
            control = observe(Stage.FFN, number, ops.to_host(x))
            if control is StepControl.STOP:
                return select_rows(ops, x, NO_ROWS)
    return x


ARCHITECTURE = Architecture(
    name="llama",
    forward=forward,
    hugging_face_names=HUGGING_FACE_NAMES,
    is_rope_interleaved=True,
)
