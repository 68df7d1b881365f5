"""Lookup of a feed-forward block's tensors: dense, or experts in any layout.

Experts come merged in one tensor per matrix (``ffn_up_exps``), in one tensor each (``ffn_up.3``,
the oldest layout), or with the rows of gate before those of up in each expert
(``ffn_gate_up_exps``). The last is split, without a copy, into tensors of single experts.
"""

from dataclasses import replace

import numpy as np

from powerinfer.models.config import ModelConfig
from powerinfer.models.experts import SELECTION_BIAS, SHARED, ExpertsConfig
from powerinfer.models.tensors.tensor_lookup import Section, decoded, rows_of

__all__ = [
    "DENSE_FFN_NORMS",
    "EXPERT_SCALE",
    "INPUT_SCALE",
    "LATENT",
    "ROUTER",
    "SHARED",
    "find_ffn",
]

LATENT = ("ffn_latent_down", "ffn_latent_up")
"""Projections of the experts' input and output, if they work in a latent space."""

ROUTER = "ffn_gate_inp"
"""Name of a router's weight and bias."""

INPUT_SCALE, EXPERT_SCALE = f"{ROUTER}.scale", "ffn_down_exps.scale"
"""Names of a router's factors: of its normalized input, and of each expert's weight."""

DENSE_FFN_NORMS = ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2")
"""Norms of the experts' input, of the dense FFN beside them, and of their output."""


def find_ffn(block: Section, config: ModelConfig, number: int, *, is_gated: bool) -> None:
    """Add the tensors of the FFN of block `number`.

    Experts are found as ``<name>_exps.weight``, [num_experts, rows, columns], or as
    ``<name>.<number>.weight``, [rows, columns], for each number; their biases as
    ``<name>_exps.bias``, [num_experts, rows].
    """
    names = ("ffn_gate", "ffn_up") if is_gated else ("ffn_up",)
    hidden, experts = config.hidden_size, config.experts
    if experts is None:
        _find_dense(block, (*names, "ffn_down"), (config.intermediate_size, hidden))
        return
    if number < experts.num_dense_layers:
        _find_dense(block, (*names, "ffn_down"), (experts.dense_size, hidden))
        return
    block.linear(ROUTER, (experts.num_experts, hidden))
    if experts.has_selection_bias:
        block.take(SELECTION_BIAS, (experts.num_experts,))
    if experts.latent_size:
        into, out_of = LATENT
        block.linear(into, (experts.latent_size, hidden))
        block.linear(out_of, (hidden, experts.latent_size))
    if _are_single(block, experts.num_experts):
        for name in (*names, "ffn_down"):
            _find_single(block, config, name)
    else:
        _find_merged(block, config, names)
    _find_beside(block, experts, hidden, names)


def _find_beside(
    block: Section, experts: ExpertsConfig, hidden: int, names: tuple[str, ...]
) -> None:
    """Add what a block with experts has besides their matrices and the router."""
    if experts.shared_size:
        shared = tuple(f"{name}{experts.shared_suffix}" for name in (*names, "ffn_down"))
        _find_dense(block, shared, (experts.shared_size, hidden))
    if experts.has_dense_ffn:
        for norm in DENSE_FFN_NORMS:
            block.need(f"{norm}.weight", (hidden,))
    if experts.has_scales:
        block.need(INPUT_SCALE, (hidden,))
        block.need(EXPERT_SCALE, (experts.num_experts,))
    if experts.has_shared_gate:
        _find_shared_gate(block, hidden)


def _find_dense(block: Section, names: tuple[str, ...], shape: tuple[int, int]) -> None:
    """Add a block without router; `names` ends with down, `shape` is that of up."""
    for name in names[:-1]:
        block.linear(name, shape)
    block.down(names[-1], (shape[1], shape[0]))


def _find_shared_gate(block: Section, hidden: int) -> None:
    """Add the gate of a shared expert, stored as a row or as a vector, as a row."""
    name, row = f"{ROUTER}{SHARED}.weight", (1, hidden)
    stored = block.lookup.file.tensors.get(block.prefix + name)
    is_vector = stored is not None and len(stored.shape) == 1
    block.need(name, (hidden,) if is_vector else row)
    if name in block.tensors:
        block.tensors[name] = replace(block.tensors[name], shape=row)


def _find_merged(block: Section, config: ModelConfig, names: tuple[str, ...]) -> None:
    """Add merged experts, with gate and up in one tensor or apart."""
    hidden, neurons, count = config.expert_hidden_size, config.intermediate_size, config.num_experts
    if len(names) == 2 and block.has("ffn_gate_up_exps.weight"):
        found = Section(block.lookup, block.prefix)
        found.linear("ffn_gate_up_exps", (count, 2 * neurons, hidden))
        _take_apart(block, found, config)
    else:
        for name in names:
            block.linear(f"{name}_exps", (count, neurons, hidden))
    block.down("ffn_down_exps", (hidden, neurons), count)


def _take_apart(block: Section, found: Section, config: ModelConfig) -> None:
    """Split tensors that hold gate and up into those of each expert, biases included."""
    count, neurons = config.num_experts, config.intermediate_size
    weight, bias = (found.tensors.get(f"ffn_gate_up_exps.{part}") for part in ("weight", "bias"))
    for place, name in enumerate(("ffn_gate", "ffn_up")):
        if weight is not None:
            rows = replace(weight, shape=(2 * count * neurons, config.expert_hidden_size))
            for expert in range(count):
                own = f"{name}.{expert}.weight"
                first = (2 * expert + place) * neurons
                block.tensors[own] = rows_of(rows, first, neurons, block.prefix + own)
        if bias is not None:
            own = f"{name}_exps.bias"
            values = np.ascontiguousarray(bias.decode().reshape(count, 2, neurons)[:, place])
            block.tensors[own] = decoded(bias, values, block.prefix + own)


def _are_single(block: Section, num_experts: int) -> bool:
    """Look for tensors of single experts; the first may be missing."""
    numbers, names = range(min(2, num_experts)), ("ffn_gate", "ffn_up", "ffn_down")
    return any(block.has(f"{name}.{n}.weight") for name in names for n in numbers)


def _find_single(block: Section, config: ModelConfig, name: str) -> None:
    sizes, count = (config.intermediate_size, config.expert_hidden_size), config.num_experts
    shape = sizes[::-1] if name == "ffn_down" else sizes
    for expert in range(count):
        block.need(f"{name}.{expert}.weight", shape)
    block.complain(f"{name}.{count}.weight", f"but there are {count} experts")
    block.complain(f"{name}_exps.weight", f"in addition to {name}.0.weight of a single expert")
    first = block.tensors.get(f"{name}.0.weight")
    for expert in range(count):
        tensor = block.tensors.get(f"{name}.{expert}.weight")
        if first is not None and tensor is not None and tensor.format != first.format:
            reason = f"in {tensor.format}, but {first.name} is in {first.format}"
            block.complain(f"{name}.{expert}.weight", reason)
