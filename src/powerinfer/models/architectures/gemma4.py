"""Gemma 4, text only: Gemma's block with layers of two kinds, per-layer embeddings and experts.

Layers with a window and layers without have heads of different widths, rotations and numbers of KV
heads. Values are normalized; in some layers they are the keys before their norm. The last layers
may read keys and values of earlier ones. Scores are not scaled. Norm weights have no offset.
Sources: the implementations of llama.cpp and of transformers.
"""

import numpy as np

from powerinfer.gguf import keys
from powerinfer.kvcache.kv_cache import KVCache
from powerinfer.models.architecture import Architecture, QKNorm
from powerinfer.models.architectures.llama import HUGGING_FACE_NAMES, QK_NORM_NAMES
from powerinfer.models.attention import WindowPattern
from powerinfer.models.blocks import (
    Observer,
    Stage,
    end_of_layer,
    marks_of,
    mixer_block,
    normalize,
    select_rows,
    start_ffn_alone,
)
from powerinfer.models.checkpoints.config import CheckpointConfig
from powerinfer.models.checkpoints.rules import CheckpointRules
from powerinfer.models.checkpoints.windows import by_layer_types
from powerinfer.models.experts import ExpertRules
from powerinfer.models.model import Model
from powerinfer.models.per_layer import POST_NORM, PerLayerGate
from powerinfer.models.scales import Scales, Sizes
from powerinfer.models.tensors.ffn_tensors import DENSE_FFN_NORMS, ROUTER
from powerinfer.ops.backend import Activations
from powerinfer.values import Activation, ActivationKind, Batch, BoolArray, IntArray

__all__ = ["ARCHITECTURE"]

_LAYER = "model.layers.{layer}"
_FULL = "full_attention"
_EXPERTS_INPUT, _AFTER_DENSE, _AFTER_EXPERTS = DENSE_FFN_NORMS


def run_layer(  # noqa: PLR0913  that of all families, and one more
    model: Model,
    number: int,
    x: Activations,
    batch: Batch,
    cache: KVCache,
    *,
    wanted: IntArray | None,
    observe: Observer | None,
    per_layer: Activations | None = None,
) -> Activations:
    """Run one layer; arguments are those of Llama's.

    Args:
        per_layer: f32[num_tokens, size], the layer's part of `PerLayerEmbedding.inputs`.
    """
    ops, layer, options = model.ops, model.weights.layers[number], model.attention[number]
    normed = normalize(ops, x, layer.norms["attn_norm"])
    mixed = mixer_block(ops, layer, number, normed, cache.layers[number], batch, options, observe)
    ops.add(x, mixed)
    x = select_rows(ops, x, wanted)
    if not len(x):
        return x
    if observe is not None:
        observe(Stage.ATTENTION, number, ops.to_host(x))
    marks = marks_of(batch, wanted)
    output = _feed_forward(model, number, x, marks, observe)
    ops.add(x, normalize(ops, output, layer.norms["post_ffw_norm"]))
    if layer.per_layer is not None and per_layer is not None:
        given = select_rows(ops, per_layer, wanted)
        _add_per_layer(model, number, layer.per_layer, x, given, marks, observe)
    if layer.output_scale != 1.0:
        ops.scale(x, layer.output_scale)
    return x if observe is None else end_of_layer(ops, number, x, observe)


def _add_per_layer(
    model: Model,
    number: int,
    gate: PerLayerGate,
    x: Activations,
    given: Activations,
    is_prompt: BoolArray | None,
    observe: Observer | None,
) -> None:
    """Add what the layer's gate lets pass of its input, normalized."""
    ops = model.ops
    if observe is not None:
        observe(Stage.PER_LAYER_INPUT, number, ops.to_host(x))
    mixed = gate.mix(ops, x, given, is_prompt)
    if observe is not None:
        observe(Stage.PER_LAYER_MIX, number, ops.to_host(mixed))
    output = gate.project(ops, mixed, is_prompt)
    ops.add(x, normalize(ops, output, model.weights.layers[number].norms[POST_NORM]))


def _feed_forward(
    model: Model,
    number: int,
    x: Activations,
    is_prompt: BoolArray | None,
    observe: Observer | None,
) -> Activations:
    """Run the dense FFN, or the experts and the dense FFN beside them, which sees its own norm."""
    ops, layer = model.ops, model.weights.layers[number]
    norms, dense, router_input = layer.norms, layer.shared_ffn, None
    given = normalize(ops, x, norms["ffn_norm"])
    beside = None
    if dense is not None:
        if observe is not None:
            observe(Stage.SHARED_INPUT, number, ops.to_host(given))
        beside = normalize(ops, ops.ffn(given, dense, None, is_prompt), norms[_AFTER_DENSE])
        given, router_input = (
            normalize(ops, x, norms[_EXPERTS_INPUT]),
            normalize(ops, x, norms[ROUTER]),
        )
    output = start_ffn_alone(
        ops,
        layer,
        number,
        given,
        raw=x,
        is_prompt=is_prompt,
        observe=observe,
        router_input=router_input,
    )()
    if beside is None:
        return output
    ops.add(beside, normalize(ops, output, norms[_AFTER_EXPERTS]))
    return beside


def _scales(sizes: Sizes) -> Scales:
    return Scales(attention=1.0, embedding=sizes.hidden_size**0.5)


def _windows(config: CheckpointConfig) -> list[bool]:
    # The last layer has none, whatever a configuration says.
    return [*by_layer_types(config, 6)[:-1], False]


def _metadata(config: CheckpointConfig) -> dict[str, object]:
    """Keys of what differs between the two kinds of layers, and of the per-layer embedding."""
    if config.values.get("use_bidirectional_attention") == "all":
        raise config.unsupported("use_bidirectional_attention", "null, vision")
    kind = config.part("rope_parameters").part(_FULL).string("rope_type", "default")
    if kind != "proportional":
        raise config.unsupported("rope_parameters", f"rope_type proportional of {_FULL} layers")
    windows, width = _windows(config), config.integer("head_dim", 256)
    full_width = _of_full_layers(config, "global_head_dim", "head_dim", 512)
    num_shared = _count(config, "num_kv_shared_layers")
    found: dict[str, object] = {
        keys.HEAD_DIM: full_width,
        keys.VALUE_DIM: full_width,
        keys.HEAD_DIM_SWA: width,
        keys.VALUE_DIM_SWA: width,
        keys.ROPE_DIMENSION_COUNT: full_width,
        keys.ROPE_DIMENSION_COUNT_SWA: width,
        keys.SLIDING_WINDOW: config.integer("sliding_window", 512),
        keys.SLIDING_WINDOW_PATTERN: np.array(windows),
        keys.NUM_SHARED_KV_LAYERS: num_shared,
        keys.PER_LAYER_SIZE: _count(config, "hidden_size_per_layer_input", 256),
        # llama.cpp takes 30 if a file has no key.
        keys.LOGIT_SOFT_CAP: config.number("final_logit_softcapping", 0.0),
    }
    if config.flag("attention_k_eq_v", default=False):
        num_heads = config.integer("num_key_value_heads", 4)
        own = _of_full_layers(
            config, "num_global_key_value_heads", "num_key_value_heads", num_heads
        )
        found[keys.NUM_KV_HEADS] = np.array([num_heads if it else own for it in windows], np.int32)
    if config.flag("use_double_wide_mlp", default=False):
        size = config.integer("intermediate_size")
        sizes = [size] * (len(windows) - num_shared) + [2 * size] * num_shared
        found[keys.INTERMEDIATE_SIZE] = np.array(sizes, np.int32)
    if config.has("num_local_experts") and not config.flag("enable_moe_block", default=False):
        raise config.unsupported("enable_moe_block", "true in models with experts")
    return found


def _count(config: CheckpointConfig, name: str, default: int = 0) -> int:
    """Return an integer that may be 0."""
    is_zero = config.values.get(name) == 0 or (default == 0 and not config.has(name))
    return 0 if is_zero else config.integer(name, default)


def _of_full_layers(config: CheckpointConfig, own_name: str, name: str, default: int) -> int:
    """Return a size of layers without a window: by its own name, or from their entries."""
    if config.has(own_name):
        return config.integer(own_name)
    layers = config.part("per_layer_config")
    windows = _windows(config)
    number = (
        next((key for key in layers.values if not windows[int(key)]), None)
        if layers.values
        else None
    )
    return default if number is None else layers.part(number).integer(name, default)


ARCHITECTURE = Architecture(
    name="gemma4",
    run_layer=run_layer,
    hugging_face_names=HUGGING_FACE_NAMES
    | QK_NORM_NAMES
    | {
        "per_layer_token_embd": "model.embed_tokens_per_layer",
        "per_layer_model_proj": "model.per_layer_model_projection",
        "per_layer_proj_norm": "model.per_layer_projection_norm",
        "blk.{layer}.post_attention_norm": f"{_LAYER}.post_attention_layernorm",
        "blk.{layer}.ffn_norm": f"{_LAYER}.pre_feedforward_layernorm",
        "blk.{layer}.post_ffw_norm": f"{_LAYER}.post_feedforward_layernorm",
        "blk.{layer}.pre_ffw_norm_2": f"{_LAYER}.pre_feedforward_layernorm_2",
        "blk.{layer}.post_ffw_norm_1": f"{_LAYER}.post_feedforward_layernorm_1",
        "blk.{layer}.post_ffw_norm_2": f"{_LAYER}.post_feedforward_layernorm_2",
        "blk.{layer}.ffn_gate_inp": f"{_LAYER}.router.proj",
        "blk.{layer}.ffn_gate_inp.scale": f"{_LAYER}.router.scale",
        "blk.{layer}.ffn_gate_up_exps": f"{_LAYER}.experts.gate_up_proj",
        "blk.{layer}.ffn_down_exps": f"{_LAYER}.experts.down_proj",
        "blk.{layer}.ffn_down_exps.scale": f"{_LAYER}.router.per_expert_scale",
        "blk.{layer}.inp_gate": f"{_LAYER}.per_layer_input_gate",
        "blk.{layer}.proj": f"{_LAYER}.per_layer_projection",
        "blk.{layer}.post_norm": f"{_LAYER}.post_per_layer_input_norm",
        "blk.{layer}.layer_output_scale": f"{_LAYER}.layer_scalar",
    },
    checkpoint=CheckpointRules(
        ("gemma4_text",),
        multimodal_types=("gemma4",),
        left_out=(
            "model.vision_tower.",
            "model.audio_tower.",
            "model.embed_vision.",
            "model.embed_audio.",
        ),
        config_names={
            "hidden_act": ("hidden_activation",),
            "num_local_experts": ("num_experts",),
            "num_experts_per_tok": ("top_k_experts",),
        },
        hidden_act="gelu_pytorch_tanh",
        is_tied=True,
        rope_base=1e6,
        windows=_windows,
        metadata=_metadata,
    ),
    activation=Activation(ActivationKind.GELU),
    powerinfer_activation=Activation(ActivationKind.GELU),
    is_rope_interleaved=False,
    layer_norms=("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"),
    optional_layer_norms=(*DENSE_FFN_NORMS, POST_NORM),
    qk_norm=QKNorm.HEAD,
    windows=WindowPattern(period=6, window_freq_base=10000.0),
    layers_differ=True,
    normalizes_values=True,
    needs_rope_divisors=True,
    scales=_scales,
    experts=ExpertRules(size_key=keys.EXPERT_SIZE, has_dense_ffn=True, has_scales=True),
)
