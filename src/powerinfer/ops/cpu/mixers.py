"""Mixers with a state, and gates: a part of the native CPU backend."""

from collections.abc import Sequence

import numpy as np

from powerinfer import _core
from powerinfer.ops.cpu.handles import CurrentBatch, RopeHandles
from powerinfer.ops.cpu.weights import NativeWeights
from powerinfer.ops.operands import DeltaRule, RopeTable, SelectiveScan, ShortConv
from powerinfer.values import Batch, FloatArray

__all__ = ["NativeMixers"]


class NativeMixers(NativeWeights):
    """`powerinfer.ops.mixer_ops.MixerOps` on a team of threads; see there for shapes.

    Errors beyond the protocol's: ValueError if the batch names no slots, if the tokens of a
    sequence do not stand together, or if a slot that is written belongs to another sequence, too.
    """

    _current: CurrentBatch
    _ropes: RopeHandles

    def new_state_layers(self, sizes: Sequence[int], num_slots: int) -> list[_core.StateLayer]:
        """Reserve addresses; a slot takes memory once it is written."""
        return [_core.StateLayer(num_slots, size) for size in sizes]

    def short_conv(
        self, x: FloatArray, conv: ShortConv[_core.Vector], state: _core.StateLayer, batch: Batch
    ) -> FloatArray:
        """Convolve blocks of channels, each of one sequence."""
        out = np.empty((len(x), x.shape[1] // 3), np.float32)
        tokens = self._current.of(batch)
        _core.short_conv(self._team, x, conv.weight, conv.num_taps, state, tokens, out)
        return out

    def delta_rule(
        self,
        mixed: FloatArray,
        gate: FloatArray,
        beta: FloatArray,
        alpha: FloatArray,
        rule: DeltaRule[_core.Vector],
        state: _core.StateLayer,
        batch: Batch,
    ) -> FloatArray:
        """Convolve blocks of channels, then run heads, each of one sequence."""
        out = np.empty(gate.shape, np.float32)
        vectors = rule.conv, rule.a, rule.dt_bias, rule.norm
        heads = rule.num_key_heads, rule.num_value_heads
        sizes = rule.num_taps, *heads, rule.key_dim, rule.value_dim
        operands, tokens = (mixed, gate, beta, alpha), self._current.of(batch)
        _core.delta_rule(self._team, *operands, vectors, rule.eps, sizes, state, tokens, out)
        return out

    def selective_scan(
        self,
        x: FloatArray,
        scan: SelectiveScan[_core.Vector],
        state: _core.StateLayer,
        batch: Batch,
    ) -> FloatArray:
        """Convolve blocks of channels, run heads, each of one sequence, then normalize groups."""
        out = np.empty((len(x), scan.num_inner), np.float32)
        vectors = scan.conv, scan.conv_bias, scan.a, scan.skip, scan.dt_bias, scan.norm
        sizes = scan.num_taps, scan.num_groups, scan.num_heads, scan.head_dim, scan.state_dim
        tokens = self._current.of(batch)
        _core.selective_scan(self._team, x, vectors, scan.eps, sizes, state, tokens, out)
        return out

    def gate(self, x: FloatArray, g: FloatArray) -> None:
        """Multiply x by sigmoid(g) in place."""
        _core.gate(self._team, x, g)

    def gelu_gate(self, x: FloatArray, y: FloatArray) -> None:
        """Replace x by gelu(x) * y."""
        _core.gelu_gate(self._team, x, y)

    def scale(self, x: FloatArray, factor: float) -> None:
        """Multiply x by a number in place."""
        _core.scale(self._team, x, factor)

    def rotate_queries(
        self,
        q: FloatArray,
        head_dim: int,
        batch: Batch,
        rope: RopeTable | None,
        norm: _core.Vector | None,
        eps: float,
    ) -> None:
        """Normalise and rotate q in place."""
        table = None if rope is None else self._ropes.handle(rope)
        _core.rotate_queries(self._team, q, head_dim, self._current.of(batch), table, norm, eps)
