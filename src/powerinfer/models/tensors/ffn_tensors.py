"""Lookup of a feed-forward block's tensors: dense, or experts in any layout.

Experts come merged in one tensor per matrix (``ffn_up_exps``), in one tensor each (``ffn_up.3``,
the oldest layout), or with the rows of gate before those of up in each expert
(``ffn_gate_up_exps``). The last is split, without a copy, into tensors of single experts.
"""

from dataclasses import replace

import numpy as np

from powerinfer.gguf import Tensor
from powerinfer.models.config import ModelConfig
from powerinfer.models.tensors.tensor_lookup import TensorLookup, decoded, rows_of

__all__ = ["ROUTER", "SHARED", "find_ffn"]

ROUTER = "ffn_gate_inp"
"""Name of a router's weight and bias."""

SHARED = "_shexp"
"""Suffix of a shared expert's tensor names."""


def find_ffn(
    lookup: TensorLookup,
    tensors: dict[str, Tensor],
    config: ModelConfig,
    prefix: str,
    *,
    is_gated: bool,
) -> None:
    """Add the tensors of one block's FFN.

    Experts are found as ``<name>_exps.weight``, [num_experts, rows, columns], or as
    ``<name>.<number>.weight``, [rows, columns], for each number; their biases as
    ``<name>_exps.bias``, [num_experts, rows].
    """
    names = ("ffn_gate", "ffn_up") if is_gated else ("ffn_up",)
    if config.experts is None:
        shape = (config.intermediate_size, config.hidden_size)
        _find_dense(lookup, tensors, prefix, (*names, "ffn_down"), shape)
        return
    router_shape = (config.experts.num_experts, config.hidden_size)
    lookup.linear(tensors, ROUTER, router_shape, prefix)
    if _are_single(lookup, config, prefix):
        for name in (*names, "ffn_down"):
            _find_single(lookup, tensors, config, prefix, name)
    else:
        _find_merged(lookup, tensors, config, prefix, names)
    if config.experts.shared_size:
        size = config.experts.shared_size
        shared = tuple(f"{name}{SHARED}" for name in (*names, "ffn_down"))
        _find_dense(lookup, tensors, prefix, shared, (size, config.hidden_size))


def _find_dense(
    lookup: TensorLookup,
    tensors: dict[str, Tensor],
    prefix: str,
    names: tuple[str, ...],
    shape: tuple[int, int],
) -> None:
    """Add a block without router; `names` ends with down, `shape` is that of up."""
    for name in names[:-1]:
        lookup.linear(tensors, name, shape, prefix)
    lookup.down(tensors, names[-1], (shape[1], shape[0]), prefix)


def _find_merged(
    lookup: TensorLookup,
    tensors: dict[str, Tensor],
    config: ModelConfig,
    prefix: str,
    names: tuple[str, ...],
) -> None:
    """Add merged experts, with gate and up in one tensor or apart."""
    hidden, neurons, count = config.hidden_size, config.intermediate_size, _count(config)
    if len(names) == 2 and lookup.has(f"{prefix}ffn_gate_up_exps.weight"):
        found: dict[str, Tensor] = {}
        lookup.linear(found, "ffn_gate_up_exps", (count, 2 * neurons, hidden), prefix)
        if found:
            _take_apart(tensors, found, config, prefix)
    else:
        for name in names:
            lookup.linear(tensors, f"{name}_exps", (count, neurons, hidden), prefix)
    lookup.down(tensors, "ffn_down_exps", (hidden, neurons), prefix, num_experts=count)


def _take_apart(
    tensors: dict[str, Tensor], found: dict[str, Tensor], config: ModelConfig, prefix: str
) -> None:
    """Split tensors that hold gate and up into those of each expert, biases included."""
    count, neurons = _count(config), config.intermediate_size
    weight, bias = (found.get(f"ffn_gate_up_exps.{part}") for part in ("weight", "bias"))
    for place, name in enumerate(("ffn_gate", "ffn_up")):
        if weight is not None:
            rows = replace(weight, shape=(2 * count * neurons, config.hidden_size))
            for expert in range(count):
                own = f"{name}.{expert}.weight"
                first = (2 * expert + place) * neurons
                tensors[own] = rows_of(rows, first, neurons, prefix + own)
        if bias is not None:
            values = bias.decode().reshape(count, 2, neurons)[:, place]
            tensors[f"{name}_exps.bias"] = decoded(
                bias, np.ascontiguousarray(values), f"{prefix}{name}_exps.bias"
            )


def _are_single(lookup: TensorLookup, config: ModelConfig, prefix: str) -> bool:
    """Look for tensors of single experts; the first may be missing."""
    numbers, names = range(min(2, _count(config))), ("ffn_gate", "ffn_up", "ffn_down")
    return any(lookup.has(f"{prefix}{name}.{n}.weight") for name in names for n in numbers)


def _find_single(
    lookup: TensorLookup, tensors: dict[str, Tensor], config: ModelConfig, prefix: str, name: str
) -> None:
    sizes = config.intermediate_size, config.hidden_size
    shape = sizes[::-1] if name == "ffn_down" else sizes
    for expert in range(_count(config)):
        lookup.need(tensors, f"{name}.{expert}.weight", shape, prefix)
    lookup.complain(
        f"{prefix}{name}.{_count(config)}.weight", f"but there are {_count(config)} experts"
    )
    lookup.complain(
        f"{prefix}{name}_exps.weight", f"in addition to {name}.0.weight of a single expert"
    )
    first = tensors.get(f"{name}.0.weight")
    for expert in range(_count(config)):
        tensor = tensors.get(f"{name}.{expert}.weight")
        if first is not None and tensor is not None and tensor.format != first.format:
            reason = f"in {tensor.format}, but {first.name} is in {first.format}"
            lookup.complain(tensor.name, reason)


def _count(config: ModelConfig) -> int:
    return 1 if config.experts is None else config.experts.num_experts
