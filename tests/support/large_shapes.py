"""Models of real sizes without weights: enough for sizes and for counting what placing takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from powerinfer.models import Model, ModelConfig
from powerinfer.models.architectures import llama
from powerinfer.models.attention import AttentionOptions, LayerAttention
from powerinfer.models.experts import ExpertsConfig
from powerinfer.models.mixers import AttentionWeights
from powerinfer.models.scales import Scales
from powerinfer.models.weights import LayerWeights, ModelWeights, Norm
from powerinfer.ops.backend import as_backend
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.gpu.ops import TorchGPU
from powerinfer.ops.hybrid.migration import OnlineMode, OnlineSettings
from powerinfer.ops.hybrid.ops import HybridOps, HybridSettings
from powerinfer.ops.operands import (
    FFN,
    FFNCounters,
    Linear,
    NeuronPredictor,
    RopeTable,
    Router,
    RouterRule,
    ScoreStage,
)
from powerinfer.placement.plan import PlacementPlan
from powerinfer.quant import get_format
from powerinfer.values import Activation, ActivationKind, FloatArray

__all__ = ["LARGE_MODELS", "LargeModel", "hybrid", "shaped_model"]


@dataclass(frozen=True, slots=True)
class LargeModel:
    """Sizes of a gated model."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    formats: Sequence[str]
    """Of matrices, by turns."""
    vocab_size: int = 32000
    context_length: int = 4000
    is_down_transposed: bool = True
    rank: int = 0
    """Of predictors; 0 for none."""
    num_experts: int = 0
    """With biases, `intermediate_size` neurons each; 0 for a dense model."""
    shared_size: int = 0
    """Neurons of a shared expert; 0 for none."""


LARGE_MODELS = {
    "7B F16": LargeModel(32, 4096, 11008, 32, 32, ["f16"], rank=1024),
    "7B Q4_0": LargeModel(32, 4096, 11008, 32, 32, ["q4_0"], is_down_transposed=False),
    "7B Q4_K": LargeModel(32, 4096, 11008, 32, 32, ["q4_k", "q4_k", "q6_k"]),
    "70B Q4_0": LargeModel(80, 8192, 28672, 64, 8, ["q4_0"], rank=1024),
    "experts F16": LargeModel(
        4, 2048, 768, 32, 4, ["f16"], is_down_transposed=False, num_experts=128
    ),
    "experts Q4_0": LargeModel(4, 2560, 768, 28, 4, ["q4_0"], num_experts=64, shared_size=1024),
}


class _Shapes:
    """Stands in for `NativeOps`: matrices are (format, rows, columns), vectors their lengths."""

    name = "cpu"

    def __init__(self) -> None:
        self.counters = FFNCounters()

    def matrix_shape(self, matrix: tuple[str, int, int]) -> tuple[int, int]:
        return matrix[1:]

    def matrix_format(self, matrix: tuple[str, int, int]) -> str:
        return matrix[0]

    def matrix_bytes(self, matrix: tuple[str, int, int]) -> int:
        return matrix[1] * get_format(matrix[0]).num_bytes(matrix[2])

    def vector_values(self, vector: int) -> FloatArray:
        return np.zeros(vector, np.float32)


def shaped_model(large: LargeModel) -> Model:
    """A model that can be counted, not run."""
    hidden, head_dim = large.hidden_size, 128
    num_experts = max(1, large.num_experts)
    neurons = num_experts * large.intermediate_size
    activation = Activation(ActivationKind.RELU)
    config = ModelConfig(
        architecture="llama",
        hidden_size=hidden,
        intermediate_size=large.intermediate_size,
        num_layers=large.num_layers,
        num_heads=large.num_heads,
        num_kv_heads=large.num_kv_heads,
        head_dim=head_dim,
        vocab_size=large.vocab_size,
        context_length=large.context_length,
        norm_eps=1e-5,
        activation=activation,
        attention=(LayerAttention(None, None, large.num_kv_heads, head_dim),) * large.num_layers,
        scales=Scales(head_dim**-0.5),
        experts=None
        if not large.num_experts
        else ExpertsConfig(num_experts, 8, RouterRule.SOFTMAX, True, large.shared_size),
    )
    made = 0

    def linear(rows: int, columns: int, bias: Any = None) -> Any:
        nonlocal made
        made += 1
        return Linear((large.formats[made % len(large.formats)], rows, columns), bias)

    def norm() -> Any:
        return Norm(llama.ARCHITECTURE.norm, cast("Any", hidden), None, 1e-5)

    def block(size: int, count: int, predictor: Any) -> Any:
        neurons, outputs = count * size, count * hidden
        router: Any = None
        if count > 1:
            logits: Any = Linear(("f32", count, hidden), count)
            router = Router(logits, count, 8, RouterRule.SOFTMAX, True)
        biases = (neurons, outputs) if count > 1 else (None, None)
        down = (neurons, hidden) if large.is_down_transposed else (outputs, size)
        return FFN(
            gate=linear(neurons, hidden, biases[0]),
            up=linear(neurons, hidden, biases[0]),
            down=linear(*down, biases[1]),
            activation=activation,
            is_down_transposed=large.is_down_transposed,
            is_exact_sparse=True,
            predictor=predictor,
            router=router,
            native=None,
        )

    def layer() -> LayerWeights:
        predictor: Any = None
        if large.rank:
            stage: Any = ScoreStage(linear(neurons, large.rank).matrix, None, 0.0)
            fc1 = linear(large.rank, hidden).matrix
            predictor = NeuronPredictor(fc1, None, (stage,), native=None)
        ffn = block(large.intermediate_size, num_experts, predictor)
        shared = block(large.shared_size, 1, None) if large.shared_size else None
        norms = {"attn_norm": norm(), "ffn_norm": norm()}
        return LayerWeights(
            own_mixer=AttentionWeights(
                qkv=(
                    linear(config.q_size, hidden),
                    linear(config.kv_size, hidden),
                    linear(config.kv_size, hidden),
                ),
                attn_output=linear(hidden, config.q_size),
            ),
            norms=norms,
            ffn_input_norm=norms["ffn_norm"],
            own_ffn=ffn,
            shared_ffn=shared,
        )

    angles = np.zeros((large.context_length, head_dim // 2), np.float32)
    options = AttentionOptions(
        RopeTable(angles, angles, False), head_dim**-0.5, None, None, head_dim
    )
    weights = ModelWeights(
        embedding=linear(large.vocab_size, hidden).matrix,
        output_norm=norm(),
        output=linear(large.vocab_size, hidden),
        layers=tuple(layer() for _ in range(large.num_layers)),
        rope_divisors=None,
        mlp={},
    )
    return Model(
        config=config,
        architecture=llama.ARCHITECTURE,
        weights=weights,
        ops=as_backend(cast("NativeOps", _Shapes())),
        attention=(options,) * large.num_layers,
        context_length=large.context_length,
        sparsity="exact",
    )


def hybrid(
    model: Model, plan: PlacementPlan, *, neurons_move: bool, chunk_bytes: int, max_moves: int
) -> HybridOps:
    """The backend that would place the model by a plan."""
    mode = OnlineMode.ON if neurons_move else OnlineMode.OFF
    settings = HybridSettings(
        chunk_bytes=chunk_bytes, online=OnlineSettings(mode=mode, max_moves=max_moves)
    )
    return HybridOps(cast("NativeOps", model.ops), TorchGPU("cpu"), plan, settings)
