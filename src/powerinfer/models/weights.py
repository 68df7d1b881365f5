"""A model's weights, prepared for a backend: what holds them and how they are loaded.

Tensors nobody asked for are tolerated; a predictor's are remembered.
"""

from collections.abc import Callable
from dataclasses import dataclass

from powerinfer.gguf import GGUFFile, Tensor
from powerinfer.models.architecture import Architecture
from powerinfer.models.config import EMBEDDING, ModelConfig
from powerinfer.models.predictor_tensors import MLPTensors, find_predictors
from powerinfer.models.tensor_finder import TensorFinder
from powerinfer.ops.protocol import FFN, Linear, Matrix, MatrixUse, Ops, Vector
from powerinfer.predictors import LayerPredictor

__all__ = ["LayerWeights", "ModelWeights", "Progress", "load_weights"]

Progress = Callable[[int, int], None]
"""Called with (bytes prepared, bytes in all) after each tensor."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One transformer block.

    Attributes:
        attn_norm: f32[hidden_size].
        qkv: query, key and value projections, computed in one call.
        attn_output: [hidden_size, q_size].
        ffn_norm: f32[hidden_size].
        ffn: the feed-forward block, prepared by the backend.
        predictor: what decides which of its neurons run, with what it looks at; None for none.
    """

    attn_norm: Vector
    qkv: tuple[Linear, Linear, Linear]
    attn_output: Linear
    ffn_norm: Vector
    ffn: FFN
    predictor: LayerPredictor | None = None

    @property
    def ffn_input_norm(self) -> Vector:
        """Weight of the norm whose result the FFN gets: f32[hidden_size]."""
        return self.ffn_norm


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """All weights, prepared for one backend.

    Attributes:
        embedding: [vocab_size, hidden_size].
        output_norm: f32[hidden_size].
        output: [vocab_size, hidden_size]; the embedding's tensor where the file ties them.
        layers: blocks in order.
        rope_divisors: the tensor `rope_freqs.weight`, if any.
        mlp: the predictor matrices of each layer, from files that carry them; else empty.
    """

    embedding: Matrix
    output_norm: Vector
    output: Linear
    layers: tuple[LayerWeights, ...]
    rope_divisors: Tensor | None = None
    mlp: tuple[MLPTensors, ...] = ()


def load_weights(
    file: GGUFFile,
    ops: Ops,
    config: ModelConfig,
    architecture: Architecture,
    *,
    is_exact_sparse: bool,
    progress: Progress | None = None,
) -> ModelWeights:
    """Find, check and prepare every tensor of a model.

    Raises:
        GGUFError: tensors are missing or have wrong shapes; names them.
        UnsupportedError: a tensor's format has no kernel in `ops`.
    """
    found = TensorFinder(file, config, architecture)
    outer, layers = (
        found.outer(),
        [found.layer(number) for number in range(config.num_layers)],
    )
    found.raise_problems()
    prepare = _Preparer(ops, progress, sum(len(tensor.data) for tensor in file.tensors.values()))
    return ModelWeights(
        embedding=prepare.matrix(outer[EMBEDDING], MatrixUse.EMBEDDING),
        output_norm=prepare.vector(outer["output_norm.weight"]),
        output=prepare.linear(outer, "output"),
        layers=tuple(
            prepare.layer(tensors, config, is_exact_sparse=is_exact_sparse) for tensors in layers
        ),
        rope_divisors=outer.get("rope_freqs.weight"),
        mlp=find_predictors(file, config),
    )


class _Preparer:
    """Hands tensors to a backend and reports how far it got."""

    def __init__(self, ops: Ops, progress: Progress | None, total_bytes: int) -> None:
        self._ops = ops
        self._progress = progress
        self._total_bytes = total_bytes
        self._done_bytes = 0

    def matrix(self, tensor: Tensor, use: MatrixUse) -> Matrix:
        """Prepare a matrix."""
        prepared = self._ops.matrix(tensor, use)
        self._advance(tensor)
        return prepared

    def vector(self, tensor: Tensor) -> Vector:
        """Prepare a vector."""
        prepared = self._ops.vector(tensor)
        self._advance(tensor)
        return prepared

    def linear(
        self, tensors: dict[str, Tensor], name: str, use: MatrixUse = MatrixUse.DENSE
    ) -> Linear:
        """Prepare `<name>.weight` and, where there is one, `<name>.bias`."""
        bias = tensors.get(f"{name}.bias")
        return Linear(
            self.matrix(tensors[f"{name}.weight"], use),
            None if bias is None else self.vector(bias),
        )

    def layer(
        self, tensors: dict[str, Tensor], config: ModelConfig, *, is_exact_sparse: bool
    ) -> LayerWeights:
        """Prepare one block."""
        q, k, v = (self.linear(tensors, name) for name in ("attn_q", "attn_k", "attn_v"))
        return LayerWeights(
            attn_norm=self.vector(tensors["attn_norm.weight"]),
            qkv=(q, k, v),
            attn_output=self.linear(tensors, "attn_output"),
            ffn_norm=self.vector(tensors["ffn_norm.weight"]),
            ffn=self._ffn(tensors, config, is_exact_sparse=is_exact_sparse),
        )

    def _ffn(
        self, tensors: dict[str, Tensor], config: ModelConfig, *, is_exact_sparse: bool
    ) -> FFN:
        is_down_transposed = "ffn_down_t.weight" in tensors
        # What is read whole for every token may be repacked; without a predictor the gate is.
        up_use = MatrixUse.NEURONS if is_exact_sparse else MatrixUse.DENSE
        down_use = MatrixUse.NEURONS if is_down_transposed else MatrixUse.DENSE
        ffn = FFN(
            gate=self.linear(tensors, "ffn_gate"),
            up=self.linear(tensors, "ffn_up", up_use),
            down=self.linear(tensors, "ffn_down_t" if is_down_transposed else "ffn_down", down_use),
            activation=config.activation,
            is_down_transposed=is_down_transposed,
            is_exact_sparse=is_exact_sparse,
        )
        return self._ops.ffn_weights(ffn)

    def _advance(self, tensor: Tensor) -> None:
        self._done_bytes += len(tensor.data)
        if self._progress is not None:
            self._progress(min(self._done_bytes, self._total_bytes), self._total_bytes)
