"""Saving a training run so that it continues exactly, and never from a half-written file."""

import ctypes
from pathlib import Path
from typing import TypedDict

import torch
from torch import Tensor

from powerinfer.errors import PowerInferError


class RunState(TypedDict):
    """What a training run continues from.

    Attributes:
        recipe: text of the recipe, by which a run is known.
        model: torch's state of the model.
        optimizers: torch's state of each optimizer.
        mixture: place in every stream of text: epoch and offset.
        step: optimizer steps made.
        seconds: time spent in them.
    """

    recipe: str
    model: dict[str, Tensor]
    optimizers: list[dict[str, object]]
    mixture: dict[str, tuple[int, int]]
    step: int
    seconds: float


class _Checkpoint(RunState):
    """What is in the file: torch's random state too."""

    random: Tensor


def save_checkpoint(path: Path, state: RunState) -> None:
    """Write ``state`` and torch's random state to ``path``, atomically."""
    temporary = path.with_suffix(".tmp")
    checkpoint: _Checkpoint = {**state, "random": torch.get_rng_state()}
    torch.save(checkpoint, temporary)
    temporary.replace(path)


def load_checkpoint(path: Path, recipe: str) -> RunState | None:
    """Read the state at ``path`` and restore torch's random state; None if there is no file.

    Raises:
        PowerInferError: The file belongs to a run with another recipe.
    """
    if not path.exists():
        return None
    state: _Checkpoint = torch.load(path, weights_only=True)
    if state["recipe"] != recipe:
        raise PowerInferError(
            f"{path} belongs to a run with another recipe; continue with the same options, "
            "or choose another --out folder"
        )
    torch.set_rng_state(state["random"])
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
