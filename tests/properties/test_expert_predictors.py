"""Predictors inside experts of any shape, on the reference and the native backend."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends import using
from powerinfer.calibration.ground_truth import GroundTruth
from powerinfer.calibration.routing import Routing
from powerinfer.gguf import Tensor
from powerinfer.ops.backend import Backend, Matrix, SomeFFN, Vector
from powerinfer.ops.operands import FFN, Linear, MatrixUse, Router, RouterRule
from powerinfer.predictors import LayerChoice, LayerSource, PredictorInput, build_predictor
from powerinfer.values import Activation, ActivationKind, FloatArray
from tolerances import assert_close

HIDDEN = 32
KINDS = ("sign", "lowbit:2", "lowbit:4", "sign+lowbit:3", "mlp", "mlp:q8_0")
ACTIVATIONS = (
    Activation(ActivationKind.RELU),
    Activation(ActivationKind.RELU2),
    Activation(ActivationKind.DRELU),
    Activation(ActivationKind.FATRELU, 0.1),
)
BACKENDS = ("reference", "native-portable")


@dataclass(frozen=True)
class Shape:
    """A mixture of experts, and tokens for it."""

    num_experts: int
    num_used: int
    num_neurons: int
    rank: int
    num_tokens: int
    activation: Activation
    is_gated: bool
    is_down_transposed: bool
    has_bias: bool
    has_own_router_input: bool
    router_size: int
    has_shared_fc1: bool
    scale: float
    seed: int


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    num_experts = draw(st.integers(2, 6))
    activation = draw(st.sampled_from(ACTIVATIONS))
    has_own_router_input = draw(st.booleans())
    return Shape(
        num_experts=num_experts,
        num_used=draw(st.integers(1, num_experts)),
        num_neurons=draw(st.integers(1, 70)),
        rank=draw(st.integers(1, 40)),
        num_tokens=draw(st.integers(1, 6)),
        activation=activation,
        is_gated=activation.kind is ActivationKind.DRELU or draw(st.booleans()),
        is_down_transposed=draw(st.booleans()),
        has_bias=draw(st.booleans()),
        has_own_router_input=has_own_router_input,
        router_size=draw(st.integers(1, 70)) if has_own_router_input else HIDDEN,
        has_shared_fc1=draw(st.booleans()),
        scale=draw(st.sampled_from((1.0, 2.5))),
        seed=draw(st.integers(0, 1 << 20)),
    )


class _Made:
    """A block of a shape with everything that its predictors are built from."""

    def __init__(self, ops: Backend, shape: Shape) -> None:
        self._ops, self._shape = ops, shape
        self._stream = np.random.default_rng(shape.seed)
        size = (shape.num_tokens, HIDDEN)
        self.x, self.raw = self._numbers(*size), self._numbers(*size)
        seen = (shape.num_tokens, shape.router_size)
        self.seen = self._numbers(*seen) if shape.has_own_router_input else None
        self.is_prompt = self._stream.random(shape.num_tokens) < 0.5
        self.source = LayerSource(
            number=0,
            ffn=self._ffn(),
            mlp=self._mlp(),
            mlp_input=PredictorInput.RESIDUAL,
            mlp_threshold=0.1,
            mean=self._numbers(HIDDEN),
            variance=np.abs(self._numbers(HIDDEN)),
        )

    def run(self, ffn: SomeFFN, predictor_input: FloatArray | None = None) -> FloatArray:
        ops = self._ops
        return ops.to_host(ops.ffn(self.x, ffn, predictor_input, self.is_prompt, self.seen))

    def _numbers(self, *shape: int) -> FloatArray:
        return self._stream.standard_normal(shape).astype(np.float32)

    def _tensor(self, *shape: int) -> Tensor:
        values = self._numbers(*shape)
        return Tensor("t", shape, "f32", values.reshape(-1).view(np.uint8), Path("made.gguf"))

    def _mlp(self) -> tuple[Tensor, Tensor]:
        shape = self._shape
        experts = () if shape.has_shared_fc1 else (shape.num_experts,)
        fc1 = self._tensor(*experts, shape.rank, HIDDEN)
        return fc1, self._tensor(shape.num_experts, shape.num_neurons, shape.rank)

    def _linear(self, rows: int, columns: int, num_biases: int) -> Linear[Matrix, Vector]:
        count, ops = self._shape.num_experts, self._ops
        matrix = ops.expert_matrix([self._tensor(count, rows, columns)], MatrixUse.NEURONS)
        bias = ops.expert_vector(self._tensor(count, num_biases)) if self._shape.has_bias else None
        return Linear(matrix, bias)

    def _ffn(self) -> SomeFFN:
        shape, ops = self._shape, self._ops
        rows = (shape.num_neurons, HIDDEN)
        router: Router[Matrix, Vector] = Router(
            Linear(ops.matrix(self._tensor(shape.num_experts, shape.router_size), MatrixUse.DENSE)),
            shape.num_experts,
            shape.num_used,
            RouterRule.SOFTMAX,
            is_normalized=True,
            scale=shape.scale,
        )
        ffn: FFN[Matrix, Vector] = FFN(
            gate=self._linear(*rows, shape.num_neurons) if shape.is_gated else None,
            up=self._linear(*rows, shape.num_neurons),
            down=self._linear(*(rows if shape.is_down_transposed else rows[::-1]), HIDDEN),
            activation=shape.activation,
            is_down_transposed=shape.is_down_transposed,
            is_exact_sparse=True,
            router=router,
            native=None,
        )
        return ops.ffn_weights(ffn)


@pytest.mark.parametrize("backend", BACKENDS)
@given(shape=shapes(), kind=st.sampled_from(KINDS), threshold=st.sampled_from((-1.0, 0.0, 1.0)))
def test_what_runs_is_what_passes_in_the_chosen_experts(
    backend: str, shape: Shape, kind: str, threshold: float
) -> None:
    with using(backend) as ops:
        made = _Made(ops, shape)
        thresholds = (threshold,) * (kind.count("+") + 1)
        built = build_predictor(ops, made.source, LayerChoice(kind, thresholds))
        assert built.predictor is not None
        predictor_input = built.predictor.select_input(made.x, made.raw)
        before = ops.counters.predicted
        found = made.run(built.ffn, predictor_input)
        num_predicted = ops.counters.predicted - before
        active = built.predictor.select(ops, built.ffn, made.x, made.raw, made.is_prompt)
        exact = build_predictor(ops, made.source, LayerChoice("exact")).ffn
        listed = ops.ffn_active(made.x, exact, active, made.is_prompt, made.seen)
        assert_close(found, ops.to_host(listed), "exact sparse")
        routing = Routing.of(ops, exact, made.x, made.seen, made.is_prompt)
        assert num_predicted == np.count_nonzero(routing.mask(active))


@pytest.mark.parametrize("backend", BACKENDS)
@given(shape=shapes(), kind=st.sampled_from(KINDS))
def test_the_lowest_threshold_equals_exact_and_off(backend: str, shape: Shape, kind: str) -> None:
    with using(backend) as ops:
        made = _Made(ops, shape)
        lowest = LayerChoice(kind, (float("-inf"),) * (kind.count("+") + 1))
        built = build_predictor(ops, made.source, lowest)
        assert built.predictor is not None
        found = made.run(built.ffn, built.predictor.select_input(made.x, made.raw))
        exact = made.run(build_predictor(ops, made.source, LayerChoice("exact")).ffn)
        off = made.run(ops.ffn_weights(replace(made.source.ffn, is_exact_sparse=False)))
        assert_close(found, exact, "exact sparse")
        assert_close(exact, off, "exact sparse")


@pytest.mark.parametrize("backend", BACKENDS)
@given(shape=shapes(), seed=st.integers(0, 99))
def test_the_measured_error_is_the_one_that_happens(backend: str, shape: Shape, seed: int) -> None:
    with using(backend) as ops:
        made = _Made(ops, shape)
        made.is_prompt = np.ones(shape.num_tokens, bool)
        truth = GroundTruth(ops, made.source.ffn, made.x, None, made.seen)
        predicted = np.random.default_rng(seed).random(truth.active.shape) < 0.7
        ids = truth.routing.ids(predicted)
        full = made.run(made.source.ffn).astype(np.float64)
        some = ops.ffn_active(made.x, made.source.ffn, ids, made.is_prompt, made.seen)
        lost = np.square(full - ops.to_host(some)).sum()
        expected = np.sqrt(lost / np.square(full).sum()) if full.any() else float(lost > 0)
        assert truth.ffn_error(predicted).value == pytest.approx(expected, rel=1e-3, abs=1e-5)
