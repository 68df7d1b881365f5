"""Protocol of operations that run on the CPU alone: recurrences over tokens, and a few more.

A mixer other than attention keeps, per sequence, a fixed number of f32 values: a slot of the
layer's `StateLayer`. A step reads one slot of a sequence and writes another (`Batch.state_sources`,
`state_targets`). Tokens of a sequence stand next to each other in a batch, in order, and are
computed one after the other, so that the bits of a row do not depend on how a text is cut into
steps.
"""

from collections.abc import Sequence
from typing import NoReturn, Protocol, TypeVar

from powerinfer.errors import UnsupportedError
from powerinfer.ops.operands import DeltaRule, RopeTable, SelectiveScan, ShortConv
from powerinfer.values import Batch

__all__ = ["ArrayT", "MixerOps", "NoMixerOps", "StateLayerT"]

# A backend's arrays of activations, f32[num_tokens, columns], and its slots of one layer's states.
ArrayT = TypeVar("ArrayT")
StateLayerT = TypeVar("StateLayerT")
VectorT_contra = TypeVar("VectorT_contra", contravariant=True)


class MixerOps(Protocol[ArrayT, VectorT_contra, StateLayerT]):
    """Operations of mixers with state, and others that GPUs do not have yet; part of `Ops`."""

    def new_state_layers(self, sizes: Sequence[int], num_slots: int) -> list[StateLayerT]:
        """Allocate the uninitialised slots of several layers, on the device of their mixers.

        Args:
            sizes: f32 values of a slot, for each layer. A slot takes memory once it is written.
            num_slots: slots of each layer.
        """

    def short_conv(
        self, x: ArrayT, conv: ShortConv[VectorT_contra], state: StateLayerT, batch: Batch
    ) -> ArrayT:
        """Compute c * conv(b * u): a causal convolution of each channel between two gates (LFM2).

        Args:
            x: f32[num_tokens, 3 * num_channels], b, c and u of a token in this order.
            conv: taps of each channel.
            state: a slot holds the last num_taps - 1 columns of b * u, the oldest first:
                f32[num_taps - 1, num_channels].
            batch: sequences of the tokens and their slots.

        Returns:
            f32[num_tokens, num_channels].

        Raises:
            IndexError: there is no such slot.
        """

    def delta_rule(
        self,
        mixed: ArrayT,
        gate: ArrayT,
        beta: ArrayT,
        alpha: ArrayT,
        rule: DeltaRule[VectorT_contra],
        state: StateLayerT,
        batch: Batch,
    ) -> ArrayT:
        """Compute the gated delta rule (arXiv 2412.06464), its convolution and its output norm.

        silu(conv(mixed)) is split into q, k and v; q and k of each head are divided by
        sqrt(sum of squares + 1e-6), q also by sqrt(key_dim). A value head j with its state
        S[key_dim, value_dim] uses key head j % num_key_heads: S is multiplied by
        exp(a * softplus(alpha + dt_bias)); d = sigmoid(beta) * (v - S^T k); S += k d^T; o = S^T q.
        The result is rms_norm(o) * norm * silu(gate), per value head.

        Args:
            mixed: f32[num_tokens, 2 * num_key_heads * key_dim + num_value_heads * value_dim].
            gate: f32[num_tokens, num_value_heads * value_dim].
            beta: f32[num_tokens, num_value_heads], before the sigmoid.
            alpha: f32[num_tokens, num_value_heads], before the bias.
            rule: the other weights, and sizes.
            state: a slot holds the last num_taps - 1 rows of `mixed`, the oldest first, then S of
                each value head, in the layout that the backend likes best.
            batch: sequences of the tokens and their slots.

        Returns:
            f32[num_tokens, num_value_heads * value_dim].

        Raises:
            IndexError: there is no such slot.
        """

    def selective_scan(
        self, x: ArrayT, scan: SelectiveScan[VectorT_contra], state: StateLayerT, batch: Batch
    ) -> ArrayT:
        """Compute the selective scan of Mamba-2 (arXiv 2405.21060), its convolution and its norm.

        Columns of the input are z, x, b, c and dt; silu(conv(x, b, c) + conv_bias) replaces x, b
        and c. A head h with its state S[head_dim, state_dim] uses b and c of its group, h //
        (num_heads / num_groups). Its step is s = softplus(dt + dt_bias), which nothing clamps: S is
        multiplied by exp(a * s); S += s * x b^T; y = S c + skip * x. The result is
        rms_norm(y * silu(z)) * norm, per group of heads.

        Args:
            x: f32[num_tokens, num_inner + num_channels + num_heads].
            scan: the weights, and sizes.
            state: a slot holds the last num_taps - 1 rows of x, b and c, the oldest first, then S
                of each head.
            batch: sequences of the tokens and their slots.

        Returns:
            f32[num_tokens, num_inner].

        Raises:
            IndexError: there is no such slot.
        """

    def gate(self, x: ArrayT, g: ArrayT) -> None:
        """Multiply x by sigmoid(g) in place; both f32[num_tokens, columns]."""

    def gelu_gate(self, x: ArrayT, y: ArrayT) -> None:
        """Replace x by gelu(x) * y; both f32[num_tokens, columns]. GELU in its tanh form."""

    def scale(self, x: ArrayT, factor: float) -> None:
        """Multiply x by a number in place."""

    def rotate_queries(
        self,
        q: ArrayT,
        head_dim: int,
        batch: Batch,
        rope: RopeTable | None,
        norm: VectorT_contra | None,
        eps: float,
    ) -> None:
        """Normalise and rotate q in place, in a layer that reads keys and values of another one.

        Args:
            q: f32[num_tokens, num_heads * head_dim].
            head_dim: width of a head.
            batch: positions of the tokens.
            rope: angles by position; None for no rotation.
            norm: f32[head_dim], weight of the heads' RMS norm before the rotation; None for none.
            eps: added to its mean square.
        """


class NoMixerOps:
    """Operations of mixers on a backend without them: each raises UnsupportedError."""

    def new_state_layers(self, sizes: Sequence[int], num_slots: int) -> NoReturn:
        """Refuse."""
        raise _refusal()

    def short_conv(self, x: object, conv: object, state: object, batch: Batch) -> NoReturn:
        """Refuse."""
        raise _refusal()

    def delta_rule(
        self,
        mixed: object,
        gate: object,
        beta: object,
        alpha: object,
        rule: object,
        state: object,
        batch: Batch,
    ) -> NoReturn:
        """Refuse."""
        raise _refusal()

    def selective_scan(self, x: object, scan: object, state: object, batch: Batch) -> NoReturn:
        """Refuse."""
        raise _refusal()

    def gate(self, x: object, g: object) -> None:
        """Refuse."""
        raise _refusal()

    def gelu_gate(self, x: object, y: object) -> None:
        """Refuse."""
        raise _refusal()

    def scale(self, x: object, factor: float) -> None:
        """Refuse."""
        raise _refusal()

    def rotate_queries(
        self, q: object, head_dim: int, batch: Batch, rope: object, norm: object, eps: float
    ) -> None:
        """Refuse."""
        raise _refusal()


def _refusal() -> UnsupportedError:
    return UnsupportedError(
        "layers with a state, gated attention or heads of several widths run on the CPU alone for "
        "now: leave --gpu off"
    )
