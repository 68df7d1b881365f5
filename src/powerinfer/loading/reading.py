"""How far the computation of prompts is, said step by step or layer by layer."""

from collections.abc import Callable

from powerinfer.models.blocks import Observer, Stage
from powerinfer.values import FloatArray

__all__ = ["PrefillProgress"]


class PrefillProgress:
    """Tells a caller's function how many of the tokens of prompts are computed."""

    def __init__(
        self, progress: Callable[[int, int], None] | None, num_layers: int, *, watches_layers: bool
    ) -> None:
        """Prepare.

        Args:
            progress: called with (tokens computed, tokens in all); None tells nobody.
            num_layers: of the model.
            watches_layers: call it after each layer; else after each step, as watching a layer that
                runs on a GPU takes time, and a step has one observer.
        """
        self._progress = progress
        self._num_layers = num_layers
        self._watches_layers = watches_layers

    def begin(self, start: int, count: int, total: int) -> Observer | None:
        """Say that a step begins; returns what says how far it is, where layers are watched.

        Args:
            start: tokens computed.
            count: tokens of the step.
            total: tokens in all; of a single one nothing is said.
        """
        progress, num_layers = self._progress, self._num_layers
        if progress is None or total == 1:
            return None
        progress(start, total)

        def observe(stage: Stage, layer: int, _stream: FloatArray) -> None:
            if stage is Stage.FFN:
                # All but the last token of it, so that the end comes once, after the output head.
                progress(start + (count * (layer + 1) - 1) // num_layers, total)

        return observe if self._watches_layers else None

    def end(self, total: int) -> None:
        """Say that all tokens are computed."""
        if self._progress is not None and total > 1:
            self._progress(total, total)
