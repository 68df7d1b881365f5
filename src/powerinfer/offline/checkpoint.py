"""Saving a training run so that it continues exactly, and never from a half-written file."""

import ctypes
from pathlib import Path
from typing import Any

import torch

from powerinfer.errors import PowerInferError


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write ``state`` and torch's random state to ``path``, atomically."""
    temporary = path.with_suffix(".tmp")
    torch.save({**state, "random": torch.get_rng_state()}, temporary)
    temporary.replace(path)


def load_checkpoint(path: Path, recipe: str) -> dict[str, Any] | None:
    """Read the state at ``path`` and restore torch's random state; None if there is no file.

    Raises:
        PowerInferError: The file belongs to a run with another recipe.
    """
    if not path.exists():
        return None
    state: dict[str, Any] = torch.load(path, weights_only=True)
    if state["recipe"] != recipe:
        raise PowerInferError(
            f"{path} belongs to a run with another recipe; continue with the same options, "
            "or choose another --out folder"
        )
    torch.set_rng_state(state.pop("random"))
    return state


def keep_freed_memory() -> None:
    """Tell glibc to reuse large freed blocks; other C libraries are left as they are.

    A training step frees and allocates the same tens of megabytes again and again. By default every
    such block goes back to the kernel and is cleared when it is touched anew, a third of the step.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return
    trim_threshold, mmap_threshold, ceiling = -1, -3, 1 << 30
    mallopt(mmap_threshold, ceiling)
    mallopt(trim_threshold, (1 << 31) - 1)
