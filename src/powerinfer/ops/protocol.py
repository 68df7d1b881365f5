"""Protocols of backends: the operations that layers call, with their shapes and errors.

`models/architectures/*` call these and nothing else, so one model file runs on the numpy
reference (the oracle), the native CPU backend and the hybrid of CPU and GPU.

A backend loads weights (`WeightLoader`), runs whole steps (`StepRunner`) and computes (`Ops`, which
includes the other two, from `ops/mixer_ops.py` mixers with state, and from `ops/head_ops.py` the
head that computes few logits). The protocols are generic over the backend's types: its arrays of
activations, its matrices and vectors, its KV cache of a layer and its states of one. Models know
none of these types; see `powerinfer.ops.backend`.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from powerinfer.gguf import Tensor
from powerinfer.ops.head_ops import HeadCopy, HeadOps, WantedLogits
from powerinfer.ops.mixer_ops import ArrayT, MixerOps, StateLayerT
from powerinfer.ops.operands import (
    FFN,
    ActiveIds,
    DeltaRule,
    FFNCounters,
    HeadNorms,
    KVType,
    Linear,
    MatrixT,
    MatrixUse,
    NeuronPredictor,
    NeuronShares,
    RopeTable,
    Router,
    RouterRule,
    ScoreStage,
    SelectiveScan,
    ShortConv,
    VectorT,
)
from powerinfer.values import Batch, BoolArray, ByteArray, FloatArray, IntArray

# The operands belong to the protocol: who implements or calls it takes them from here.
__all__ = [
    "FFN",
    "ActiveIds",
    "ArrayT",
    "DeltaRule",
    "FFNCounters",
    "HeadCopy",
    "HeadNorms",
    "HeadOps",
    "KVLayerT",
    "KVType",
    "LayerProgram",
    "Linear",
    "MatrixT",
    "MatrixUse",
    "MixerOps",
    "NeuronPredictor",
    "NeuronShares",
    "Ops",
    "RopeTable",
    "Router",
    "RouterRule",
    "ScoreStage",
    "SelectiveScan",
    "ShortConv",
    "StateLayerT",
    "StepRunner",
    "VectorT",
    "WantedLogits",
    "WeightLoader",
]

# A backend's KV cache of one layer.
KVLayerT = TypeVar("KVLayerT")


class WeightLoader(Protocol[MatrixT, VectorT]):
    """Creates and describes handles of weights, before anything is computed."""

    def matrix(self, tensor: Tensor, use: MatrixUse) -> MatrixT:
        """Prepare a weight matrix [rows, columns]; may keep a view of `tensor.data`.

        Raises:
            UnsupportedError: the tensor's format has no kernel here.
            ShapeError: the tensor is not two-dimensional.
        """

    def vector(self, tensor: Tensor) -> VectorT:
        """Prepare a norm weight or bias as f32[n]."""

    def expert_matrix(self, tensors: Sequence[Tensor], use: MatrixUse) -> MatrixT:
        """Prepare the matrices of all experts as one: [num_experts * rows, columns].

        Args:
            tensors: one [num_experts, rows, columns], or one [rows, columns] per expert.
            use: access pattern, for the choice of a layout.

        Raises:
            UnsupportedError: a tensor's format has no kernel here.
            ShapeError: a tensor has other dimensions, or they differ in shape or format.
        """

    def expert_vector(self, tensor: Tensor) -> VectorT:
        """Prepare the biases of all experts, [num_experts, n], as f32[num_experts * n]."""

    def constant(self, values: FloatArray) -> VectorT:
        """Prepare f32[n] that comes from no file."""

    def vector_values(self, vector: VectorT) -> FloatArray:
        """Return the f32[n] of a vector."""

    def matrix_bytes(self, matrix: MatrixT) -> int:
        """Return the bytes read when every row of `matrix` is used once."""

    def matrix_shape(self, matrix: MatrixT) -> tuple[int, int]:
        """Return rows and columns, including the padding of a copy made by `recode`."""

    def matrix_format(self, matrix: MatrixT) -> str:
        """Return the name of the weight format, whatever layout the backend gave the matrix."""

    def recode(self, matrix: MatrixT, format_name: str) -> MatrixT:
        """Copy a matrix into another weight format, for predictors.

        Columns are padded with zeros to whole blocks of the format. The backend owns the memory of
        the copy until the handle is dropped.

        Raises:
            UnsupportedError: there is no encoder for the format.
            NumericsError: a row holds NaN, infinity or numbers beyond the format's scale.
        """

    def copy_statistics(
        self, matrix: MatrixT, copy: MatrixT, mean: FloatArray, variance: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Compute the error of a copy made by `recode` on inputs with these statistics.

        Args:
            matrix: [rows, columns], the original.
            copy: [rows, columns or more].
            mean: f32[columns], mean of the input.
            variance: f32[columns], variance of the input.

        Returns:
            offset f32[rows] = matrix @ mean, and noise f32[rows], the standard deviation of
            (matrix - copy) @ (input - mean) with independent inputs; never 0. For `sign` copies
            the noise includes that of the binarised input.

        Raises:
            ShapeError: the sizes do not fit each other.
        """

    def ffn_weights(self, ffn: FFN[MatrixT, VectorT]) -> FFN[MatrixT, VectorT]:
        """Return `ffn` with `native` filled in; called once per layer at load.

        Raises:
            ShapeError: router and matrices do not fit each other.
            UnsupportedError: the backend cannot run it as asked.
        """

    def neuron_predictor(
        self, predictor: NeuronPredictor[MatrixT, VectorT]
    ) -> NeuronPredictor[MatrixT, VectorT]:
        """Return `predictor` with `native` filled in.

        Raises:
            ShapeError: its matrices do not fit each other.
        """


@dataclass(frozen=True, slots=True)
class LayerProgram(Generic[ArrayT]):
    """The parts of a step, so that a backend may choose where and how each of them runs.

    Attributes:
        layers: ``layers(x, batch, first, last)`` runs layers [first, last) on
            x f32[num_tokens, hidden_size], which they may modify, and returns their output. If it
            has no rows, later layers may be skipped.
        end: ``end(x)`` returns the result of the step: f32[num_selected, vocab_size], or
            f32[num_selected, hidden_size] if states are wanted.
        key: what the calls depend on besides x, the inputs, the numbers in the batch and the
            weights. A backend may record them under this key and the sizes in the batch, and replay
            the record. None: they must be made in every step.
        inputs: further arrays that the layers read, made anew from the tokens of every step.
    """

    num_layers: int
    layers: Callable[[ArrayT, Batch, int, int], ArrayT]
    end: Callable[[ArrayT], ArrayT]
    key: Hashable | None = None
    inputs: tuple[FloatArray, ...] = ()


class StepRunner(Protocol[ArrayT]):
    """Runs whole steps."""

    @property
    def native_s(self) -> float | None:
        """Seconds spent in native code so far; None if the backend does not count them."""

    @property
    def handoff_name(self) -> str | None:
        """Name of the hand-off between the devices; None if there is only one device."""

    @property
    def runs_layers_apart(self) -> bool:
        """True if the layers of a step may run one by one, with other steps between them."""

    def step(self, x: FloatArray, batch: Batch, program: LayerProgram[ArrayT]) -> FloatArray:
        """Run a program on rows from `embed` and return its result on the host."""


class Ops(
    WeightLoader[MatrixT, VectorT],
    StepRunner[ArrayT],
    MixerOps[ArrayT, VectorT, StateLayerT],
    HeadOps[MatrixT, VectorT],
    Protocol[ArrayT, MatrixT, VectorT, KVLayerT, StateLayerT],
):
    """A backend: one device, or several that work together.

    Activations, such as `x`, are C-contiguous arrays of the device; f32[num_tokens, hidden_size]
    unless another shape is given. Ids are i32. An FFN has been prepared by `ffn_weights`, a
    predictor by `neuron_predictor`. `predictor_input` and `router_input` are the input of the FFN's
    predictor and router; None for `x`.

    `is_prompt`, bool[num_tokens], marks the rows that are prompt; None: all are decode rows
    (`Batch.is_prompt`). A CPU chooses its arithmetic by it, so that the bits of a row do not depend
    on the other rows; other devices may ignore it.
    """

    name: str
    counters: FFNCounters

    def predict(
        self,
        x: FloatArray,
        predictor: NeuronPredictor[MatrixT, VectorT],
        is_prompt: BoolArray | None = None,
    ) -> ActiveIds:
        """List the neurons that pass, by the predictor's input `x` in host memory."""

    def route(
        self, x: FloatArray, ffn: FFN[MatrixT, VectorT], is_prompt: BoolArray | None = None
    ) -> tuple[IntArray, FloatArray]:
        """Choose the experts of each token, by the router's input `x` in host memory.

        Returns:
            Ids i32[num_tokens, num_used], ascending, and their weights f32[num_tokens, num_used].

        Raises:
            UnsupportedError: the block has no router.
        """

    def embed(self, table: MatrixT, token_ids: IntArray) -> FloatArray:
        """Look up rows of `table`, in host memory."""

    def rms_norm(self, x: ArrayT, weight: VectorT, eps: float) -> ArrayT:
        """Compute x / sqrt(mean(x^2) + eps) * weight per row."""

    def layer_norm(self, x: ArrayT, weight: VectorT, bias: VectorT | None, eps: float) -> ArrayT:
        """Compute (x - mean) / sqrt(var + eps) * weight + bias per row; population variance."""

    def linear(
        self,
        x: ArrayT,
        layers: Sequence[Linear[MatrixT, VectorT]],
        is_prompt: BoolArray | None = None,
    ) -> Sequence[ArrayT]:
        """Multiply one input with several matrices: f32[num_tokens, out_features] each.

        A matrix of format `sign` multiplies the signs of x, times the mean magnitude of its row.
        One call for all, so that x is quantized once and threads are woken once.
        """

    def rope_and_store(
        self,
        q: ArrayT,
        k: ArrayT,
        v: ArrayT,
        cache: KVLayerT,
        batch: Batch,
        rope: RopeTable | None,
        head_norms: HeadNorms[VectorT] | None = None,
    ) -> None:
        """Normalise and rotate q and k in place, then write k and v into the cache.

        Args:
            q: f32[num_tokens, num_heads * head_dim].
            k: f32[num_tokens, num_kv_heads * head_dim].
            v: f32[num_tokens, num_kv_heads * head_dim]; may be `k`, as it was before the call.
            cache: keys and values of this layer.
            batch: positions and blocks of the tokens.
            rope: angles by position; None for no rotation.
            head_norms: RMS norms of each head, applied before the rotation; None for none.
        """

    def new_kv_layers(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        kv_type: KVType,
    ) -> list[KVLayerT]:
        """Allocate the uninitialised cache of all layers, each of `num_blocks` blocks of positions.

        Each lies on the device that runs the attention of its layer.
        """

    def copy_kv_blocks(self, layers: Sequence[KVLayerT], pairs: Sequence[tuple[int, int]]) -> None:
        """Copy keys and values of blocks, (source, target) in this order, before any later step.

        Raises:
            IndexError: there is no such block.
        """

    def attention(
        self,
        q: ArrayT,
        cache: KVLayerT,
        batch: Batch,
        scale: float,
        window: int | None = None,
        *,
        sinks: VectorT | None = None,
        soft_cap: float | None = None,
    ) -> ArrayT:
        """Compute causal grouped-query attention over the cache, after `rope_and_store`.

        A token at position p sees positions max(0, p - window + 1) .. p of its own sequence; query
        head h uses KV head h // (num_heads / num_kv_heads).

        Args:
            q: f32[num_tokens, num_heads * head_dim].
            cache: keys and values of this layer.
            batch: positions and blocks of the tokens.
            scale: factor of the scores, the products of queries and keys.
            window: positions that a token sees, itself included; None for all.
            sinks: f32[num_heads], an additional score of each head in the softmax, without a value:
                weights add up to less than one. None for none.
            soft_cap: above 0; scaled scores become soft_cap * tanh(score / soft_cap) before the
                softmax. None leaves them unchanged.

        Returns:
            f32[num_tokens, num_heads * head_dim].
        """

    def ffn(
        self,
        x: ArrayT,
        ffn: FFN[MatrixT, VectorT],
        predictor_input: ArrayT | None = None,
        is_prompt: BoolArray | None = None,
        router_input: ArrayT | None = None,
    ) -> ArrayT:
        """Compute down(activation(gate x, up x)) in one call; adds to `counters`.

        Neurons that `ffn.predictor` does not let pass count as zero. Paper: "Neuron-aware
        Operator". With `ffn.router`, the sum over the token's experts, in the order of their ids,
        of weight times result; a neuron runs if its expert is chosen and the predictor lets it
        pass.
        """

    def start_ffn(
        self,
        x: ArrayT,
        ffn: FFN[MatrixT, VectorT],
        predictor_input: ArrayT | None = None,
        is_prompt: BoolArray | None = None,
        router_input: ArrayT | None = None,
    ) -> Callable[[], ArrayT]:
        """Start `ffn`; calling the result finishes it and returns the output of `ffn`.

        Meanwhile other work that does not touch `x` may be queued. In models that compute attention
        and FFN in parallel, a backend of two devices overlaps the two.
        """

    def ffn_active(
        self,
        x: ArrayT,
        ffn: FFN[MatrixT, VectorT],
        active: ActiveIds,
        is_prompt: BoolArray | None = None,
        router_input: ArrayT | None = None,
    ) -> ArrayT:
        """Compute `ffn` over listed neurons only, for predictors that run outside the backend.

        The predictor of the FFN is not used; neurons of experts that are not chosen do not count.

        Raises:
            IndexError: ids are not ascending or out of range.
        """

    def ffn_firing(
        self,
        x: ArrayT,
        ffn: FFN[MatrixT, VectorT],
        is_prompt: BoolArray | None = None,
        router_input: ArrayT | None = None,
    ) -> tuple[ArrayT, ByteArray]:
        """Compute `ffn` without its predictor, to the bit, and note which neurons fire.

        Returns:
            The output and u8[num_tokens, ceil(num_neurons / 8)] in host memory: bit ``i % 8``, the
            lowest first, of byte ``i // 8`` is set if the computed value of neuron i is not zero.
            It is clear for neurons of experts that are not chosen.

        Raises:
            UnsupportedError: the block lies on several devices, or there are decode rows, and the
                backend does not note which of their neurons fire.
        """

    def neuron_shares(self, ffn: FFN[MatrixT, VectorT]) -> NeuronShares | None:
        """Return the shares in the last call with decode rows; None before it or if not counted.

        Any thread may call this while steps run; the two numbers may then belong to two steps.
        """

    def add(self, x: ArrayT, y: ArrayT) -> None:
        """Add y to x in place."""

    def take_rows(self, x: ArrayT, rows: IntArray) -> ArrayT:
        """Gather rows in the order of `rows`: f32[len(rows), columns]."""

    def to_host(self, x: ArrayT) -> FloatArray:
        """Wait for an activation and return it as a numpy array."""
