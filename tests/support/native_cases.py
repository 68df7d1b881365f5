"""Random weights, activations and batches for the tests of the native backend."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from powerinfer import _core
from powerinfer.gguf import Tensor
from powerinfer.ops.backend import KVLayer, Matrix, StateLayer, Vector
from powerinfer.ops.cpu.handles import NativePredictor
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.cpu.weights import FORMATS
from powerinfer.ops.protocol import (
    FFN,
    Linear,
    MatrixT,
    MatrixUse,
    NeuronPredictor,
    Ops,
    ScoreStage,
    VectorT,
    WeightLoader,
)
from powerinfer.ops.reference.ops import ReferenceOps
from powerinfer.quant import get_format
from powerinfer.values import Activation, Batch, BoolArray, FloatArray
from random_blocks import random_blocks

__all__ = [
    "ALL_KERNELS",
    "FORMATS",
    "KERNELS",
    "THREADS",
    "HostOps",
    "both",
    "given_rows",
    "host_ops",
    "make_batch",
    "make_ffn",
    "make_linear",
    "make_predictor",
    "numbers",
    "rounds_to_bf16",
    "tensor",
    "use_kernels",
    "vector_tensor",
]

HostOps: TypeAlias = Ops[FloatArray, Matrix, Vector, KVLayer, StateLayer]
"""Some backend whose activations are numpy arrays."""

ALL_KERNELS = ("portable", "avx2", "avxvnni", "avx512", "amx", "neon", "neoni8mm")
KERNELS = tuple(name for name in ALL_KERNELS if name in _core.available_kernels())
"""Those of this processor. What it lacks is no parameter of a test; a run says what it left out."""
THREADS = (1, 2, 3, 7)


def numbers(shape: Sequence[int], seed: int) -> FloatArray:
    """Normal f32[shape]."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def given_rows(num_tokens: int) -> BoolArray:
    """Marks of rows that are all prompt."""
    return np.ones(num_tokens, bool)


def rounds_to_bf16(kernels: str, format_name: str) -> bool:
    """Whether prompts round activations to bf16 before products with this format."""
    _, floats, bf16 = _core.product_names(kernels)
    return format_name == "bf16" and bf16 != floats


@lru_cache(maxsize=16)  # Several backends are given the same weights.
def tensor(format_name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """A weight tensor in which every code of the format may occur."""
    known = get_format(format_name)
    if known.block_size == 1:
        data = known.encode(numbers(shape, seed)).reshape(-1).view(np.uint8)
    else:
        random = np.random.default_rng(seed)
        num_blocks = int(np.prod(shape)) // known.block_size
        codes = random.integers(0, 256, (num_blocks, known.block_bytes), dtype=np.uint8)
        jitter = random.uniform(0.5, 1.5, num_blocks)
        data = random_blocks(format_name, codes, 1.0, jitter).reshape(-1)
    data.flags.writeable = False
    return Tensor(f"{format_name}.weight", shape, format_name, data, Path("test.gguf"))


def vector_tensor(values: FloatArray) -> Tensor:
    """An f32 vector as a file would hold it."""
    return Tensor("vector", values.shape, "f32", values.view(np.uint8), Path("test.gguf"))


def make_linear(
    ops: WeightLoader[MatrixT, VectorT],
    format_name: str,
    shape: tuple[int, int],
    seed: int,
    use: MatrixUse = MatrixUse.DENSE,
    *,
    has_bias: bool = False,
) -> Linear[MatrixT, VectorT]:
    """The same product for every backend asked."""
    matrix = ops.matrix(tensor(format_name, shape, seed), use)
    bias = ops.vector(vector_tensor(numbers(shape[:1], seed + 1))) if has_bias else None
    return Linear(matrix, bias)


def make_ffn(
    ops: WeightLoader[MatrixT, VectorT],
    activation: Activation,
    sizes: tuple[int, int],
    *,
    format_name: str = "f32",
    is_gated: bool = True,
    is_down_transposed: bool = True,
    is_exact_sparse: bool = False,
    has_bias: bool = False,
) -> FFN[MatrixT, VectorT]:
    """A feed-forward block of (hidden_size, intermediate_size)."""
    hidden, neurons = sizes
    use = MatrixUse.NEURONS if is_exact_sparse else MatrixUse.DENSE
    shape = (neurons, hidden)
    gate = make_linear(ops, format_name, shape, 10, use, has_bias=has_bias) if is_gated else None
    up = make_linear(ops, format_name, shape, 20, use, has_bias=has_bias)
    # Down has one bias entry per output, which in the transposed form is a column.
    down_shape = shape if is_down_transposed else (hidden, neurons)
    down = make_linear(ops, format_name, down_shape, 30, use)
    if has_bias:
        down = replace(down, bias=ops.vector(vector_tensor(numbers((hidden,), 31))))
    return ops.ffn_weights(
        FFN(gate, up, down, activation, is_down_transposed, is_exact_sparse, native=None)
    )


def make_predictor(ops: NativeOps, sizes: tuple[int, int]) -> NativePredictor:
    """Two small matrices whose scores let about half pass, for (hidden_size, intermediate_size)."""
    hidden, neurons = sizes
    first = make_linear(ops, "q4_0", (32, hidden), 40).matrix
    second = make_linear(ops, "f16", (neurons, 32), 41).matrix
    return ops.neuron_predictor(
        NeuronPredictor(first, None, (ScoreStage(second, None, 0.0),), native=None)
    )


def make_batch(lengths: Sequence[int], num_new: int, block_size: int) -> tuple[Batch, Batch]:
    """A batch of all positions of some sequences, and one of the last `num_new` of each.

    Blocks are handed out backwards, so that none lies where it would by accident.
    """
    max_blocks = -(-max(lengths) // block_size)
    ids = np.arange(len(lengths) * max_blocks, dtype=np.int32)[::-1]
    tables = np.ascontiguousarray(ids.reshape(len(lengths), max_blocks))

    def batch(first: Sequence[int]) -> Batch:
        spans = [np.arange(a, b, dtype=np.int32) for a, b in zip(first, lengths, strict=True)]
        owners = [np.full(len(span), i, np.int32) for i, span in enumerate(spans)]
        positions = np.concatenate(spans)
        return Batch(np.zeros_like(positions), positions, np.concatenate(owners), tables)

    return batch([0] * len(lengths)), batch([max(0, n - num_new) for n in lengths])


def use_kernels(name: str, threads: int = 2) -> NativeOps:
    """A backend on the named kernels, which must be available."""
    return NativeOps(threads, name)


def host_ops(
    ops: Ops[FloatArray, Any, Any, Any, Any],
) -> HostOps:
    """A backend of whose handles the type checker forgets which they are: see `as_backend`."""
    return ops


def both(kernels: str) -> tuple[HostOps, HostOps]:
    """The named kernels and the oracle, for what is done alike on each."""
    return host_ops(use_kernels(kernels)), host_ops(reference())


def reference() -> ReferenceOps:
    """The oracle."""
    return ReferenceOps()


def same_bits(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> bool:
    """Whether two arrays are equal to the last bit, NaN included."""
    return a.shape == b.shape and bool(np.array_equal(a.view(np.uint32), b.view(np.uint32)))
