"""Tensors of linear attention: value heads in the order of model files.

In checkpoints, the value heads of a key head follow each other (0 0 1 1 for two key heads of two
value heads each). In model files value head j belongs to key head ``j % num_key_heads`` (0 1 0 1).
"""

from dataclasses import dataclass, replace

from powerinfer.convert.arrange import Target

__all__ = ["ValueHeads", "with_tiled_heads"]

# Number of rows per value head; None for `value_dim`.
_ROWS = {
    "attn_qkv": None,
    "attn_gate": None,
    "ssm_conv1d": None,
    "ssm_alpha": 1,
    "ssm_beta": 1,
    "ssm_a": 1,
    "ssm_dt": 1,
}
# These begin with the rows of queries and keys.
_MIXED = ("attn_qkv", "ssm_conv1d")


@dataclass(frozen=True)
class ValueHeads:
    """Numbers of key and value heads of linear attention, and their widths."""

    num_key_heads: int
    num_heads: int
    key_dim: int
    value_dim: int


def with_tiled_heads(target: Target, heads: ValueHeads) -> Target:
    """Reorder the value heads of a tensor, as a view; others are returned unchanged."""
    parts = target.name.split(".")
    own = parts[2] if len(parts) > 2 else ""
    if own == "ssm_out":
        return _with_tiled_columns(target, heads)
    if own not in _ROWS:
        return target
    start = 2 * heads.num_key_heads * heads.key_dim if own in _MIXED else 0
    width = _ROWS[own] or heads.value_dim
    if target.shape[:1] != (start + heads.num_heads * width,):
        return target
    (piece,) = target.pieces
    grouped = piece.values[start:].reshape(heads.num_key_heads, -1, width, *target.shape[1:])
    pieces = (piece.values[:start], grouped.swapaxes(0, 1))
    kept = tuple(replace(piece, values=values) for values in pieces if values.size)
    return replace(target, pieces=kept)


def _with_tiled_columns(target: Target, heads: ValueHeads) -> Target:
    if target.shape[1:] != (heads.num_heads * heads.value_dim,):
        return target
    (piece,) = target.pieces
    grouped = piece.values.reshape(target.shape[0], heads.num_key_heads, -1, heads.value_dim)
    return replace(target, pieces=(replace(piece, values=grouped.swapaxes(1, 2)),))
