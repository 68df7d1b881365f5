"""The models of transformers_cases.py: as a GGUF file, and run by transformers.

Weights are made without torch, from the raw stream of PCG64 (see tiny_models.py). Both sides get
them: transformers under its names, we through a GGUF file with what its converters change: rows of
q and k permuted (`llama`), groups of query_key_value taken apart (`falcon`), the one of LayerNorm1p
added (`nemotron`, `gemma3`, `qwen35`), value heads in another order (`qwen35`). torch is imported
only to run transformers.
"""

import math
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from powerinfer.gguf import TensorSpec, encode_tensor, write_gguf
from powerinfer.models import get_architecture
from tiny_models import Stream
from transformers_cases import Case
from transformers_delta_rule import (
    delta_rule_keys,
    delta_rule_shapes,
    has_delta_rule,
    stored_delta_rule,
)
from transformers_experts import (
    expert_keys,
    expert_shapes,
    from_gpt_oss,
    shared_shapes,
    stored_experts,
)
from transformers_gemma4 import divisors, gemma4_block, gemma4_keys, gemma4_outer
from transformers_scans import (
    layer_kind,
    scan_keys,
    scan_linears,
    scan_shapes,
    stored_scan,
)

__all__ = ["run_transformers", "save", "transformers_model", "transformers_state"]

FloatArray = npt.NDArray[np.float32]

_UNGATED = ("Falcon", "OPT", "Arcee", "Nemotron", "NemotronH")
_LAYER_NORM = ("Falcon", "OPT", "Nemotron")
# Norms multiply by one plus the weight; GGUF files have the sum.
_ONE_PLUS = ("Nemotron", "Gemma3", "Qwen3_5", "Qwen3_5Moe")
_HEAD_NORMS = ("Qwen3", "Gemma3", "Qwen3Moe", "Lfm2", "Lfm2Moe", "Qwen3_5", "Qwen3_5Moe")
_GATED_ATTENTION = ("Qwen3_5", "Qwen3_5Moe")
_PROJECTION_NORMS = ("Olmoe",)
_PARTS = {"weight": ".weight", "bias": ".bias"}
_WITH_TEXT = ("Gemma3", "Gemma4", "Qwen3_5", "Qwen3_5Moe")
_CONFIGS = {kind: f"{kind}Text" for kind in _WITH_TEXT}
# Parameters that are not the weight or bias of a module.
_PARAMETERS = (
    *(".sinks", ".expert", ".A_log", ".D", ".dt", ".e_score_correction"),
    *(".scale", "_scale", ".layer_scalar"),
)


def save(path: Path, case: Case, *, is_down_transposed: bool = False) -> Path:
    """Write the model of a case as GGUF, under our names."""
    sizes = case.sizes
    keys = {
        "context_length": sizes["max_position_embeddings"],
        "embedding_length": sizes["hidden_size"],
        "block_count": sizes["num_hidden_layers"],
        "feed_forward_length": sizes["intermediate_size"],
        "attention.head_count": sizes["num_attention_heads"],
        "attention.head_count_kv": sizes["num_key_value_heads"],
        "attention.key_length": case.head_dim,
        "attention.value_length": case.head_dim,
        "attention.layer_norm_rms_epsilon": sizes["rms_norm_eps"],
    }
    keys |= expert_keys(case) | delta_rule_keys(case) | scan_keys(case)
    if case.kind == "Gemma4":
        keys |= gemma4_keys(case)
    if case.kind in _LAYER_NORM:
        keys["attention.layer_norm_epsilon"] = keys.pop("attention.layer_norm_rms_epsilon")
    if case.kind == "OPT":
        # Its converter writes the rows of the table, and neither of the others.
        keys["context_length"] += 2
        del keys["attention.head_count_kv"], keys["attention.layer_norm_epsilon"]
    metadata: dict[str, Any] = {"general.architecture": case.architecture}
    for key, value in (keys | case.metadata).items():
        metadata[key[1:] if key.startswith("!") else f"{case.architecture}.{key}"] = value
    write_gguf(path, metadata, list(_tensors(case, is_down_transposed=is_down_transposed)))
    return path


def run_transformers(case: Case) -> FloatArray:
    """Logits of every position from transformers: f32[tokens, vocab_size]."""
    import torch

    model = transformers_model(case)
    gate, up = _patches(case, torch)
    if gate is not None:
        for layer in model.model.layers:
            layer.mlp.forward = _patched(layer.mlp, gate, up)
    with torch.no_grad():
        logits: FloatArray = model(torch.tensor([case.token_ids])).logits[0].numpy()
    return logits


def transformers_state(case: Case) -> dict[str, FloatArray]:
    """The parameters of a case under the names that they have in transformers' models."""
    names = _names(case)
    return {
        # Kernels of single channels have a dimension of 1 between channels and taps.
        names[ours]: values[:, None] if ours.endswith("conv.weight") else values
        for ours, values in _weights(case).items()
    }


def transformers_model(case: Case) -> Any:
    """The model of a case as transformers has it."""
    import torch
    import transformers

    config = getattr(transformers, f"{_CONFIGS.get(case.kind, case.kind)}Config")(
        **case.arguments, attn_implementation="eager"
    )
    model = getattr(transformers, f"{case.kind}ForCausalLM")(config).eval()
    names = _names(case)
    state = {name: torch.from_numpy(values) for name, values in transformers_state(case).items()}
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state[names["token_embd.weight"]]
    model.load_state_dict(state, strict=True)
    return model


Function = Callable[[Any], Any]


def _patches(case: Case, torch: Any) -> tuple[Function | None, Function]:
    """What is applied to gate and to up where transformers has no such MLP."""
    if case.hidden_act == "drelu":
        return torch.relu, torch.relu
    if case.hidden_act == "fatrelu":
        threshold = case.metadata["!powerinfer.fatrelu_threshold"]
        return (lambda z: torch.where(z >= threshold, z, 0.0)), (lambda z: z)
    return None, lambda z: z


def _patched(mlp: Any, gate: Function, up: Function) -> Function:
    return lambda x: mlp.down_proj(gate(mlp.gate_proj(x)) * up(mlp.up_proj(x)))


def _names(case: Case) -> dict[str, str]:
    """Our tensor name to transformers' name."""
    names = {}
    known = get_architecture(case.architecture).hugging_face_names
    for ours, theirs in known.items():
        if not isinstance(theirs, str):
            theirs = theirs["attn_norm_2" in case.layer_norms]
        if "{expert}" in theirs:
            continue  # transformers holds all of them in one parameter
        for layer in range(case.sizes["num_hidden_layers"]):
            # So are matrices and biases of all experts.
            is_parameter = ".experts." in theirs or theirs.endswith(_PARAMETERS)
            parts = {"weight": "", "bias": "_bias"} if is_parameter else _PARTS
            for part, own in parts.items():
                name = f"{theirs.format(layer=layer)}{own}"
                names[f"{ours.format(layer=layer)}.{part}"] = name
    return names


def _weights(case: Case) -> dict[str, FloatArray]:
    """Weights as transformers has them by our names; streams are seeded by transformers' names."""
    weights, names = {}, _names(case)
    for name, shape in _shapes(case):
        stream = Stream(zlib.crc32(names[name].encode()))
        if name.endswith(("norm.weight", "norm_1.weight", "norm_2.weight")):
            is_offset = case.kind in _ONE_PLUS and "ssm_norm" not in name
            weights[name] = stream.numbers(shape, 0.1) + (not is_offset)
        elif name.endswith("ssm_a.weight"):
            # Heads that forget within a token, and heads that remember some fifty.
            weights[name] = stream.numbers(shape, 2.0) - 1
        elif name.endswith(".scale.weight") or "output_scale" in name:
            # Routers divide the first by sqrt(hidden_size).
            weights[name] = (1 + stream.numbers(shape, 0.3)) * (8 if "gate_inp" in name else 1)
        elif len(shape) == 1:
            weights[name] = stream.numbers(shape, 0.1)
        else:
            weights[name] = stream.numbers(shape, 1.0 if "embd" in name else shape[-1] ** -0.5)
        if case.kind == "GptOss" and "gate_up" in name:
            weights[name] *= 8  # Some values are clamped.
    return weights


def _shapes(case: Case) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Our name and the shape of every parameter that transformers has."""
    sizes = case.sizes
    hidden = sizes["hidden_size"]
    vocab_shape = (sizes["vocab_size"], hidden)
    yield "token_embd.weight", vocab_shape
    if case.kind == "OPT":
        yield "position_embd.weight", (sizes["max_position_embeddings"] + 2, hidden)
    if case.kind == "Gemma4":
        yield from gemma4_outer(case)
    blocks = gemma4_block if case.kind == "Gemma4" else _block_shapes
    for layer in range(sizes["num_hidden_layers"]):
        yield from ((f"blk.{layer}.{name}", shape) for name, shape in blocks(case, layer))
    if sizes.get("do_layer_norm_before", True):
        norm_names = get_architecture(case.architecture).norm_names
        yield from _norm_shapes(case, norm_names.get("output_norm", "output_norm"))
    if not sizes["tie_word_embeddings"]:
        yield "output.weight", vocab_shape


def _block_shapes(case: Case, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The same of one block, without its prefix."""
    for name, (shape, has_bias) in _linears(case, layer).items():
        yield f"{name}.weight", shape
        if has_bias:
            yield f"{name}.bias", shape[:1]
    for norm in case.layer_norms:
        yield from _norm_shapes(case, norm)
    yield from _mixer_extras(case, layer)
    if case.kind == "GraniteMoeHybrid" and not case.num_experts:
        yield from shared_shapes(case)
    is_elsewhere = case.kind == "NemotronH" and layer_kind(case, layer) != "E"
    if case.num_experts and layer >= case.num_dense_layers and not is_elsewhere:
        yield from expert_shapes(case)


def _mixer_extras(case: Case, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The same of what a mixer has besides the matrices of `_linears`."""
    if layer_kind(case, layer) == "M":
        yield from scan_shapes(case)
        return
    if has_delta_rule(case, layer):
        yield from delta_rule_shapes(case)
        return
    if case.has_conv(layer):
        yield (
            "shortconv.conv.weight",
            (case.sizes["hidden_size"], case.sizes.get("conv_L_cache", 3)),
        )
    elif case.kind in _HEAD_NORMS:
        yield "attn_q_norm.weight", (case.head_dim,)
        yield "attn_k_norm.weight", (case.head_dim,)
    if case.kind in _PROJECTION_NORMS:
        for name, heads in (("q", "num_attention_heads"), ("k", "num_key_value_heads")):
            yield f"attn_{name}_norm.weight", (case.sizes[heads] * case.head_dim,)
    if case.kind == "GptOss":
        yield "attn_sinks.weight", (case.sizes["num_attention_heads"],)


def _norm_shapes(case: Case, name: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    for part in ("weight", "bias") if case.kind in _LAYER_NORM else ("weight",):
        yield f"{name}.{part}", (case.sizes["hidden_size"],)


def _linears(case: Case, layer: int) -> dict[str, tuple[tuple[int, int], bool]]:
    """Shape of each matrix of a block, and whether it has a bias."""
    sizes = case.sizes
    hidden, neurons = sizes["hidden_size"], sizes["intermediate_size"]
    q_size = sizes["num_attention_heads"] * case.head_dim
    kv_size = sizes["num_key_value_heads"] * case.head_dim
    attention_bias = case.kind == "OPT" or sizes.get("attention_bias", False)
    qkv_bias = case.kind == "Qwen2" or attention_bias
    mlp_bias = case.kind == "OPT" or sizes.get("mlp_bias", False)
    linears = {
        "attn_q": ((q_size * (1 + (case.kind in _GATED_ATTENTION)), hidden), qkv_bias),
        "attn_k": ((kv_size, hidden), qkv_bias),
        "attn_v": ((kv_size, hidden), qkv_bias),
        "attn_output": ((hidden, q_size), attention_bias),
        "ffn_gate": ((neurons, hidden), mlp_bias),
        "ffn_up": ((neurons, hidden), mlp_bias),
        "ffn_down": ((hidden, neurons), mlp_bias),
    }
    if case.kind == "Falcon":
        linears["attn_qkv"] = ((q_size + 2 * kv_size, hidden), False)
    left_out = {"attn_q", "attn_k", "attn_v"} if case.kind == "Falcon" else set()
    if case.has_conv(layer):
        linears["shortconv.in_proj"] = ((3 * hidden, hidden), False)
        linears["shortconv.out_proj"] = ((hidden, hidden), False)
    kind = layer_kind(case, layer)
    if kind == "M":
        linears |= scan_linears(case)
    if case.has_conv(layer) or has_delta_rule(case, layer) or kind in ("M", "-", "E"):
        left_out |= {"attn_q", "attn_k", "attn_v", "attn_output"}
    if kind and kind != "-":  # Granite's FFN is a shared expert, or one of several
        left_out |= {"ffn_gate", "ffn_up", "ffn_down"}
    if case.num_experts and layer >= case.num_dense_layers:
        left_out |= {"ffn_gate", "ffn_up", "ffn_down"}
    left_out |= {"ffn_gate"} if case.kind in _UNGATED else set()
    return {name: linear for name, linear in linears.items() if name not in left_out}


def _tensors(case: Case, *, is_down_transposed: bool) -> Iterator[TensorSpec]:
    is_interleaved = get_architecture(case.architecture).is_rope_interleaved
    for name, values in _weights(case).items():
        if name.endswith(".scale.weight"):
            yield encode_tensor(name.removesuffix(".weight"), values)
        elif "ffn_" in name and (case.num_experts or "_shexp" in name):
            common = from_gpt_oss(name, values) if case.kind == "GptOss" else values
            parts = stored_experts(name, common, is_down_transposed=is_down_transposed)
            for part, held in parts:
                yield encode_tensor(*stored_scan(part, held, case))
        else:
            new_name, stored = name, _as_stored(name, values, case, is_interleaved)
            if is_down_transposed and "ffn_down" in name:
                new_name = name.replace("ffn_down", "ffn_down_t")
                stored = stored.T if name.endswith("ffn_down.weight") else stored
            new_name, stored = stored_delta_rule(new_name, stored, case)
            new_name, stored = stored_scan(new_name, stored, case)
            yield encode_tensor(new_name, np.ascontiguousarray(stored))
    scaling = case.config.get("rope_scaling", {})
    if scaling.get("rope_type") == "llama3":
        yield encode_tensor("rope_freqs.weight", _llama3_divisors(scaling, case.head_dim))
    elif case.kind == "Gemma4":
        yield encode_tensor("rope_freqs.weight", divisors(case))


def _as_stored(name: str, values: FloatArray, case: Case, is_interleaved: bool) -> FloatArray:
    """Values of a weight as converters arrange them."""
    if is_interleaved and case.kind != "OPT" and (".attn_q." in name or ".attn_k." in name):
        return _interleave(values, case.head_dim)
    if "attn_qkv" in name and case.kind == "Falcon":
        return _ungroup(values, case)
    if case.kind in _ONE_PLUS and name.endswith("norm.weight") and "ssm_" not in name:
        return values + np.float32(1.0)
    return values


def _interleave(values: FloatArray, head_dim: int) -> FloatArray:
    """Rows i and i + head_dim / 2 of each head become neighbours."""
    halves = values.reshape(-1, 2, head_dim // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


def _ungroup(values: FloatArray, case: Case) -> FloatArray:
    """[groups of (queries, key, value)] to all queries, all keys, all values."""
    groups = values.reshape(case.sizes["num_key_value_heads"], -1, case.head_dim, values.shape[1])
    parts = (groups[:, :-2], groups[:, -2], groups[:, -1])
    return np.concatenate([part.reshape(-1, values.shape[1]) for part in parts])


def _llama3_divisors(scaling: dict[str, Any], head_dim: int) -> FloatArray:
    """What converters store: long waves divided by the factor, short ones kept, a ramp between."""
    wavelengths = 2.0 * math.pi * 10000.0 ** (np.arange(0, head_dim, 2) / head_dim)
    turns = scaling["original_max_position_embeddings"] / wavelengths
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    divisors: FloatArray = (1.0 / (kept + (1.0 - kept) / scaling["factor"])).astype(np.float32)
    return divisors
