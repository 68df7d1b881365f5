"""Which neurons fire, as blocks note it: every kind of block, against what the block returns.

Down is the identity in most tests: then a block returns the values of its neurons, and a bit must
be set exactly where a number that it returned is not zero.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from expert_cases import EXPERTS, ExpertCase, make_experts
from native_cases import (
    FORMATS,
    KERNELS,
    THREADS,
    both,
    given_rows,
    make_ffn,
    numbers,
    same_bits,
    use_kernels,
    vector_tensor,
)
from powerinfer.errors import ShapeError, UnsupportedError
from powerinfer.gguf import Tensor
from powerinfer.ops.cpu.fired_bits import count_fired
from powerinfer.ops.cpu.handles import NativeFFN
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.operands import FFN, Linear, MatrixUse
from powerinfer.ops.protocol import MatrixT, VectorT, WeightLoader
from powerinfer.values import Activation, ActivationKind, ByteArray, FloatArray

TABLES = st.sampled_from(KERNELS)
ACTIVATIONS = [
    Activation(kind, 0.3 if kind is ActivationKind.FATRELU else 0.0) for kind in ActivationKind
]
SPARSE = [activation for activation in ACTIVATIONS if activation.is_sparse]


@dataclass(frozen=True)
class Case:
    """A block that returns the values of its neurons, of which there are at most hidden_size."""

    activation: Activation = SPARSE[0]
    format_name: str = "f32"
    sizes: tuple[int, int] = (256, 203)
    is_gated: bool = True
    is_down_transposed: bool = True
    is_exact_sparse: bool = True


def f32(values: FloatArray) -> Tensor:
    return replace(vector_tensor(values.reshape(-1)), shape=values.shape)


def make_block(ops: WeightLoader[MatrixT, VectorT], case: Case) -> FFN[MatrixT, VectorT]:
    hidden, neurons = case.sizes
    ffn = make_ffn(
        ops,
        case.activation,
        case.sizes,
        format_name=case.format_name,
        is_gated=case.is_gated,
        # Its down is replaced; of packed formats a plain one would need whole blocks.
        is_down_transposed=True,
        is_exact_sparse=case.is_exact_sparse,
    )
    # Some neurons fire for nearly all tokens, some for half, some for few and some for none.
    shifts = np.random.default_rng(7).choice([2.0, 0.0, -1.5, -9.0], neurons) * np.sqrt(hidden)
    deciding = replace(ffn.gate or ffn.up, bias=ops.vector(f32(shifts.astype(np.float32))))
    identity = np.eye(neurons, hidden, dtype=np.float32)
    down = identity if case.is_down_transposed else np.ascontiguousarray(identity.T)
    return ops.ffn_weights(
        replace(
            ffn,
            gate=deciding if case.is_gated else None,
            up=ffn.up if case.is_gated else deciding,
            down=Linear(ops.matrix(f32(down), MatrixUse.NEURONS)),
            is_down_transposed=case.is_down_transposed,
        )
    )


def _of_rows(
    ops: WeightLoader[MatrixT, VectorT],
    weights: FloatArray,
    activation: Activation,
) -> FFN[MatrixT, VectorT]:
    """A block of f32[1 or 2, num_neurons, hidden_size]: gate, if there is one, and up."""

    def linear(values: FloatArray) -> Linear[MatrixT, VectorT]:
        return Linear(ops.matrix(f32(values), MatrixUse.NEURONS))

    gate = linear(weights[0]) if len(weights) == 2 else None
    down = linear(np.eye(*weights.shape[1:], dtype=np.float32))
    return ops.ffn_weights(
        FFN(gate, linear(weights[-1]), down, activation, True, False, native=None)
    )


def bits_of(fires: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> ByteArray:
    return np.packbits(fires, axis=1, bitorder="little")


def check(
    ops: NativeOps, ffn: NativeFFN, x: FloatArray, num_neurons: int, seen: FloatArray | None = None
) -> ByteArray:
    marks = given_rows(len(x))
    out, fired = ops.ffn_firing(x, ffn, marks, seen)
    assert same_bits(out, ops.ffn(x, ffn, None, marks, seen))
    np.testing.assert_array_equal(fired, bits_of(out[:, :num_neurons] != 0))
    return fired


@given(
    kernels=TABLES,
    threads=st.sampled_from(THREADS),
    seed=st.integers(0, 2**32 - 1),
    num_tokens=st.integers(0, 70),
    num_neurons=st.integers(1, 256),
    activation=st.sampled_from(ACTIVATIONS),
    is_gated=st.booleans(),
    is_down_transposed=st.booleans(),
    is_exact=st.booleans(),
)
@example("portable", 2, 1, 530, 65, SPARSE[0], True, True, True)
@example("portable", 3, 1, 530, 255, SPARSE[1], True, False, True)
def test_bits_are_where_values_are_not_zero(
    kernels: str,
    threads: int,
    seed: int,
    num_tokens: int,
    num_neurons: int,
    activation: Activation,
    is_gated: bool,
    is_down_transposed: bool,
    is_exact: bool,
) -> None:
    ops = use_kernels(kernels, threads)
    x = numbers((num_tokens, 256), seed)
    x[1::3] *= 0.2
    case = Case(
        activation,
        sizes=(256, num_neurons),
        is_gated=is_gated,
        is_down_transposed=is_down_transposed,
        is_exact_sparse=is_exact and activation.is_sparse,
    )
    check(ops, make_block(ops, case), x, num_neurons)


@pytest.mark.parametrize("is_down_transposed", [True, False])
@pytest.mark.parametrize("format_name", FORMATS)
def test_every_format(kernels: str, format_name: str, is_down_transposed: bool) -> None:
    ops, x = use_kernels(kernels), numbers((90, 256), 1)
    x[::2] *= 0.2
    for activation in SPARSE:
        case = Case(activation, format_name, is_down_transposed=is_down_transposed)
        fired = check(ops, make_block(ops, case), x, case.sizes[1])
        share = np.unpackbits(fired).mean()
        assert 0.05 < share < 0.9


@pytest.mark.parametrize("is_gated", [True, False], ids=["gated", "ungated"])
@pytest.mark.parametrize("activation", SPARSE, ids=str)
def test_the_reference_notes_the_same_of_integers(
    kernels: str, activation: Activation, is_gated: bool
) -> None:
    """Products of small integers have no rounding, and many of them are zero."""
    random = np.random.default_rng(3)
    weights = random.integers(-1, 2, (2, 101, 64)).astype(np.float32)
    x = random.integers(-2, 3, (60, 64)).astype(np.float32)
    x[random.random(x.shape) < 0.9] = 0
    found = []
    for is_exact_sparse in (True, False):
        for ops in both(kernels):
            ffn = _of_rows(ops, weights if is_gated else weights[1:], activation)
            prepared = ops.ffn_weights(replace(ffn, is_exact_sparse=is_exact_sparse))
            found.append(ops.ffn_firing(x, prepared, given_rows(60))[1])
    deciding = x @ weights[0 if is_gated else 1].T
    fires = deciding >= 0.3 if activation.kind is ActivationKind.FATRELU else deciding > 0
    if is_gated:
        up_values = x @ weights[1].T
        fires &= up_values > 0 if activation.kind is ActivationKind.DRELU else up_values != 0
        assert (fires != (deciding > 0)).any()
    for fired in found:
        np.testing.assert_array_equal(fired, bits_of(fires))


def test_nan_fires(kernels: str) -> None:
    ops, x = use_kernels(kernels), numbers((3, 256), 5)
    x[1, 7] = np.nan
    for is_exact_sparse in (True, False):
        fired = check(ops, make_block(ops, Case(is_exact_sparse=is_exact_sparse)), x, 203)
        assert np.unpackbits(fired[1]).sum() == 203


@given(
    kernels=TABLES,
    threads=st.sampled_from(THREADS),
    seed=st.integers(0, 2**32 - 1),
    num_tokens=st.integers(0, 70),
    size=st.integers(1, 51),
    num_used=st.integers(1, EXPERTS),
    activation=st.sampled_from(ACTIVATIONS),
    is_down_transposed=st.booleans(),
)
def test_experts(
    kernels: str,
    threads: int,
    seed: int,
    num_tokens: int,
    size: int,
    num_used: int,
    activation: Activation,
    is_down_transposed: bool,
) -> None:
    """Neurons of all experts have outputs of their own, which weights above zero scale."""
    ops = use_kernels(kernels, threads)
    case = ExpertCase(
        activation,
        sizes=(256, size),
        num_used=num_used,
        is_down_transposed=is_down_transposed,
        is_exact_sparse=activation.is_sparse,
    )
    identity = np.eye(EXPERTS * size, 256, dtype=np.float32).reshape(EXPERTS, size, 256)
    down = identity if is_down_transposed else np.ascontiguousarray(identity.transpose(0, 2, 1))
    matrix = ops.expert_matrix([f32(down)], MatrixUse.NEURONS)
    made = replace(make_experts(ops, case), down=Linear(matrix))
    x = numbers((num_tokens, 256), seed)
    # Small logits: no weight is so small that a product with it is zero.
    check(ops, ops.ffn_weights(made), x, EXPERTS * size, x * np.float32(0.01))


@pytest.mark.parametrize("format_name", ["f32", "q4_0", "q8_0", "q4_k"])
@pytest.mark.parametrize("has_bias", [True, False])
def test_outputs_of_experts_do_not_change(kernels: str, format_name: str, has_bias: bool) -> None:
    x, seen = numbers((70, 256), 5), numbers((70, 256), 6)
    for activation in SPARSE:
        case = ExpertCase(activation, format_name, is_exact_sparse=True, has_bias=has_bias)
        ops = use_kernels(kernels)
        ffn = make_experts(ops, case)
        out, fired = ops.ffn_firing(x, ffn, given_rows(70), seen)
        assert same_bits(out, ops.ffn(x, ffn, None, given_rows(70), seen))
        ids, _ = ops.route(seen, ffn, given_rows(70))
        own = np.unpackbits(fired, axis=1, bitorder="little").reshape(70, EXPERTS, 512)
        chosen = np.zeros((70, EXPERTS), bool)
        np.put_along_axis(chosen, ids, values=True, axis=1)
        assert (own.any(axis=2) == chosen).all()


@pytest.mark.parametrize("is_down_transposed", [True, False])
@pytest.mark.parametrize("activation", SPARSE, ids=str)
def test_outputs_and_bits_depend_on_no_threads(
    kernels: str, activation: Activation, is_down_transposed: bool
) -> None:
    x = numbers((150, 256), 1)
    outs, bits = [], []
    for threads in THREADS:
        ops = use_kernels(kernels, threads)
        ffn = make_ffn(
            ops,
            activation,
            (256, 768),
            format_name="q4_0",
            is_down_transposed=is_down_transposed,
            is_exact_sparse=True,
            has_bias=True,
        )
        out, fired = ops.ffn_firing(x, ffn, given_rows(150))
        assert same_bits(out, ops.ffn(x, ffn, None, given_rows(150)))
        outs.append(out)
        bits.append(fired)
    assert all(same_bits(out, outs[0]) for out in outs)
    assert all((fired == bits[0]).all() for fired in bits)


def test_counters_are_those_of_the_block() -> None:
    counted = []
    for is_asked in (False, True):
        ops = use_kernels("portable")
        ffn, x = make_block(ops, Case()), numbers((40, 256), 1)
        if is_asked:
            ops.ffn_firing(x, ffn, given_rows(40))
        else:
            ops.ffn(x, ffn, None, given_rows(40))
        found = ops.counters
        counted.append((found.active, found.predicted, found.total, found.bytes_read))
    assert counted[0] == counted[1]


@pytest.mark.parametrize("marks", [None, np.array([True, False])])
def test_decode_rows_are_refused(marks: np.ndarray[tuple[int], np.dtype[np.bool_]] | None) -> None:
    ops = use_kernels("portable")
    with pytest.raises(UnsupportedError, match="decode rows"):
        ops.ffn_firing(numbers((2, 256), 1), make_block(ops, Case()), marks)


@given(
    seed=st.integers(0, 2**32 - 1),
    num_tokens=st.integers(0, 40),
    num_neurons=st.integers(1, 300),
    density=st.sampled_from([0.0, 0.1, 0.9, 1.0]),
)
def test_counts_are_sums_of_bits(
    seed: int, num_tokens: int, num_neurons: int, density: float
) -> None:
    random = np.random.default_rng(seed)
    fires = random.random((num_tokens, num_neurons)) < density
    before = random.integers(0, 2**40, num_neurons)
    counts = before.copy()
    count_fired(bits_of(fires), counts)
    np.testing.assert_array_equal(counts, before + fires.sum(axis=0))


def test_counting_checks_sizes() -> None:
    counts = np.zeros(9, np.int64)
    with pytest.raises(ShapeError, match="fired"):
        count_fired(np.zeros((3, 3), np.uint8), counts)
    with pytest.raises(ValueError, match="beyond the last neuron"):
        count_fired(np.full((3, 2), 2, np.uint8), counts)
    assert not counts.any()
