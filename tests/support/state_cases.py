"""Mixers with a state over random sequences, done alike on every backend of host arrays."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from native_cases import HostOps, numbers
from powerinfer.ops.backend import StateLayer
from powerinfer.ops.protocol import DeltaRule, SelectiveScan, ShortConv
from powerinfer.values import Batch, FloatArray

__all__ = [
    "CASES",
    "LENGTH",
    "Case",
    "DeltaCase",
    "Part",
    "ScanCase",
    "ShortCase",
    "StateScene",
    "slots_batch",
]

LENGTH = 40
"""Tokens of each text of a scene."""


@dataclass(frozen=True)
class Case:
    """A mixer. Columns are those of its inputs."""

    num_taps: int

    @property
    def columns(self) -> tuple[int, ...]:
        """Widths of the inputs."""
        raise NotImplementedError

    @property
    def out_columns(self) -> int:
        """Width of the result."""
        raise NotImplementedError

    @property
    def state_size(self) -> int:
        """Numbers of a slot."""
        raise NotImplementedError

    def run(
        self, ops: HostOps, inputs: Sequence[FloatArray], state: StateLayer, batch: Batch
    ) -> FloatArray:
        """Call the operation, with random weights that are the same everywhere."""
        raise NotImplementedError


@dataclass(frozen=True)
class ShortCase(Case):
    """A short convolution."""

    num_channels: int

    @property
    def columns(self) -> tuple[int, ...]:
        """Those of b, c and u together."""
        return (3 * self.num_channels,)

    @property
    def out_columns(self) -> int:
        """Those of u."""
        return self.num_channels

    @property
    def state_size(self) -> int:
        """Columns of b * u."""
        return (self.num_taps - 1) * self.num_channels

    def run(
        self, ops: HostOps, inputs: Sequence[FloatArray], state: StateLayer, batch: Batch
    ) -> FloatArray:
        """Convolve."""
        weight = ops.constant(numbers((self.num_channels * self.num_taps,), 1))
        return _host(ops.short_conv(inputs[0], ShortConv(weight, self.num_taps), state, batch))


@dataclass(frozen=True)
class DeltaCase(Case):
    """A gated delta rule."""

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int

    @property
    def num_channels(self) -> int:
        """Channels of the convolution."""
        return 2 * self.num_key_heads * self.key_dim + self.num_value_heads * self.value_dim

    @property
    def columns(self) -> tuple[int, ...]:
        """Those of mixed, gate, beta and alpha."""
        heads = self.num_value_heads
        return self.num_channels, heads * self.value_dim, heads, heads

    @property
    def out_columns(self) -> int:
        """Those of the gate."""
        return self.num_value_heads * self.value_dim

    @property
    def state_size(self) -> int:
        """Columns of the convolution and a matrix per value head."""
        matrices = self.num_value_heads * self.value_dim * self.key_dim
        return (self.num_taps - 1) * self.num_channels + matrices

    def run(
        self, ops: HostOps, inputs: Sequence[FloatArray], state: StateLayer, batch: Batch
    ) -> FloatArray:
        """Run the rule."""
        heads = self.num_value_heads
        rule = DeltaRule(
            conv=ops.constant(numbers((self.num_channels * self.num_taps,), 1)),
            a=ops.constant(-np.exp(numbers((heads,), 2))),
            dt_bias=ops.constant(numbers((heads,), 3)),
            norm=ops.constant(numbers((self.value_dim,), 4)),
            eps=1e-6,
            num_taps=self.num_taps,
            num_key_heads=self.num_key_heads,
            num_value_heads=heads,
            key_dim=self.key_dim,
            value_dim=self.value_dim,
        )
        mixed, gate, beta, alpha = inputs
        return _host(ops.delta_rule(mixed, gate, beta, alpha, rule, state, batch))


@dataclass(frozen=True)
class ScanCase(Case):
    """A selective scan."""

    num_groups: int
    num_heads: int
    head_dim: int
    state_dim: int
    has_bias: bool = True

    @property
    def num_channels(self) -> int:
        """Channels of the convolution."""
        return self.out_columns + 2 * self.num_groups * self.state_dim

    @property
    def columns(self) -> tuple[int, ...]:
        """Those of z, x, b, c and dt together."""
        return (self.out_columns + self.num_channels + self.num_heads,)

    @property
    def out_columns(self) -> int:
        """Those of z."""
        return self.num_heads * self.head_dim

    @property
    def state_size(self) -> int:
        """Columns of the convolution and a matrix per head."""
        return (self.num_taps - 1) * self.num_channels + self.out_columns * self.state_dim

    def run(
        self, ops: HostOps, inputs: Sequence[FloatArray], state: StateLayer, batch: Batch
    ) -> FloatArray:
        """Scan."""
        heads = self.num_heads
        scan = SelectiveScan(
            conv=ops.constant(numbers((self.num_channels * self.num_taps,), 1)),
            conv_bias=ops.constant(numbers((self.num_channels,), 2)) if self.has_bias else None,
            a=ops.constant(-np.exp(numbers((heads,), 3))),
            skip=ops.constant(numbers((heads,), 4)),
            dt_bias=ops.constant(numbers((heads,), 5)),
            norm=ops.constant(numbers((self.out_columns,), 6)),
            eps=1e-5,
            num_taps=self.num_taps,
            num_groups=self.num_groups,
            num_heads=heads,
            head_dim=self.head_dim,
            state_dim=self.state_dim,
        )
        return _host(ops.selective_scan(inputs[0], scan, state, batch))


def _host(x: FloatArray) -> FloatArray:
    return x


CASES: tuple[Case, ...] = (
    ShortCase(3, 200),
    ShortCase(7, 16),
    ShortCase(1, 5),
    DeltaCase(4, 2, 4, 16, 16),
    DeltaCase(4, 1, 3, 128, 64),
    DeltaCase(2, 2, 2, 21, 10),
    ScanCase(4, 2, 6, 16, 32),
    ScanCase(4, 1, 2, 64, 128, has_bias=False),
    ScanCase(2, 3, 3, 5, 21),
)


@dataclass(frozen=True)
class Part:
    """Tokens [first, last) of a text, and the slots of its state."""

    text: int
    first: int
    last: int
    source: int
    target: int


def slots_batch(parts: Sequence[Part]) -> Batch:
    """A batch of these parts, a sequence each."""
    lengths = [part.last - part.first for part in parts]
    sequences = np.repeat(np.arange(len(parts), dtype=np.int32), lengths)
    positions = np.concatenate([np.arange(p.first, p.last, dtype=np.int32) for p in parts])
    return Batch(
        np.zeros_like(positions),
        positions,
        sequences,
        np.zeros((len(parts), 1), np.int32),
        state_sources=np.array([part.source for part in parts], np.int32),
        state_targets=np.array([part.target for part in parts], np.int32),
    )


class StateScene:
    """Texts of LENGTH random tokens, and a layer with slots for their states."""

    def __init__(self, ops: HostOps, case: Case, num_slots: int = 8) -> None:
        """Allocate the slots."""
        self.ops, self.case = ops, case
        (self.state,) = ops.new_state_layers([case.state_size], num_slots)

    def inputs(self, parts: Sequence[Part]) -> list[FloatArray]:
        """Rows of the parts, one array for each input of the operation."""
        return [
            np.concatenate(
                [numbers((LENGTH, width), 50 * p.text + i)[p.first : p.last] for p in parts]
            )
            for i, width in enumerate(self.case.columns)
        ]

    def run(self, parts: Sequence[Part]) -> list[FloatArray]:
        """Compute parts as one step."""
        out = self.case.run(self.ops, self.inputs(parts), self.state, slots_batch(parts))
        ends = np.cumsum([part.last - part.first for part in parts])[:-1]
        return np.split(out, ends)

    def whole(self, text: int = 0) -> FloatArray:
        """Compute all tokens of a text, alone and at once."""
        return self.run([Part(text, 0, LENGTH, -1, 0)])[0]
