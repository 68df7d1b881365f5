"""Per-layer embeddings (Gemma 3n and 4): a second, wide embedding with a slice for each layer.

Every layer adds to the residual stream what its slice of the token's row lets pass. The table is
most of such a model: it stays in the mapped file, and a step reads one row per token.
"""

from dataclasses import dataclass

import numpy as np

from powerinfer.gguf import Tensor
from powerinfer.models.config import ModelConfig
from powerinfer.models.tensors.preparer import Preparer
from powerinfer.models.tensors.tensor_lookup import Section
from powerinfer.ops.backend import Activations, Backend, Matrix, SomeLinear, Vector
from powerinfer.ops.protocol import MatrixUse
from powerinfer.values import Batch, BoolArray, FloatArray

__all__ = [
    "GATE",
    "OUTPUT",
    "POST_NORM",
    "PROJECTION",
    "TABLE",
    "PerLayerEmbedding",
    "PerLayerGate",
    "find_per_layer_embedding",
    "find_per_layer_gate",
]

TABLE, PROJECTION, _NORM = "per_layer_token_embd", "per_layer_model_proj", "per_layer_proj_norm"
GATE, OUTPUT, POST_NORM = "inp_gate", "proj", "post_norm"


def find_per_layer_embedding(outer: Section, config: ModelConfig) -> None:
    """Add the table and what projects the embedding to all layers, if the model has them."""
    size = config.per_layer_size
    if size:
        columns = config.num_layers * size
        outer.need(f"{TABLE}.weight", (config.vocab_size, columns))
        outer.linear(PROJECTION, (columns, config.hidden_size))
        outer.need(f"{_NORM}.weight", (size,))


def find_per_layer_gate(block: Section, config: ModelConfig) -> None:
    """Add the same of one layer: two matrices and a norm."""
    size, hidden = config.per_layer_size, config.hidden_size
    if size:
        block.linear(GATE, (size, hidden))
        block.linear(OUTPUT, (hidden, size))
        block.need(f"{POST_NORM}.weight", (hidden,))


@dataclass(frozen=True, slots=True)
class PerLayerEmbedding:
    """Makes the inputs of all layers from a step's tokens.

    Attributes:
        table: [vocab_size, num_layers * size].
        projection: [num_layers * size, hidden_size].
        norm: f32[size], weight of the RMS norm of each layer's projection.
        eps: added to its mean square.
        size: columns of a layer.
    """

    table: Matrix
    projection: SomeLinear
    norm: Vector
    eps: float
    size: int

    @classmethod
    def prepare(
        cls, prepare: Preparer, tensors: dict[str, Tensor], config: ModelConfig
    ) -> "PerLayerEmbedding | None":
        """Prepare the tensors of `find_per_layer_embedding`; None if the model has none."""
        if not config.per_layer_size:
            return None
        return cls(
            table=prepare.matrix(tensors[f"{TABLE}.weight"], MatrixUse.EMBEDDING),
            projection=prepare.linear(tensors, PROJECTION),
            norm=prepare.vector(tensors[f"{_NORM}.weight"]),
            # The projection is meant to be divided by sqrt(hidden_size) before the norm.
            eps=config.norm_eps * config.hidden_size,
            size=config.per_layer_size,
        )

    def inputs(self, ops: Backend, batch: Batch, x: FloatArray) -> FloatArray:
        """Compute (norm(projection x) + sqrt(size) * row) / sqrt(2) for every layer.

        Args:
            x: f32[num_tokens, hidden_size], the scaled embedding.

        Returns:
            f32[num_layers, num_tokens, size].
        """
        (projected,) = ops.linear(x, (self.projection,), batch.is_prompt)
        slices = ops.to_host(projected).reshape(-1, self.size)
        normed = ops.to_host(ops.rms_norm(slices, self.norm, self.eps))
        rows = ops.embed(self.table, batch.token_ids).reshape(normed.shape)
        with np.errstate(all="ignore"):  # NaN of damaged models is reported elsewhere
            summed = (normed + rows * np.float32(self.size**0.5)) * np.float32(0.5**0.5)
        by_token = summed.reshape(batch.num_tokens, -1, self.size)
        return np.ascontiguousarray(by_token.swapaxes(0, 1))

    def num_bytes(self, ops: Backend, vocab_size: int) -> int:
        """Bytes that a token reads."""
        row = ops.matrix_bytes(self.table) // vocab_size
        return row + ops.matrix_bytes(self.projection.matrix) + 4 * self.size


@dataclass(frozen=True, slots=True)
class PerLayerGate:
    """Lets the input of one layer pass.

    Attributes:
        gate: [size, hidden_size].
        output: [hidden_size, size].
    """

    gate: SomeLinear
    output: SomeLinear

    @classmethod
    def prepare(
        cls, prepare: Preparer, tensors: dict[str, Tensor], config: ModelConfig
    ) -> "PerLayerGate | None":
        """Prepare the matrices of `find_per_layer_gate`; None if the model has none."""
        if not config.per_layer_size:
            return None
        return cls(prepare.linear(tensors, GATE), prepare.linear(tensors, OUTPUT))

    def mix(
        self, ops: Backend, x: Activations, given: Activations, is_prompt: BoolArray | None
    ) -> Activations:
        """Compute gelu(gate x) * given: f32[num_tokens, size].

        Args:
            x: f32[num_tokens, hidden_size], the residual stream.
            given: f32[num_tokens, size], the layer's input.
            is_prompt: bool[num_tokens], see `Ops`.
        """
        (gated,) = ops.linear(x, (self.gate,), is_prompt)
        ops.gelu_gate(gated, given)
        return gated

    def project(self, ops: Backend, mixed: Activations, is_prompt: BoolArray | None) -> Activations:
        """Compute the product of `output` and what `mix` returned: f32[num_tokens, hidden_size]."""
        return ops.linear(mixed, (self.output,), is_prompt)[0]
