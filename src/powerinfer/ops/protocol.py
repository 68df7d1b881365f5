"""What a backend must offer: the operations that layers call, with their shapes and errors.

`models/architectures/*` call these and nothing else, so one model file runs on the numpy
reference (the oracle), the native CPU backend and the hybrid of CPU and GPU.

A backend does three things: it loads weights (`LoadsWeights`), computes (`Computes`) and runs
whole steps (`RunsSteps`). The three protocols are generic over the backend's types: its arrays of
activations, its matrices and vectors, its KV cache of a layer, and its own forms of an FFN and of a
predictor. Models know none of these types; see `powerinfer.ops.some_backend`.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol

from powerinfer.gguf import Tensor
from powerinfer.ops.operands import (
    FFN,
    ActiveIds,
    FFNCounters,
    HeadNorms,
    KVType,
    Linear,
    MatrixUse,
    NeuronPredictor,
    NeuronShares,
    RopeTable,
    Router,
    RouterRule,
    ScoreStage,
)
from powerinfer.ops.type_parameters import (
    ArrayT,
    KVLayerT,
    MatrixT,
    MatrixT_contra,
    PreparedFFNT,
    PreparedFFNT_contra,
    PreparedPredictorT,
    PreparedPredictorT_contra,
    VectorT,
    VectorT_contra,
)
from powerinfer.values import Batch, BoolArray, ByteArray, FloatArray, IntArray

# The operands belong to the protocol: who implements or calls it takes them from here.
__all__ = [
    "FFN",
    "ActiveIds",
    "Computes",
    "FFNCounters",
    "HeadNorms",
    "KVType",
    "LayerProgram",
    "Linear",
    "LoadsWeights",
    "MatrixUse",
    "NeuronPredictor",
    "NeuronShares",
    "Ops",
    "RopeTable",
    "Router",
    "RouterRule",
    "RunsSteps",
    "ScoreStage",
]


class LoadsWeights(Protocol[MatrixT, VectorT, PreparedFFNT, PreparedPredictorT]):
    """Makes handles of weights and describes them, before anything is computed."""

    def matrix(self, tensor: Tensor, use: MatrixUse) -> MatrixT:
        """Prepare a weight matrix [rows, columns]; may keep a view of `tensor.data`.

        Raises:
            UnsupportedError: the tensor's format has no kernel here.
            ShapeError: the tensor is not two-dimensional.
        """
        ...

    def vector(self, tensor: Tensor) -> VectorT:
        """Prepare a norm weight or bias as f32[n]."""
        ...

    def expert_matrix(self, tensors: Sequence[Tensor], use: MatrixUse) -> MatrixT:
        """Prepare the matrices of all experts as one: [num_experts * rows, columns].

        Args:
            tensors: one [num_experts, rows, columns], or one [rows, columns] per expert.
            use: how it is read.

        Raises:
            UnsupportedError: a tensor's format has no kernel here.
            ShapeError: a tensor has other dimensions, or they differ in shape or format.
        """
        ...

    def expert_vector(self, tensor: Tensor) -> VectorT:
        """Prepare the biases of all experts, [num_experts, n], as f32[num_experts * n]."""
        ...

    def constant(self, values: FloatArray) -> VectorT:
        """Prepare f32[n] that comes from no file."""
        ...

    def vector_values(self, vector: VectorT) -> FloatArray:
        """The f32[n] of a vector."""
        ...

    def matrix_bytes(self, matrix: MatrixT) -> int:
        """Bytes read when every row of `matrix` is used once."""
        ...

    def matrix_shape(self, matrix: MatrixT) -> tuple[int, int]:
        """Rows and columns; of a copy made by `recode` the columns as padded."""
        ...

    def matrix_format(self, matrix: MatrixT) -> str:
        """Name of the weight format of `matrix`, whatever layout the backend gave it."""
        ...

    def recode(self, matrix: MatrixT, format_name: str) -> MatrixT:
        """A copy of a matrix in another weight format, for predictors.

        Columns are padded with zeros to whole blocks of the format. The copy lives in memory of
        the backend's own, until it is dropped.

        Raises:
            UnsupportedError: there is no encoder for the format.
            NumericsError: a row holds NaN, infinity or numbers beyond the format's scale.
        """
        ...

    def copy_statistics(
        self, matrix: MatrixT, copy: MatrixT, mean: FloatArray, variance: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """What a copy made by `recode` loses on inputs with these statistics.

        Args:
            matrix: [rows, columns], the original.
            copy: [rows, columns or more], the copy.
            mean: f32[columns], mean of the input.
            variance: f32[columns], variance of the input.

        Returns:
            offset f32[rows] = matrix @ mean, and noise f32[rows], the standard deviation of
            (matrix - copy) @ (input - mean) with independent inputs; never 0. For `sign` copies
            noise counts that the input is binarised too.

        Raises:
            ShapeError: the sizes do not fit each other.
        """
        ...

    def ffn_weights(
        self, ffn: FFN[MatrixT, VectorT, PreparedFFNT | None, PreparedPredictorT]
    ) -> FFN[MatrixT, VectorT, PreparedFFNT, PreparedPredictorT]:
        """Return `ffn` with `native` filled in; called once per layer at load.

        Raises:
            ShapeError: router and matrices do not fit each other.
            UnsupportedError: it cannot be run as asked.
        """
        ...

    def neuron_predictor(
        self, predictor: NeuronPredictor[MatrixT, VectorT, PreparedPredictorT | None]
    ) -> NeuronPredictor[MatrixT, VectorT, PreparedPredictorT]:
        """Return `predictor` with `native` filled in.

        Raises:
            ShapeError: its matrices do not fit each other.
        """
        ...


class Computes(
    Protocol[
        ArrayT,
        MatrixT_contra,
        VectorT_contra,
        KVLayerT,
        PreparedFFNT_contra,
        PreparedPredictorT_contra,
    ]
):
    """Computes with weights. Activations are f32 C-contiguous arrays of the device; ids are i32.

    `is_prompt` marks the rows of an operation that are prompt, bool[num_tokens]; None: all are
    decode rows (`Batch.is_prompt`). A CPU chooses its arithmetic by it, so that a row's bits depend
    neither on how many rows there are nor on what they are; other devices may ignore it.
    """

    counters: FFNCounters

    def predict(
        self,
        x: FloatArray,
        predictor: NeuronPredictor[MatrixT_contra, VectorT_contra, PreparedPredictorT_contra],
        is_prompt: BoolArray | None = None,
    ) -> ActiveIds:
        """The neurons that pass, per token: ascending ids.

        Args:
            x: f32[num_tokens, hidden_size] in host memory, the predictor's input.
            predictor: prepared by `neuron_predictor`.
            is_prompt: see the class.
        """
        ...

    def route(
        self,
        x: FloatArray,
        ffn: FFN[MatrixT_contra, VectorT_contra, PreparedFFNT_contra, PreparedPredictorT_contra],
        is_prompt: BoolArray | None = None,
    ) -> tuple[IntArray, FloatArray]:
        """The experts of each token, as `ffn` chooses them.

        Args:
            x: f32[num_tokens, hidden_size] in host memory, what the router sees.
            ffn: prepared by `ffn_weights`.
            is_prompt: see the class.

        Returns:
            Ids i32[num_tokens, num_used], ascending, and their weights f32[num_tokens, num_used].

        Raises:
            UnsupportedError: the block has no router.
        """
        ...

    def embed(self, table: MatrixT_contra, token_ids: IntArray) -> FloatArray:
        """Rows of `table` in host memory: f32[num_tokens, hidden_size]."""
        ...

    def rms_norm(self, x: ArrayT, weight: VectorT_contra, eps: float) -> ArrayT:
        """Per row x / sqrt(mean(x^2) + eps) * weight: f32[num_tokens, hidden_size]."""
        ...

    def layer_norm(
        self, x: ArrayT, weight: VectorT_contra, bias: VectorT_contra | None, eps: float
    ) -> ArrayT:
        """(x - mean) / sqrt(var + eps) * weight + bias, population variance, per row."""
        ...

    def linear(
        self,
        x: ArrayT,
        layers: Sequence[Linear[MatrixT_contra, VectorT_contra]],
        is_prompt: BoolArray | None = None,
    ) -> Sequence[ArrayT]:
        """Several products of one input: f32[num_tokens, out_features] each.

        A matrix of format `sign` multiplies the signs of x, times the mean magnitude of its row.
        One call so that x is quantized once and threads are woken once.
        """
        ...

    def rope_and_store(
        self,
        q: ArrayT,
        k: ArrayT,
        v: ArrayT,
        cache: KVLayerT,
        batch: Batch,
        rope: RopeTable | None,
        head_norms: HeadNorms[VectorT_contra] | None = None,
    ) -> None:
        """Normalise and rotate q and k in place, then write k and v into the cache.

        Args:
            q: f32[num_tokens, num_heads * head_dim].
            k: f32[num_tokens, num_kv_heads * head_dim].
            v: as k.
            cache: of this layer.
            batch: the tokens.
            rope: angles by position; None for no rotation.
            head_norms: RMS norms of each head, taken before the rotation; None for none.
        """
        ...

    def new_kv_layers(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        kv_type: KVType,
    ) -> list[KVLayerT]:
        """Uninitialised cache of all layers: `num_blocks` blocks of `block_size` positions each.

        Each is on the device that runs the attention of its layer.
        """
        ...

    def copy_kv_blocks(self, layers: Sequence[KVLayerT], pairs: Sequence[tuple[int, int]]) -> None:
        """Copy keys and values of whole blocks, in every layer, before any later step.

        Args:
            layers: of one cache.
            pairs: (source, target) each, copied one after the other.

        Raises:
            IndexError: there is no such block.
        """
        ...

    def attention(
        self,
        q: ArrayT,
        cache: KVLayerT,
        batch: Batch,
        scale: float,
        window: int | None = None,
        *,
        sinks: VectorT_contra | None = None,
        soft_cap: float | None = None,
    ) -> ArrayT:
        """Causal grouped-query attention over the cache (the step's own k, v are stored already).

        A token at position p sees positions max(0, p - window + 1) .. p of its own sequence; query
        head h uses KV head h // (num_heads / num_kv_heads).

        Args:
            q: f32[num_tokens, num_heads * head_dim].
            cache: of this layer.
            batch: the tokens.
            scale: of the scores, the products of queries and keys.
            window: positions that a token sees, itself included; None for all.
            sinks: f32[num_heads], a score of each head that takes part in the softmax beside those
                of the positions, and has no value: weights add up to less than one. None for none.
            soft_cap: above 0; scaled scores become soft_cap * tanh(score / soft_cap) before the
                softmax. None leaves them.

        Returns:
            f32[num_tokens, num_heads * head_dim].
        """
        ...

    def ffn(
        self,
        x: ArrayT,
        ffn: FFN[MatrixT_contra, VectorT_contra, PreparedFFNT_contra, PreparedPredictorT_contra],
        predictor_input: ArrayT | None = None,
        is_prompt: BoolArray | None = None,
        router_input: ArrayT | None = None,
    ) -> ArrayT:
        """down(activation(gate x, up x)): f32[num_tokens, hidden_size], in one call.

        With `ffn.predictor`, neurons that it does not let pass count as zero. Paper: "Neuron-aware
        Operator". With `ffn.router` the sum over the token's experts, in the order of their ids, of
        weight times result; a neuron runs if its expert is chosen and the predictor lets it pass.
        Adds to `counters`.

        Args:
            x: f32[num_tokens, hidden_size], normalised.
            ffn: prepared by `ffn_weights`.
            predictor_input: f32[num_tokens, hidden_size], what the predictor sees; None for `x`.
            is_prompt: see the class.
            router_input: f32[num_tokens, hidden_size], what the router sees; None for `x`.
        """
        ...

    def start_ffn(
        self,
        x: ArrayT,
        ffn: FFN[MatrixT_contra, VectorT_contra, PreparedFFNT_contra, PreparedPredictorT_contra],
        predictor_input: ArrayT | None = None,
        is_prompt: BoolArray | None = None,
        router_input: ArrayT | None = None,
    ) -> Callable[[], ArrayT]:
        """Start `ffn`; calling the result finishes it and returns what `ffn` returns.

        In between, other work that does not touch `x` may be queued. In models that compute
        attention and FFN side by side, a backend of two devices overlaps the two.
        """
        ...

    def ffn_active(
        self,
        x: ArrayT,
        ffn: FFN[MatrixT_contra, VectorT_contra, PreparedFFNT_contra, PreparedPredictorT_contra],
        active: ActiveIds,
        is_prompt: BoolArray | None = None,
        router_input: ArrayT | None = None,
    ) -> ArrayT:
        """The same over the listed neurons only, for predictors that run outside the backend.

        Args:
            x: f32[num_tokens, hidden_size].
            ffn: prepared by `ffn_weights`; its predictor is not used.
            active: the neurons of each token; those of experts that are not chosen do not count.
            is_prompt: see the class.
            router_input: see `ffn`.

        Raises:
            IndexError: ids are not ascending or out of range.
        """
        ...

    def ffn_firing(
        self,
        x: ArrayT,
        ffn: FFN[MatrixT_contra, VectorT_contra, PreparedFFNT_contra, PreparedPredictorT_contra],
        is_prompt: BoolArray | None = None,
        router_input: ArrayT | None = None,
    ) -> tuple[ArrayT, ByteArray]:
        """What `ffn` returns without a predictor, to the bit, and which neurons fire on the way.

        Args:
            x: f32[num_tokens, hidden_size].
            ffn: prepared by `ffn_weights`; its predictor is not used.
            is_prompt: see the class.
            router_input: see `ffn`.

        Returns:
            The output and u8[num_tokens, ceil(num_neurons / 8)] in host memory: bit ``i % 8``, the
            lowest first, of byte ``i // 8`` is set if the value of neuron i, as it was computed,
            is not zero. Neurons of experts that are not chosen have none.

        Raises:
            UnsupportedError: the block lies on several devices, or there are decode rows, and the
                backend does not tell which of their neurons fire.
        """
        ...

    def neuron_shares(
        self,
        ffn: FFN[MatrixT_contra, VectorT_contra, PreparedFFNT_contra, PreparedPredictorT_contra],
    ) -> NeuronShares | None:
        """Of the block's last call with decode rows; None before it, or where none are counted.

        Any thread may ask while steps run; the two numbers may then belong to two steps.
        """
        ...

    def add(self, x: ArrayT, y: ArrayT) -> None:
        """Add y to x in place."""
        ...

    def take_rows(self, x: ArrayT, rows: IntArray) -> ArrayT:
        """Rows of an activation, in the order of `rows`: f32[len(rows), columns]."""
        ...

    def to_host(self, x: ArrayT) -> FloatArray:
        """The numbers of an activation as a numpy array; waits for them."""
        ...


@dataclass(frozen=True, slots=True)
class LayerProgram(Generic[ArrayT]):
    """The layers of a step and its end; all of it calls operations of one backend only.

    Attributes:
        num_layers: of the model.
        layers: ``layers(x, batch, first, last)`` runs layers [first, last) on
            x f32[num_tokens, hidden_size], which they may add to in place, and returns what it has
            become. A stream without rows is wanted by nobody: no later layer need run.
        end: ``end(x)`` is what the step returns: f32[num_selected, vocab_size], or
            f32[num_selected, hidden_size] if states are wanted.
        key: what the calls depend on besides x, the numbers in the batch and the weights. A backend
            may record them under this key and the sizes in the batch, and replay the record. None:
            they must be made in every step.
    """

    num_layers: int
    layers: Callable[[ArrayT, Batch, int, int], ArrayT]
    end: Callable[[ArrayT], ArrayT]
    key: Hashable | None = None


class RunsSteps(Protocol[ArrayT]):
    """Runs whole steps, and says how."""

    @property
    def native_s(self) -> float | None:
        """Seconds spent in native code so far; None if the backend does not count them."""
        ...

    @property
    def handoff_name(self) -> str | None:
        """How layers are handed from one device to the other; None if there is only one device."""
        ...

    @property
    def runs_layers_apart(self) -> bool:
        """Layers of a step may run one by one, with other steps between them."""
        ...

    def step(self, x: FloatArray, batch: Batch, program: LayerProgram[ArrayT]) -> FloatArray:
        """Run the layers of one step on this backend's own arrays.

        Args:
            x: f32[num_tokens, hidden_size], made by `embed`.
            batch: its tokens.
            program: what to run.

        Returns:
            What the program's end returned, on the host.
        """
        ...


class Ops(
    LoadsWeights[MatrixT, VectorT, PreparedFFNT, PreparedPredictorT],
    Computes[ArrayT, MatrixT, VectorT, KVLayerT, PreparedFFNT, PreparedPredictorT],
    RunsSteps[ArrayT],
    Protocol[ArrayT, MatrixT, VectorT, KVLayerT, PreparedFFNT, PreparedPredictorT],
):
    """A backend: one device, or several that work together."""

    name: str
