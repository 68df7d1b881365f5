"""Counting which neurons fire, batch by batch of windows."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from powerinfer.calibration.firing import FiringLayer, count_fired, watch_firing
from powerinfer.errors import PowerInferError
from powerinfer.models import Model
from powerinfer.placement.activation_record import ActivationProfile, ActivationRecord, Counted
from powerinfer.train.checkpoint import SavedState, load_checkpoint, save_checkpoint
from powerinfer.train.texts import TokenWindows
from powerinfer.values import IntArray

__all__ = ["ProfileRun", "count_firing"]

# A pass over few tokens is slow, one over many needs memory for each of them.
_BATCH_TOKENS = 2048


def count_firing(model: Model, windows: IntArray) -> npt.NDArray[np.int64]:
    """Count for how many tokens each neuron fires, the first of each window included.

    Args:
        model: on the CPU.
        windows: i32[num_windows, window], token ids; no window sees another.

    Returns:
        i64[num_layers, num_neurons].

    Raises:
        NumericsError: the input of an FFN holds NaN or infinity.
    """
    shape = (model.config.num_layers, model.config.num_neurons)
    counts = np.zeros(shape, np.int64)

    def see(layer: FiringLayer) -> None:
        count_fired(layer.fired, counts[layer.number])

    watch_firing(model, windows, see)
    return counts


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """What is counted so far, and where the next window begins; replaced as one."""

    counts: npt.NDArray[np.int64]
    num_tokens: int
    position: dict[str, object]


class ProfileRun:
    """Counts over texts; stopped at any moment, it goes on from its last checkpoint."""

    def __init__(
        self, model: Model, windows: TokenWindows, counted: Counted, checkpoint: Path
    ) -> None:
        """Begin, or go on where the checkpoint of the same run stands.

        Args:
            model: on the CPU.
            windows: over the texts, of `counted.window` tokens.
            counted: what decides the counts.
            checkpoint: file that `save` writes.

        Raises:
            PowerInferError: the checkpoint is damaged, or that of another run.
        """
        self._model = model
        self._windows = windows
        self._counted = counted
        self._checkpoint = checkpoint
        self._recipe = json.dumps(asdict(counted))
        shape = (model.config.num_layers, model.config.num_neurons)
        self._state = _State(np.zeros(shape, np.int64), 0, windows.position)
        stored = load_checkpoint(checkpoint, self._recipe)
        if stored is not None:
            self._state = _restored(stored, shape, checkpoint)
            windows.restore(self._state.position)
        self._batches = self._read_batches()

    @property
    def num_tokens(self) -> int:
        """Tokens that were counted."""
        return self._state.num_tokens

    @property
    def done_share(self) -> float:
        """How much of the text is counted, or of the tokens that are wanted."""
        share = self._windows.done_bytes / max(1, self._windows.num_bytes)
        limit = self._counted.limit
        return share if limit is None else max(share, self.num_tokens / limit)

    def advance(self) -> bool:
        """Count the next batch; False where there is none.

        Raises:
            NumericsError: the model produced NaN or infinity.
            PowerInferError: a text cannot be read, or all have no whole window.
        """
        batch = next(self._batches, None)
        if batch is None:
            return False
        position = self._windows.position
        counts = self._state.counts + count_firing(self._model, batch)
        # At once: whatever interrupts this, counts and position belong together.
        self._state = _State(counts, self._state.num_tokens + batch.size, position)
        return True

    def save(self) -> None:
        """Write the checkpoint.

        Raises:
            PowerInferError: it cannot be written; the older one stays.
        """
        state = self._state
        save_checkpoint(
            self._checkpoint,
            self._recipe,
            {
                "counts": torch.from_numpy(state.counts),
                "num_tokens": state.num_tokens,
                "position": state.position,
            },
        )

    def profile(self, texts: tuple[str, ...]) -> ActivationProfile:
        """What was counted.

        Args:
            texts: names of the texts.
        """
        config = self._model.config
        record = ActivationRecord(
            counted=self._counted,
            texts=texts,
            num_tokens=self.num_tokens,
            num_neurons=config.num_neurons,
            num_experts=max(1, config.num_experts),
            fired=tuple(int(layer.sum()) for layer in self._state.counts),
        )
        return ActivationProfile(record, self._state.counts)

    def _read_batches(self) -> Iterator[IntArray]:
        """i32[at most so many windows, window]."""
        window, limit = self._counted.window, self._counted.limit
        left = None if limit is None else (limit - self.num_tokens) // window
        windows = islice(self._windows, left)
        while batch := list(islice(windows, max(1, _BATCH_TOKENS // window))):
            yield np.stack(batch)


def _restored(stored: SavedState, shape: tuple[int, int], path: Path) -> _State:
    """The state of a checkpoint.

    Raises:
        PowerInferError: it does not hold what `save` writes.
    """
    try:
        counts = stored["counts"].numpy()
        num_tokens, position = stored["num_tokens"], stored["position"]
        is_state = counts.shape == shape and counts.dtype == np.int64
        is_state = is_state and isinstance(num_tokens, int) and isinstance(position, dict)
    except (KeyError, AttributeError, TypeError):
        is_state = False
    if not is_state:
        raise PowerInferError(f"{path}: is no checkpoint of a profile; remove it to start anew")
    return _State(counts, num_tokens, position)
