"""Llama and related models (Llama 1-3, Mistral, Mixtral, TinyLlama, ReluLLaMA, ProSparse, ...).

Pre-norm blocks with RMSNorm, rotary grouped-query attention over interleaved pairs, and a gated FFN
or a mixture of them. Converters permute the rows of q and k to interleave the pairs. The layer also
serves families whose norms follow attention and FFN (`ModelConfig.is_post_norm`).
"""

from powerinfer.kvcache.kv_cache import KVCache
from powerinfer.models.architecture import Architecture
from powerinfer.models.blocks import (
    Observer,
    Stage,
    end_of_layer,
    marks_of,
    mixer_block,
    normalize,
    normalize_output,
    select_rows,
    start_ffn_block,
)
from powerinfer.models.checkpoints import windows
from powerinfer.models.checkpoints.config import CheckpointConfig
from powerinfer.models.checkpoints.rules import CheckpointRules
from powerinfer.models.experts import ExpertRules
from powerinfer.models.model import Model
from powerinfer.ops.backend import Activations
from powerinfer.values import Batch, IntArray

__all__ = ["ARCHITECTURE", "EXPERT_NAMES", "HUGGING_FACE_NAMES", "QK_NORM_NAMES", "run_layer"]

HUGGING_FACE_NAMES: dict[str, str | tuple[str, ...]] = {
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

# Merged as in transformers 5, and one by one as in most checkpoints.
EXPERT_NAMES: dict[str, str | tuple[str, ...]] = {
    "blk.{layer}.ffn_gate_inp": "model.layers.{layer}.mlp.gate",
    "blk.{layer}.ffn_gate_up_exps": "model.layers.{layer}.mlp.experts.gate_up_proj",
    "blk.{layer}.ffn_gate_exps": "model.layers.{layer}.mlp.experts.{expert}.gate_proj",
    "blk.{layer}.ffn_up_exps": "model.layers.{layer}.mlp.experts.{expert}.up_proj",
    "blk.{layer}.ffn_down_exps": (
        "model.layers.{layer}.mlp.experts.down_proj",
        "model.layers.{layer}.mlp.experts.{expert}.down_proj",
    ),
}

_MIXTRAL = "model.layers.{layer}.block_sparse_moe"
_MIXTRAL_NAMES: dict[str, str | tuple[str, ...]] = {
    "blk.{layer}.ffn_gate_inp": ("model.layers.{layer}.mlp.gate", f"{_MIXTRAL}.gate"),
    "blk.{layer}.ffn_gate_exps": f"{_MIXTRAL}.experts.{{expert}}.w1",
    "blk.{layer}.ffn_up_exps": f"{_MIXTRAL}.experts.{{expert}}.w3",
    "blk.{layer}.ffn_down_exps": (
        "model.layers.{layer}.mlp.experts.down_proj",
        f"{_MIXTRAL}.experts.{{expert}}.w2",
    ),
}

QK_NORM_NAMES: dict[str, str | tuple[str, ...]] = {
    "blk.{layer}.attn_q_norm": "model.layers.{layer}.self_attn.q_norm",
    "blk.{layer}.attn_k_norm": "model.layers.{layer}.self_attn.k_norm",
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
    """Run one layer.

    Args:
        x: f32[num_tokens, hidden_size], the residual stream; may be modified in place.
        cache: keys and values; those of the step are appended.
        wanted: i32[num_selected], tokens of the batch whose output is wanted; None for all. Only
            set for the last layer, where tokens no longer interact after the attention.
        observe: receives the stages of the layer, see `blocks.Observer`.

    Returns:
        f32[num_selected, hidden_size], the stream after the layer; without rows if an observer
        ended the step.
    """
    ops, layer, options = model.ops, model.weights.layers[number], model.attention[number]
    norms, is_post_norm = layer.norms, model.config.is_post_norm
    normed = x if is_post_norm else normalize(ops, x, norms["attn_norm"])
    mixed = mixer_block(ops, layer, number, normed, cache.layers[number], batch, options, observe)
    router_input = None
    if model.architecture.is_routed_by_layer_input:
        # The sum may overwrite either operand, and the router needs x.
        router_input, x, mixed = select_rows(ops, x, wanted), mixed, x
    ops.add(x, mixed)
    x = select_rows(ops, x, wanted)
    if not len(x):
        return x
    if is_post_norm:
        x = normalize(ops, x, norms["attn_norm"])
    if observe is not None:
        observe(Stage.ATTENTION, number, ops.to_host(x))
    output = start_ffn_block(
        ops,
        layer,
        number,
        x if is_post_norm else normalize(ops, x, norms["ffn_norm"]),
        raw=x,
        is_prompt=marks_of(batch, wanted),
        observe=observe,
        router_input=router_input,
    )()
    ops.add(x, normalize_output(ops, output, norms.get("post_ffw_norm")))
    if is_post_norm:
        x = normalize(ops, x, norms["ffn_norm"])
    return x if observe is None else end_of_layer(ops, number, x, observe)


def _windows(config: CheckpointConfig) -> list[bool] | None:
    # Llama's own code ignores windows, whatever a configuration says.
    has_windows = config.string("model_type") in ("mistral", "mixtral")
    return windows.all_layers(config) if has_windows else None


ARCHITECTURE = Architecture(
    name="llama",
    run_layer=run_layer,
    hugging_face_names=HUGGING_FACE_NAMES | EXPERT_NAMES | _MIXTRAL_NAMES,
    checkpoint=CheckpointRules(
        # The last one is ProSparse's.
        ("llama", "mistral", "mixtral", "sparsellama"),
        windows=_windows,
    ),
    experts=ExpertRules(),
)
