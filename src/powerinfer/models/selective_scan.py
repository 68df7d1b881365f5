"""The mixer of Mamba-2: its sizes, its tensors and its weights."""

from dataclasses import dataclass
from typing import ClassVar

from powerinfer.gguf import Tensor, keys
from powerinfer.models.metadata import Metadata
from powerinfer.models.mixers import MAX_TAPS, StateMixer, StateMixerWeights
from powerinfer.models.tensors.preparer import Preparer
from powerinfer.models.tensors.tensor_lookup import Section
from powerinfer.ops.backend import (
    Activations,
    Backend,
    SomeLinear,
    SomeSelectiveScan,
    StateLayer,
    Vector,
)
from powerinfer.ops.protocol import SelectiveScan
from powerinfer.values import Batch

__all__ = ["SelectiveScanMixer", "SelectiveScanWeights", "read_selective_scan"]

# Far above any published model (256 heads, states of 256).
_MAX_HEADS, _MAX_STATE = 1 << 12, 1 << 12


@dataclass(frozen=True, slots=True)
class SelectiveScanMixer(StateMixer):
    """Selective scan (Mamba-2).

    Attributes:
        num_groups: groups of heads, each with its own b and c.
        eps: see `SelectiveScan`.
    """

    num_groups: int
    num_heads: int
    head_dim: int
    state_dim: int
    num_taps: int
    eps: float

    @property
    def state_size(self) -> int:
        """Columns of the convolution's input that the next token sees, and a matrix per head."""
        return (self.num_taps - 1) * self._num_channels + self._num_inner * self.state_dim

    @property
    def _num_inner(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def _num_channels(self) -> int:
        return self._num_inner + 2 * self.num_groups * self.state_dim

    def find(self, block: Section, hidden_size: int) -> None:
        """Add both projections, the kernel, and the vectors of the scan."""
        inner, channels = self._num_inner, self._num_channels
        block.linear("ssm_in", (inner + channels + self.num_heads, hidden_size))
        block.need("ssm_conv1d.weight", (channels, self.num_taps))
        block.take("ssm_conv1d.bias", (channels,))
        block.need("ssm_dt.bias", (self.num_heads,))
        block.need("ssm_a", (self.num_heads, 1))
        block.need("ssm_d", (self.num_heads, 1))
        block.need("ssm_norm.weight", (self.num_groups, inner // self.num_groups))
        block.linear("ssm_out", (hidden_size, inner))

    def prepare(self, prepare: Preparer, tensors: dict[str, Tensor]) -> StateMixerWeights:
        """Prepare them."""
        bias = tensors.get("ssm_conv1d.bias")
        scan = SelectiveScan(
            conv=prepare.flat_vector(tensors["ssm_conv1d.weight"]),
            conv_bias=None if bias is None else prepare.vector(bias),
            a=prepare.flat_vector(tensors["ssm_a"]),
            skip=prepare.flat_vector(tensors["ssm_d"]),
            dt_bias=prepare.vector(tensors["ssm_dt.bias"]),
            norm=prepare.flat_vector(tensors["ssm_norm.weight"]),
            eps=self.eps,
            num_taps=self.num_taps,
            num_groups=self.num_groups,
            num_heads=self.num_heads,
            head_dim=self.head_dim,
            state_dim=self.state_dim,
        )
        first, last = (prepare.linear(tensors, name) for name in ("ssm_in", "ssm_out"))
        return SelectiveScanWeights(first, last, scan)


@dataclass(frozen=True, slots=True)
class SelectiveScanWeights(StateMixerWeights):
    """Weights of a selective scan.

    Attributes:
        input: [num_inner + num_channels + num_heads, hidden_size], rows of z, x, b, c and dt.
        output: [hidden_size, num_inner].
    """

    input_names: ClassVar[tuple[str, ...]] = ("ssm_in",)
    output_name: ClassVar[str] = "ssm_out"

    input: SomeLinear
    output: SomeLinear
    scan: SomeSelectiveScan

    @property
    def linears(self) -> tuple[SomeLinear, ...]:
        """Both projections."""
        return self.input, self.output

    @property
    def vectors(self) -> list[Vector]:
        """Those of the scan."""
        scan = self.scan
        bias = [] if scan.conv_bias is None else [scan.conv_bias]
        return [scan.conv, *bias, scan.a, scan.skip, scan.dt_bias, scan.norm]

    def mix(self, ops: Backend, x: Activations, state: StateLayer, batch: Batch) -> Activations:
        """Project, then scan: f32[num_tokens, num_inner]."""
        (projected,) = ops.linear(x, (self.input,), batch.is_prompt)
        return ops.selective_scan(projected, self.scan, state, batch)


def read_selective_scan(metadata: Metadata) -> SelectiveScanMixer:
    """Read the sizes of a file's selective scans, which all layers share.

    Raises:
        GGUFError: a key is missing, out of range or contradicts another.
    """
    groups = metadata.integer(keys.SSM_GROUP_COUNT, high=_MAX_HEADS)
    heads = metadata.integer(keys.SSM_TIME_STEP_RANK, high=_MAX_HEADS)
    inner = metadata.integer(keys.SSM_INNER_SIZE, high=1 << 20)
    if heads % groups:
        raise metadata.error(
            metadata.key(keys.SSM_TIME_STEP_RANK),
            f"is {heads}; expected a multiple of the {groups} groups",
        )
    if inner % heads:
        raise metadata.error(
            metadata.key(keys.SSM_INNER_SIZE), f"is {inner}; expected a multiple of {heads} heads"
        )
    return SelectiveScanMixer(
        groups,
        heads,
        inner // heads,
        metadata.integer(keys.SSM_STATE_SIZE, high=_MAX_STATE),
        metadata.integer(keys.SSM_CONV_KERNEL, low=2, high=MAX_TAPS),
        metadata.number(metadata.rms_epsilon, high=1.0),
    )
