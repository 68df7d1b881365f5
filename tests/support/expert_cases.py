"""Blocks of experts for tests of single operations, the same for every backend."""

from dataclasses import dataclass, replace

import numpy as np

from native_cases import numbers, tensor
from powerinfer.gguf import Tensor
from powerinfer.ops.operands import FFN, Linear, MatrixUse, Router, RouterRule
from powerinfer.ops.protocol import MatrixT, VectorT, WeightLoader
from powerinfer.values import Activation, ActivationKind

__all__ = ["EXPERTS", "ExpertCase", "make_experts"]

EXPERTS = 5


@dataclass(frozen=True)
class ExpertCase:
    """A block of `EXPERTS` experts.

    Attributes:
        activation: of each.
        format_name: of gate, up and down.
        sizes: hidden_size and neurons of an expert.
        num_used: experts of a token.
        rule: of the router.
        is_normalized: its weights.
        scale: factor of its weights.
        router_size: width of its input; 0 for hidden_size.
        is_gated: the experts have gates.
        is_down_transposed: neurons are rows of down.
        is_exact_sparse: skip what does not fire.
        has_bias: everywhere, the router included.
        is_single: a tensor per expert.
    """

    activation: Activation = Activation(ActivationKind.SILU)  # noqa: RUF009  it is frozen
    format_name: str = "f32"
    sizes: tuple[int, int] = (256, 512)
    num_used: int = 2
    rule: RouterRule = RouterRule.SOFTMAX
    is_normalized: bool = True
    scale: float = 1.0
    router_size: int = 0
    is_gated: bool = True
    is_down_transposed: bool = True
    is_exact_sparse: bool = False
    has_bias: bool = False
    is_single: bool = False


def make_experts(ops: WeightLoader[MatrixT, VectorT], case: ExpertCase) -> FFN[MatrixT, VectorT]:
    """A block as a backend prepares it."""
    hidden, neurons = case.sizes

    def linear(rows: int, columns: int, seed: int, bias_size: int) -> Linear[MatrixT, VectorT]:
        # Rows that a predictor or a gate may leave out.
        use = MatrixUse.NEURONS if case.is_exact_sparse else MatrixUse.DENSE
        merged = tensor(case.format_name, (EXPERTS, rows, columns), seed)
        pieces = _single(merged) if case.is_single else [merged]
        matrix = ops.expert_matrix(pieces, use)
        return Linear(matrix, _bias(ops, bias_size, seed + 1) if case.has_bias else None)

    down = (neurons, hidden) if case.is_down_transposed else (hidden, neurons)
    seen = case.router_size or hidden
    router = ops.matrix(tensor("f32", (EXPERTS, seen), 40), MatrixUse.DENSE)
    bias = ops.constant(numbers((EXPERTS,), 41)) if case.has_bias else None
    return ops.ffn_weights(
        FFN(
            gate=linear(neurons, hidden, 10, neurons) if case.is_gated else None,
            up=linear(neurons, hidden, 20, neurons),
            down=linear(*down, 30, hidden),
            activation=case.activation,
            is_down_transposed=case.is_down_transposed,
            is_exact_sparse=case.is_exact_sparse,
            router=Router(
                Linear(router, bias),
                EXPERTS,
                case.num_used,
                case.rule,
                case.is_normalized,
                scale=case.scale,
            ),
            native=None,
        )
    )


def _single(merged: Tensor) -> list[Tensor]:
    parts = np.split(merged.data, EXPERTS)
    return [
        replace(merged, name=f"part.{number}", shape=merged.shape[1:], data=part)
        for number, part in enumerate(parts)
    ]


def _bias(ops: WeightLoader[MatrixT, VectorT], size: int, seed: int) -> VectorT:
    values = numbers((EXPERTS, size), seed)
    return ops.expert_vector(replace(_VECTORS, shape=values.shape, data=values.view(np.uint8)))


_VECTORS = tensor("f32", (1, 1), 0)
