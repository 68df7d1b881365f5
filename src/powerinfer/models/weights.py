"""A model's weights, prepared for a backend: their classes, and how they are loaded.

Unknown tensors are ignored; those of predictors are kept.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from powerinfer.errors import GGUFError
from powerinfer.gguf import GGUFFile, Tensor
from powerinfer.models.architecture import Architecture, NormKind, QKNorm
from powerinfer.models.config import EMBEDDING, POSITION_EMBEDDING, QK_NORMS, ModelConfig
from powerinfer.models.predictor_tensors import MLPTensors, find_predictors
from powerinfer.models.tensor_finder import TensorFinder
from powerinfer.ops.protocol import FFN, HeadNorms, Linear, MatrixUse
from powerinfer.ops.some_backend import (
    Matrix,
    SomeFFN,
    SomeHeadNorms,
    SomeLinear,
    SomeOps,
    Vector,
)
from powerinfer.predictors import LayerPredictor
from powerinfer.quant import format_names, get_format

__all__ = ["LayerWeights", "ModelWeights", "Norm", "Progress", "load_weights"]

Progress = Callable[[int, int], None]
"""Called with (bytes prepared, bytes in all) after each tensor."""

# Matrices with rows shorter than this are multiplied in f32, if they are no larger than that.
# Products with quantized weights round activations to int8 in blocks of 32. Each result of a short
# row sums the errors of a few blocks, which nothing averages: in keys and values of the first layer
# they moved a perplexity by 0.8 %. So small a matrix costs no time.
_SHORT_ROW = 256
_MAX_SHORT_BYTES = 1 << 20

# They see the residual stream; the others see what a block computes.
_STREAM_NORMS = ("attn_norm", "attn_norm_2", "ffn_norm", "output_norm")


@dataclass(frozen=True, slots=True)
class Norm:
    """A normalisation.

    Attributes:
        kind: by root mean square, or to mean 0 and variance 1.
        weight: f32[hidden_size], or as wide as what it normalises.
        bias: as `weight`, or None.
        eps: added under the root.
    """

    kind: NormKind
    weight: Vector
    bias: Vector | None
    eps: float

    @property
    def num_vectors(self) -> int:
        """Vectors that it reads."""
        return 1 if self.bias is None else 2


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One transformer block.

    Attributes:
        norms: `attn_norm`, and `ffn_norm` or what else there is, see `Architecture.layer_norms`;
            `attn_q_norm` and `attn_k_norm` where they normalise whole projections.
        qkv: query, key and value projections, computed in one call.
        attn_output: [hidden_size, q_size].
        ffn_input_norm: the one whose result the FFN gets.
        ffn: the feed-forward block, prepared by the backend.
        predictor: what decides which of its neurons run, with what it looks at; None for none.
        head_norms: norms of the single heads of q and k; None for none.
    """

    norms: Mapping[str, Norm]
    qkv: tuple[SomeLinear, SomeLinear, SomeLinear]
    attn_output: SomeLinear
    ffn_input_norm: Norm
    ffn: SomeFFN
    predictor: LayerPredictor | None = None
    head_norms: SomeHeadNorms | None = None

    @property
    def attn_norm(self) -> Norm:
        """Norm of the attention, in most architectures."""
        return self.norms["attn_norm"]

    @property
    def attention_vectors(self) -> list[Vector]:
        """What the attention reads beside its matrices and `norms`."""
        return [] if self.head_norms is None else [self.head_norms.q, self.head_norms.k]

    @property
    def ffn_norm(self) -> Norm:
        """Norm of the FFN, in most architectures."""
        return self.norms["ffn_norm"]


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """All weights, prepared for one backend.

    Attributes:
        embedding: [vocab_size, hidden_size].
        output_norm: before the output head; None for a model without.
        output: [vocab_size, hidden_size]; the embedding's tensor where the file ties them.
        layers: blocks in order.
        rope_divisors: the tensor `rope_freqs.weight`, if any.
        mlp: the predictor matrices of each layer, from files that carry them; else empty.
        mlp_problem: what is wrong with those of the file, where they cannot be used; else None.
        position_embedding: [rows, hidden_size] of learned positions, or None.
    """

    embedding: Matrix
    output_norm: Norm | None
    output: SomeLinear
    layers: tuple[LayerWeights, ...]
    rope_divisors: Tensor | None = None
    mlp: tuple[MLPTensors, ...] = ()
    mlp_problem: str | None = None
    position_embedding: Matrix | None = None

    @property
    def has_predictors(self) -> bool:
        """The file carries predictors, be they usable or not."""
        return bool(self.mlp) or self.mlp_problem is not None


def load_weights(
    file: GGUFFile,
    ops: SomeOps,
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
    prepare = _Preparer(
        ops,
        config,
        architecture,
        progress=progress,
        total_bytes=sum(len(tensor.data) for tensor in file.tensors.values()),
    )
    mlp, mlp_problem = _predictors(file, config)
    return ModelWeights(
        embedding=prepare.matrix(outer[EMBEDDING], MatrixUse.EMBEDDING),
        output_norm=prepare.norms(outer, {"output_norm": architecture.norm}).get("output_norm"),
        output=prepare.linear(outer, "output"),
        layers=tuple(prepare.layer(tensors, is_exact_sparse=is_exact_sparse) for tensors in layers),
        rope_divisors=outer.get("rope_freqs.weight"),
        mlp=mlp,
        mlp_problem=mlp_problem,
        position_embedding=prepare.matrix(outer[POSITION_EMBEDDING], MatrixUse.EMBEDDING)
        if POSITION_EMBEDDING in outer
        else None,
    )


def _predictors(file: GGUFFile, config: ModelConfig) -> tuple[tuple[MLPTensors, ...], str | None]:
    """The file's predictors, or what is wrong with them: it matters only where they run."""
    try:
        return find_predictors(file, config), None
    except GGUFError as error:
        return (), str(error)


def _decoded_if_small(tensor: Tensor) -> Tensor:
    """The same weights, decoded to F32 where rows are short and the matrix is small."""
    is_short = len(tensor.shape) == 2 and tensor.shape[1] < _SHORT_ROW
    if not is_short or tensor.num_elements * np.float32().itemsize > _MAX_SHORT_BYTES:
        return tensor
    if tensor.format not in format_names() or get_format(tensor.format).block_size == 1:
        return tensor
    values = np.ascontiguousarray(tensor.decode(), "<f4")
    return replace(tensor, format="f32", data=values.view(np.uint8).reshape(-1))


class _Preparer:
    """Hands tensors to a backend and reports how far it got."""

    def __init__(
        self,
        ops: SomeOps,
        config: ModelConfig,
        architecture: Architecture,
        *,
        progress: Progress | None,
        total_bytes: int,
    ) -> None:
        self._ops = ops
        self._config = config
        self._architecture = architecture
        self._progress = progress
        self._total_bytes = total_bytes
        self._done_bytes = 0

    def matrix(self, tensor: Tensor, use: MatrixUse) -> Matrix:
        """Prepare a matrix."""
        prepared = self._ops.matrix(
            tensor if use is MatrixUse.EMBEDDING else _decoded_if_small(tensor), use
        )
        self._advance(tensor)
        return prepared

    def vector(self, tensor: Tensor) -> Vector:
        """Prepare a vector."""
        prepared = self._ops.vector(tensor)
        self._advance(tensor)
        return prepared

    def linear(
        self, tensors: dict[str, Tensor], name: str, use: MatrixUse = MatrixUse.DENSE
    ) -> SomeLinear:
        """Prepare `<name>.weight` and, where there is one, `<name>.bias`."""
        bias = tensors.get(f"{name}.bias")
        return Linear(
            self.matrix(tensors[f"{name}.weight"], use),
            None if bias is None else self.vector(bias),
        )

    def norms(self, tensors: dict[str, Tensor], kinds: Mapping[str, NormKind]) -> dict[str, Norm]:
        """Prepare the norms that the file has, by name."""
        config, found = self._config, {}
        stream_eps = config.scales.stream_epsilon(config.norm_eps)
        for name, kind in kinds.items():
            weight, bias = tensors.get(f"{name}.weight"), tensors.get(f"{name}.bias")
            if weight is not None:
                found[name] = Norm(
                    kind,
                    self.vector(weight),
                    None if bias is None else self.vector(bias),
                    stream_eps if name in _STREAM_NORMS else config.norm_eps,
                )
        return found

    def layer(self, tensors: dict[str, Tensor], *, is_exact_sparse: bool) -> LayerWeights:
        """Prepare one block."""
        architecture = self._architecture
        kinds = dict.fromkeys(architecture.layer_norms, architecture.norm)
        kinds |= dict.fromkeys(architecture.optional_layer_norms, architecture.norm)
        if architecture.qk_norm is QKNorm.PROJECTION:
            kinds |= dict.fromkeys(QK_NORMS, NormKind.RMS)
        norms = self.norms(tensors, kinds)
        # With post-norm the FFN gets what the attention's norm made.
        has_own_norm = "ffn_norm" in norms and not self._config.is_post_norm
        q, k, v = (self.linear(tensors, name) for name in ("attn_q", "attn_k", "attn_v"))
        return LayerWeights(
            norms=norms,
            qkv=(q, k, v),
            attn_output=self.linear(tensors, "attn_output"),
            ffn_input_norm=norms["ffn_norm" if has_own_norm else "attn_norm"],
            ffn=self._ffn(tensors, is_exact_sparse=is_exact_sparse),
            head_norms=self._head_norms(tensors),
        )

    def _head_norms(self, tensors: dict[str, Tensor]) -> SomeHeadNorms | None:
        if self._architecture.qk_norm is not QKNorm.HEAD:
            return None
        q, k = (self.vector(tensors[f"{name}.weight"]) for name in QK_NORMS)
        return HeadNorms(q, k, self._config.norm_eps)

    def _ffn(self, tensors: dict[str, Tensor], *, is_exact_sparse: bool) -> SomeFFN:
        is_down_transposed = "ffn_down_t.weight" in tensors
        is_gated = self._architecture.is_gated
        # Of the gate too, although `exact` reads it whole: a predictor attached later skips its
        # rows. Neurons that are columns of down cannot be skipped there.
        use = MatrixUse.NEURONS if is_exact_sparse else MatrixUse.DENSE
        down_use = use if is_down_transposed else MatrixUse.DENSE
        return self._ops.ffn_weights(
            FFN(
                gate=self.linear(tensors, "ffn_gate", use) if is_gated else None,
                up=self.linear(tensors, "ffn_up", use),
                down=self.linear(
                    tensors, "ffn_down_t" if is_down_transposed else "ffn_down", down_use
                ),
                activation=self._config.activation,
                is_down_transposed=is_down_transposed,
                is_exact_sparse=is_exact_sparse,
                native=None,
            )
        )

    def _advance(self, tensor: Tensor) -> None:
        self._done_bytes += len(tensor.data)
        if self._progress is not None:
            self._progress(min(self._done_bytes, self._total_bytes), self._total_bytes)
