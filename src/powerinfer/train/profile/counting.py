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
from powerinfer.calibration.window_pass import batch_size, batches
from powerinfer.errors import PowerInferError
from powerinfer.models import Model
from powerinfer.models.sparsity import layers_to_count
from powerinfer.placement.activation_record import ActivationProfile, ActivationRecord, Counted
from powerinfer.train.checkpoint import SavedState, load_checkpoint, save_checkpoint
from powerinfer.train.token_windows import TokenWindows
from powerinfer.values import IntArray

__all__ = ["ProfileRun", "count_firing"]


def count_firing(model: Model, windows: IntArray) -> npt.NDArray[np.int64]:
    """Count the tokens for which each neuron fires: i64[num_layers, num_neurons].

    The layers are those of `ModelConfig.counted_layers`. The first token of each window counts too.
    The model runs on the CPU.
    """
    places = {number: place for place, number in enumerate(layers_to_count(model.config))}
    counts = np.zeros((len(places), model.config.num_neurons), np.int64)

    def see(layer: FiringLayer) -> None:
        if layer.number in places:
            count_fired(layer.fired, counts[places[layer.number]])

    watch_firing(model, windows, see)
    return counts


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """The counts so far, and where the next window begins; replaced as one."""

    counts: npt.NDArray[np.int64]
    num_tokens: int
    position: dict[str, object]


class ProfileRun:
    """Counts over texts; a run stopped at any moment resumes from its last checkpoint."""

    def __init__(
        self, model: Model, windows: TokenWindows, counted: Counted, checkpoint: Path
    ) -> None:
        """Begin, or resume from the checkpoint of a run with the same `counted`."""
        self._model = model
        self._windows = windows
        self._counted = counted
        self._checkpoint = checkpoint
        self._recipe = json.dumps(asdict(counted))
        shape = (len(layers_to_count(model.config)), model.config.num_neurons)
        self._state = _State(np.zeros(shape, np.int64), 0, windows.position)
        stored = load_checkpoint(checkpoint, self._recipe)
        if stored is not None:
            self._state = _restored(stored, shape, checkpoint)
            windows.restore(self._state.position)
        self._batches = self._read_batches()

    @property
    def num_tokens(self) -> int:
        """Tokens counted so far."""
        return self._state.num_tokens

    @property
    def done_share(self) -> float:
        """Share of the text, or of the tokens that are wanted, that is counted."""
        share = self._windows.done_bytes / max(1, self._windows.num_bytes)
        limit = self._counted.limit
        return share if limit is None else max(share, self.num_tokens / limit)

    def advance(self) -> bool:
        """Count the next batch; False if there is none."""
        batch = next(self._batches, None)
        if batch is None:
            return False
        position = self._windows.position
        counts = self._state.counts + count_firing(self._model, batch)
        # At once: whatever interrupts this, counts and position belong together.
        self._state = _State(counts, self._state.num_tokens + batch.size, position)
        return True

    def save(self) -> None:
        """Write the checkpoint."""
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
        """The counts so far, with the names of the texts."""
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
        """The batches i32[num_windows, window] that are left."""
        window, limit = self._counted.window, self._counted.limit
        left = None if limit is None else (limit - self.num_tokens) // window
        return batches(islice(self._windows, left), batch_size(window))


def _restored(stored: SavedState, shape: tuple[int, int], path: Path) -> _State:
    """The state of a checkpoint."""
    try:
        counts = stored["counts"].numpy()
        num_tokens, position = stored["num_tokens"], stored["position"]
        is_state = counts.shape == shape and counts.dtype == np.int64
        is_state = is_state and isinstance(num_tokens, int) and isinstance(position, dict)
    except (KeyError, AttributeError, TypeError):
        is_state = False
    if not is_state:
        raise PowerInferError(f"{path}: is no checkpoint of a profile; remove it to start again")
    return _State(counts, num_tokens, position)
