"""Finding a model's tensors by name, checking their shapes and preparing them for a backend.

Everything missing is listed at once, and every shape is compared before a byte is prepared.
Tensors nobody asked for are tolerated; a predictor's are remembered.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from powerinfer.errors import GGUFError
from powerinfer.gguf import GGUFFile, Tensor
from powerinfer.models.architecture import Architecture
from powerinfer.models.config import EMBEDDING, ModelConfig
from powerinfer.ops.protocol import FFN, Linear, Matrix, MatrixUse, Ops, Vector

__all__ = ["LayerWeights", "ModelWeights", "Predictor", "Progress", "load_weights"]

Progress = Callable[[int, int], None]
"""Called with (bytes prepared, bytes in all) after each tensor."""

_MAX_LISTED = 8


@dataclass(frozen=True, slots=True)
class Predictor:
    """The two matrices of a PowerInfer `mlp` predictor: scores = fc2 @ relu(fc1 @ x)."""

    fc1: Tensor
    fc2: Tensor


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One transformer block.

    Attributes:
        attn_norm: f32[hidden_size].
        qkv: query, key and value projections, computed in one call.
        attn_output: [hidden_size, q_size].
        ffn_norm: f32[hidden_size].
        ffn: the feed-forward block, prepared by the backend.
    """

    attn_norm: Vector
    qkv: tuple[Linear, Linear, Linear]
    attn_output: Linear
    ffn_norm: Vector
    ffn: FFN


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """All weights, prepared for one backend.

    Attributes:
        embedding: [vocab_size, hidden_size].
        output_norm: f32[hidden_size].
        output: [vocab_size, hidden_size]; the embedding's tensor where the file ties them.
        layers: blocks in order.
        rope_divisors: the tensor `rope_freqs.weight`, if any.
        predictors: by layer, from files that carry them.
    """

    embedding: Matrix
    output_norm: Vector
    output: Linear
    layers: tuple[LayerWeights, ...]
    rope_divisors: Tensor | None = None
    predictors: dict[int, Predictor] = field(default_factory=dict)


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
        GGUFError: tensors are missing or have wrong shapes; names all of them.
        UnsupportedError: a tensor's format has no kernel in `ops`.
    """
    found = _TensorFinder(file, config, architecture)
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
        predictors=_find_predictors(file, config),
    )


def _find_predictors(file: GGUFFile, config: ModelConfig) -> dict[int, Predictor]:
    predictors = {}
    for layer in range(config.num_layers):
        fc1 = file.tensors.get(f"blk.{layer}.fc1.weight")
        fc2 = file.tensors.get(f"blk.{layer}.fc2.weight")
        if fc1 is not None and fc2 is not None:
            predictors[layer] = Predictor(fc1, fc2)
    return predictors


class _TensorFinder:
    """Looks tensors up and collects what is wrong instead of stopping at the first."""

    def __init__(self, file: GGUFFile, config: ModelConfig, architecture: Architecture) -> None:
        self._file = file
        self._config = config
        self._required_biases = architecture.required_biases
        self._missing: list[str] = []
        self._misshapen: list[str] = []

    def raise_problems(self) -> None:
        """Raise one error for everything that was missing or misshapen, if anything was."""
        path = self._file.paths[0]
        if self._missing:
            raise GGUFError(f"{path}: missing tensors: {_listed(self._missing)}")
        if self._misshapen:
            raise GGUFError(f"{path}: tensors of the wrong shape: {_listed(self._misshapen)}")

    def outer(self) -> dict[str, Tensor]:
        """Tensors outside the blocks, by full name."""
        config = self._config
        vocab_shape = (config.vocab_size, config.hidden_size)
        tensors: dict[str, Tensor] = {}
        self._need(tensors, EMBEDDING, vocab_shape)
        self._need(tensors, "output_norm.weight", (config.hidden_size,))
        # A file that ties the output head to the embedding leaves it out.
        self._take(tensors, "output.weight", vocab_shape)
        if EMBEDDING in tensors:
            tensors.setdefault("output.weight", tensors[EMBEDDING])
        self._take(tensors, "output.bias", (config.vocab_size,))
        if config.rope is not None:
            self._take(tensors, "rope_freqs.weight", (config.rope.rotary_dim // 2,))
        return tensors

    def layer(self, number: int) -> dict[str, Tensor]:
        """Tensors of one block, by name without the `blk.<number>.` prefix."""
        config, prefix = self._config, f"blk.{number}."
        tensors: dict[str, Tensor] = {}
        hidden, neurons = config.hidden_size, config.intermediate_size
        for norm in ("attn_norm", "ffn_norm"):
            self._need(tensors, f"{norm}.weight", (hidden,), prefix)
        self._attention_inputs(tensors, prefix)
        self._linear(tensors, "attn_output", (hidden, config.q_size), prefix)
        for name in ("ffn_gate", "ffn_up"):
            self._linear(tensors, name, (neurons, hidden), prefix)
        if f"{prefix}ffn_down_t.weight" in self._file.tensors:
            self._need(tensors, "ffn_down_t.weight", (neurons, hidden), prefix)
            self._take(tensors, "ffn_down_t.bias", (hidden,), prefix)
        else:
            self._linear(tensors, "ffn_down", (hidden, neurons), prefix)
        return tensors

    def _attention_inputs(self, tensors: dict[str, Tensor], prefix: str) -> None:
        """attn_q, attn_k, attn_v, or their rows stacked in that order as attn_qkv."""
        config = self._config
        sizes = {
            "attn_q": config.q_size,
            "attn_k": config.kv_size,
            "attn_v": config.kv_size,
        }
        if f"{prefix}attn_qkv.weight" not in self._file.tensors:
            for name, size in sizes.items():
                self._linear(tensors, name, (size, config.hidden_size), prefix)
            return
        fused: dict[str, Tensor] = {}
        self._linear(fused, "attn_qkv", (sum(sizes.values()), config.hidden_size), prefix)
        start = 0
        for name, size in sizes.items():
            for part in ("weight", "bias"):
                whole = fused.get(f"attn_qkv.{part}")
                if whole is not None:
                    tensors[f"{name}.{part}"] = _rows_of(whole, start, size, f"{prefix}{name}")
            start += size

    def _linear(
        self, tensors: dict[str, Tensor], name: str, shape: tuple[int, int], prefix: str
    ) -> None:
        """A weight, and its bias where the file has or must have one."""
        self._need(tensors, f"{name}.weight", shape, prefix)
        look_up = self._need if name in self._required_biases else self._take
        look_up(tensors, f"{name}.bias", shape[:1], prefix)

    def _need(
        self,
        tensors: dict[str, Tensor],
        name: str,
        shape: tuple[int, ...],
        prefix: str = "",
    ) -> None:
        if prefix + name not in self._file.tensors:
            self._missing.append(prefix + name)
        self._take(tensors, name, shape, prefix)

    def _take(
        self,
        tensors: dict[str, Tensor],
        name: str,
        shape: tuple[int, ...],
        prefix: str = "",
    ) -> None:
        tensor = self._file.tensors.get(prefix + name)
        if tensor is None:
            return
        if tuple(tensor.shape) != shape:
            self._misshapen.append(f"{prefix}{name} {list(tensor.shape)}, not {list(shape)}")
            return
        tensors[name] = tensor


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


def _rows_of(tensor: Tensor, start: int, count: int, name: str) -> Tensor:
    """Rows [start, start + count) of a tensor: rows are contiguous in every format."""
    row_bytes = len(tensor.data) // tensor.shape[0]
    return replace(
        tensor,
        name=name,
        shape=(count, *tensor.shape[1:]),
        data=tensor.data[start * row_bytes : (start + count) * row_bytes],
    )


def _listed(names: list[str]) -> str:
    more = len(names) - _MAX_LISTED
    return ", ".join(names[:_MAX_LISTED]) + (f" and {more} more" if more > 0 else "")
