"""Mixers: the part of a layer in which tokens see each other.

Attention reads keys and values of all positions. The other mixers read a state of fixed size, which
takes up one token after the other. A `StateMixer` describes one by its sizes and finds its tensors;
a `Mixer` holds the weights, prepared for a backend.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from powerinfer.gguf import Tensor
from powerinfer.models.tensors.preparer import Preparer
from powerinfer.models.tensors.tensor_lookup import Section
from powerinfer.ops.backend import (
    Activations,
    Backend,
    SomeDeltaRule,
    SomeHeadNorms,
    SomeLinear,
    SomeShortConv,
    StateLayer,
    Vector,
)
from powerinfer.ops.protocol import DeltaRule, ShortConv
from powerinfer.values import Batch

__all__ = [
    "MAX_TAPS",
    "AttentionWeights",
    "DeltaRuleMixer",
    "DeltaRuleWeights",
    "Mixer",
    "ShortConvMixer",
    "ShortConvWeights",
    "StateMixer",
    "StateMixerWeights",
]

MAX_TAPS = 16
"""Most taps of a convolution: what the kernels take (kMaxTaps, cpp/ops/state.h)."""


class Mixer(ABC):
    """Weights of a layer's mixer.

    Attributes:
        input_names: names in the layer of the matrices that multiply its input, without `.weight`.
        output_name: name of the matrix that multiplies its result.
    """

    input_names: ClassVar[tuple[str, ...]]
    output_name: ClassVar[str]

    @property
    @abstractmethod
    def linears(self) -> tuple[SomeLinear, ...]:
        """All matrices, the one of the output last."""

    @property
    @abstractmethod
    def vectors(self) -> list[Vector]:
        """All vectors besides the biases of the matrices."""


@dataclass(frozen=True, slots=True)
class AttentionWeights(Mixer):
    """Weights of attention.

    Attributes:
        qkv: matrices of q, k and v; of q and k if keys are the values, too, before their norm; of q
            alone if the layer reads keys and values of another one.
        attn_output: [hidden_size, q_size].
        head_norms: norms of single heads of q, k and, in some families, v; or None.
        sinks: f32[num_heads], see `Ops.attention`, or None.
        gate: [q_size, hidden_size] if the sigmoid of this product scales the input of
            `attn_output`, else None.
    """

    input_names: ClassVar[tuple[str, ...]] = ("attn_q", "attn_k", "attn_v")
    output_name: ClassVar[str] = "attn_output"

    qkv: tuple[SomeLinear, ...]
    attn_output: SomeLinear
    head_norms: SomeHeadNorms | None = None
    sinks: Vector | None = None
    gate: SomeLinear | None = None

    @property
    def linears(self) -> tuple[SomeLinear, ...]:
        """Those of q, k, v, the gate if there is one, and the output."""
        gate = () if self.gate is None else (self.gate,)
        return (*self.qkv, *gate, self.attn_output)

    @property
    def vectors(self) -> list[Vector]:
        """Norms of heads, and sinks."""
        norms = []
        if self.head_norms is not None:
            norms = [self.head_norms.q, self.head_norms.k][: len(self.qkv)]
        return norms if self.sinks is None else [*norms, self.sinks]


class StateMixerWeights(Mixer):
    """Weights of a mixer with state."""

    @abstractmethod
    def mix(self, ops: Backend, x: Activations, state: StateLayer, batch: Batch) -> Activations:
        """Compute the input of the output matrix from f32[num_tokens, hidden_size], normalized."""


class StateMixer(ABC):
    """Sizes of a mixer with state, read from a file's keys."""

    @property
    @abstractmethod
    def state_size(self) -> int:
        """Number of f32 values in the state of one sequence."""

    @abstractmethod
    def find(self, block: Section, hidden_size: int) -> None:
        """Add the mixer's tensors to those of a block."""

    @abstractmethod
    def prepare(self, prepare: Preparer, tensors: dict[str, Tensor]) -> StateMixerWeights:
        """Prepare the tensors that `find` added."""


@dataclass(frozen=True, slots=True)
class ShortConvMixer(StateMixer):
    """Gated convolution over a few tokens (LFM2).

    Attributes:
        num_channels: columns of each of the two gates and the input; the hidden size.
        num_taps: tokens that a token sees, itself included.
    """

    num_channels: int
    num_taps: int

    @property
    def state_size(self) -> int:
        """All columns of the convolution's input that the next token sees."""
        return (self.num_taps - 1) * self.num_channels

    def find(self, block: Section, hidden_size: int) -> None:
        """Add both projections and the kernel."""
        block.linear("shortconv.in_proj", (3 * self.num_channels, hidden_size))
        block.need("shortconv.conv.weight", (self.num_channels, self.num_taps))
        block.linear("shortconv.out_proj", (hidden_size, self.num_channels))

    def prepare(self, prepare: Preparer, tensors: dict[str, Tensor]) -> StateMixerWeights:
        """Prepare them."""
        return ShortConvWeights(
            prepare.linear(tensors, "shortconv.in_proj"),
            ShortConv(prepare.flat_vector(tensors["shortconv.conv.weight"]), self.num_taps),
            prepare.linear(tensors, "shortconv.out_proj"),
        )


@dataclass(frozen=True, slots=True)
class ShortConvWeights(StateMixerWeights):
    """Weights of a gated convolution.

    Attributes:
        in_proj: [3 * num_channels, hidden_size].
        out_proj: [hidden_size, num_channels].
    """

    input_names: ClassVar[tuple[str, ...]] = ("shortconv.in_proj",)
    output_name: ClassVar[str] = "shortconv.out_proj"

    in_proj: SomeLinear
    conv: SomeShortConv
    out_proj: SomeLinear

    @property
    def linears(self) -> tuple[SomeLinear, ...]:
        """Both projections."""
        return self.in_proj, self.out_proj

    @property
    def vectors(self) -> list[Vector]:
        """The kernel."""
        return [self.conv.weight]

    def mix(self, ops: Backend, x: Activations, state: StateLayer, batch: Batch) -> Activations:
        """Project, then convolve between the gates: f32[num_tokens, num_channels]."""
        (projected,) = ops.linear(x, (self.in_proj,), batch.is_prompt)
        return ops.short_conv(projected, self.conv, state, batch)


@dataclass(frozen=True, slots=True)
class DeltaRuleMixer(StateMixer):
    """Gated delta rule (Qwen3.5).

    Attributes:
        head_dim: width of key heads and of value heads.
        eps: see `DeltaRule`.
    """

    num_key_heads: int
    num_value_heads: int
    head_dim: int
    num_taps: int
    eps: float

    @property
    def state_size(self) -> int:
        """Columns of the convolution's input that the next token sees, and a matrix per head."""
        matrices = self.num_value_heads * self.head_dim**2
        return (self.num_taps - 1) * self._num_channels + matrices

    @property
    def _num_channels(self) -> int:
        return (2 * self.num_key_heads + self.num_value_heads) * self.head_dim

    def find(self, block: Section, hidden_size: int) -> None:
        """Add the projections, the kernel, and the vectors of the rule."""
        heads, inner = self.num_value_heads, self.num_value_heads * self.head_dim
        block.linear("attn_qkv", (self._num_channels, hidden_size))
        block.linear("attn_gate", (inner, hidden_size))
        block.linear("ssm_beta", (heads, hidden_size))
        block.linear("ssm_alpha", (heads, hidden_size))
        block.need("ssm_conv1d.weight", (self._num_channels, self.num_taps))
        block.need("ssm_a", (heads,))
        block.need("ssm_dt.bias", (heads,))
        block.need("ssm_norm.weight", (self.head_dim,))
        block.linear("ssm_out", (hidden_size, inner))

    def prepare(self, prepare: Preparer, tensors: dict[str, Tensor]) -> StateMixerWeights:
        """Prepare them."""
        names = DeltaRuleWeights.input_names
        mixed, gate, beta, alpha = (prepare.linear(tensors, name) for name in names)
        rule = DeltaRule(
            conv=prepare.flat_vector(tensors["ssm_conv1d.weight"]),
            a=prepare.vector(tensors["ssm_a"]),
            dt_bias=prepare.vector(tensors["ssm_dt.bias"]),
            norm=prepare.vector(tensors["ssm_norm.weight"]),
            eps=self.eps,
            num_taps=self.num_taps,
            num_key_heads=self.num_key_heads,
            num_value_heads=self.num_value_heads,
            key_dim=self.head_dim,
            value_dim=self.head_dim,
        )
        output = prepare.linear(tensors, DeltaRuleWeights.output_name)
        return DeltaRuleWeights(mixed, gate, beta, alpha, rule, output)


@dataclass(frozen=True, slots=True)
class DeltaRuleWeights(StateMixerWeights):
    """Weights of a gated delta rule.

    Attributes:
        mixed: [num_channels, hidden_size], rows of q, k and v.
        gate: [num_value_heads * value_dim, hidden_size].
        beta: [num_value_heads, hidden_size].
        alpha: [num_value_heads, hidden_size].
        output: [hidden_size, num_value_heads * value_dim].
    """

    input_names: ClassVar[tuple[str, ...]] = ("attn_qkv", "attn_gate", "ssm_beta", "ssm_alpha")
    output_name: ClassVar[str] = "ssm_out"

    mixed: SomeLinear
    gate: SomeLinear
    beta: SomeLinear
    alpha: SomeLinear
    rule: SomeDeltaRule
    output: SomeLinear

    @property
    def linears(self) -> tuple[SomeLinear, ...]:
        """The four of the input, and that of the output."""
        return self.mixed, self.gate, self.beta, self.alpha, self.output

    @property
    def vectors(self) -> list[Vector]:
        """Those of the rule."""
        return [self.rule.conv, self.rule.a, self.rule.dt_bias, self.rule.norm]

    def mix(self, ops: Backend, x: Activations, state: StateLayer, batch: Batch) -> Activations:
        """Project, then apply the rule: f32[num_tokens, num_value_heads * value_dim]."""
        projected = ops.linear(x, self.linears[:-1], batch.is_prompt)
        mixed, gate, beta, alpha = projected
        return ops.delta_rule(mixed, gate, beta, alpha, self.rule, state, batch)
