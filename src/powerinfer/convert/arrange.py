"""Arrangement of a checkpoint's tensors as those of a model file, as views without copies."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from powerinfer.convert.checkpoint import CheckpointTensor
from powerinfer.convert.naming import Place
from powerinfer.errors import CheckpointError
from powerinfer.models import Architecture
from powerinfer.values import FloatArray

__all__ = ["Change", "Heads", "Piece", "Target", "arrange", "mxfp4", "stacked"]

Array: TypeAlias = npt.NDArray[np.generic]
Change: TypeAlias = Callable[[FloatArray], FloatArray]

_MXFP4_BLOCK = 32
_MXFP4_BYTES = 16
# Convolutions of single channels, which checkpoints store as [channels, 1, taps].
_KERNELS = ("conv", "ssm_conv1d")


@dataclass(frozen=True)
class Heads:
    """Numbers of query and key heads, and their width."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, eq=False)
class Piece:
    """Part of a tensor to write.

    Attributes:
        values: numbers; for MXFP4 blocks u8[..., num_blocks, 16].
        scales: scales of MXFP4 blocks, u8[..., num_blocks]; None for plain numbers.
    """

    source: CheckpointTensor
    values: Array
    scales: Array | None = None


@dataclass(frozen=True, eq=False)
class Target:
    """A tensor to write: the numbers of its pieces in C order, concatenated.

    Attributes:
        change: function of the numbers, one by one; None writes them as they are.
    """

    name: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]
    change: Change | None = None

    @property
    def is_mxfp4(self) -> bool:
        """The pieces are blocks already."""
        return self.pieces[0].scales is not None

    @property
    def sources(self) -> str:
        """The checkpoint's tensors, for messages."""
        more = f" and {len(self.pieces) - 1} more" if len(self.pieces) > 1 else ""
        return f"{self.pieces[0].source}{more}"


def stacked(place: Place, tensors: dict[int | None, CheckpointTensor], num_experts: int) -> Target:
    """Stack the tensors of a place by expert; the key None means one tensor of all experts."""
    name = f"{place.name}.{place.part}"
    if None in tensors:
        if len(tensors) > 1:
            raise CheckpointError(
                f"{tensors[None]}: exists for all experts together and for single ones"
            )
        whole = tensors[None]
        return Target(name, whole.shape, (Piece(whole, whole.values),))
    experts = [tensors.get(number) for number in range(num_experts)]
    first = next(iter(tensors.values()))
    if None in experts or len(tensors) != num_experts:
        missing = f"; that of expert {experts.index(None)} is missing" if None in experts else ""
        raise CheckpointError(
            f"{first}: {len(tensors)} experts have such a tensor, the configuration says "
            f"{num_experts}{missing}"
        )
    found = [each for each in experts if each is not None]
    for each in found:
        if (each.shape, each.format) != (first.shape, first.format):
            raise CheckpointError(
                f"{each}: is {each.format} {list(each.shape)}, that of another expert "
                f"{first.format} {list(first.shape)}"
            )
    shape = (num_experts, *first.shape)
    return Target(name, shape, tuple(Piece(each, each.values) for each in found))


def arrange(
    targets: Iterable[Target], architecture: Architecture, heads: Heads, *, is_down_transposed: bool
) -> Iterator[Target]:
    """Reorder rows and split fused tensors as model files need them.

    A tensor of an unexpected shape is passed on unchanged; shapes are checked later.
    """
    rules = architecture.checkpoint
    is_interleaved = architecture.is_rope_interleaved and architecture.position_offset is None
    for target in targets:
        for part in _split(target, architecture):
            module, _, kind = part.name.rpartition(".")
            own = module.rpartition(".")[2]
            if own in ("attn_q", "attn_k") and is_interleaved:
                yield _interleaved(part, heads.head_dim)
            elif own == "attn_qkv" and rules.is_qkv_grouped:
                yield _ungrouped(part, heads)
            elif own.startswith("ffn_down") and is_down_transposed:
                renamed = replace(part, name=f"{module}_t.{kind}")
                yield _transposed(renamed) if kind == "weight" else renamed
            elif own in _KERNELS and len(part.shape) == 3:
                yield _squeezed(part)
            elif own == "ssm_a":
                # Files have the factor of the time step, under a name without a part.
                yield replace(part, name=module, change=_negative_exp)
            elif own == "scale":
                yield replace(part, name=module)
            elif own.endswith(("norm", "norm_2")) and kind == "weight" and own != "ssm_norm":
                yield replace(part, change=_plus_one if rules.adds_one_to_norms else None)
            else:
                yield part


def _split(target: Target, architecture: Architecture) -> Iterator[Target]:
    """Split fused gate and up, and transpose matrices stored by columns."""
    matrices = architecture.checkpoint.expert_matrices
    is_weight = target.name.endswith(".weight")
    is_of_all = len(target.shape) == 3 and len(target.pieces) == 1
    if matrices.is_transposed and is_of_all and is_weight and not target.is_mxfp4:
        target = _transposed(target)
    if ".ffn_gate_up" not in target.name:
        yield target
        return
    axis = len(target.shape) - (2 if is_weight else 1)
    size = target.shape[axis] // 2
    shape = (*target.shape[:axis], size, *target.shape[axis + 1 :])
    for number, name in enumerate(("ffn_gate", "ffn_up")):
        rows = slice(number, None, 2)
        if not matrices.is_interleaved:
            rows = slice(number * size, (number + 1) * size)
        index = (*(slice(None),) * (axis), rows)
        pieces = tuple(
            replace(
                piece,
                values=piece.values[index],
                scales=None if piece.scales is None else piece.scales[index],
            )
            for piece in target.pieces
        )
        yield Target(target.name.replace("ffn_gate_up", name), shape, pieces)


def _transposed(target: Target) -> Target:
    if len(target.shape) < 2:
        return target
    shape = (*target.shape[:-2], target.shape[-1], target.shape[-2])
    pieces = tuple(replace(each, values=each.values.swapaxes(-1, -2)) for each in target.pieces)
    return replace(target, shape=shape, pieces=pieces)


def _squeezed(target: Target) -> Target:
    """Drop a middle dimension of 1."""
    if target.shape[1] != 1:
        return target
    pieces = tuple(replace(each, values=each.values[:, 0]) for each in target.pieces)
    return replace(target, shape=(target.shape[0], target.shape[2]), pieces=pieces)


def _plus_one(values: FloatArray) -> FloatArray:
    return values + np.float32(1.0)


def _negative_exp(values: FloatArray) -> FloatArray:
    with np.errstate(over="ignore"):  # the result is checked
        return -np.exp(values)


def _interleaved(target: Target, head_dim: int) -> Target:
    """Interleave rows i and i + head_dim / 2 of each head."""
    if not target.shape or target.shape[0] % head_dim or head_dim % 2:
        return target
    (piece,) = target.pieces
    halves = piece.values.reshape(-1, 2, head_dim // 2, *target.shape[1:])
    return replace(target, pieces=(replace(piece, values=halves.swapaxes(1, 2)),))


def _ungrouped(target: Target, heads: Heads) -> Target:
    """Regroup rows as all queries, all keys, all values."""
    rows = (heads.num_heads + 2 * heads.num_kv_heads) * heads.head_dim
    if not target.shape or target.shape[0] != rows:
        return target
    (piece,) = target.pieces
    groups = piece.values.reshape(heads.num_kv_heads, -1, heads.head_dim, *target.shape[1:])
    parts = (groups[:, :-2], groups[:, -2], groups[:, -1])
    return replace(target, pieces=tuple(replace(piece, values=part) for part in parts))


def mxfp4(name: str, blocks: CheckpointTensor, scales: CheckpointTensor) -> Target:
    """Combine MXFP4 experts as gpt-oss is published: blocks of 16 bytes, and their scales."""
    wanted = (*scales.shape, _MXFP4_BYTES)
    if (blocks.format, scales.format) != ("u8", "u8") or blocks.shape != wanted:
        raise CheckpointError(
            f"{blocks}: is {blocks.format} {list(blocks.shape)} with scales of "
            f"{scales.format} {list(scales.shape)}; expected u8 {list(wanted)} with u8"
        )
    shape = (*scales.shape[:-1], scales.shape[-1] * _MXFP4_BLOCK)
    return Target(name, shape, (Piece(blocks, blocks.values, scales.values),))
