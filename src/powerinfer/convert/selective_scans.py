"""Tensors of selective scans in the shapes of model files."""

from dataclasses import replace

from powerinfer.convert.arrange import Target

__all__ = ["with_scan_shapes"]

# Parameters, whose names have no part in model files.
_COLUMNS = ("ssm_a", "ssm_d")


def with_scan_shapes(target: Target, num_groups: int) -> Target:
    """Make vectors of heads a column, norms a row per group; others are returned unchanged."""
    parts = target.name.split(".")
    own = parts[2] if len(parts) > 2 else ""
    if len(target.shape) != 1:
        return target
    (size,) = target.shape
    if own in _COLUMNS:
        return replace(target, name=".".join(parts[:3]), shape=(size, 1))
    if own == "ssm_norm" and size % num_groups == 0:
        return replace(target, shape=(num_groups, size // num_groups))
    return target
