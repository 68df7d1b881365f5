"""Progress of prefill, reported after each step or each layer."""

from collections.abc import Callable

from powerinfer.models.blocks import Observer, Stage
from powerinfer.values import FloatArray

__all__ = ["PrefillProgress"]


class PrefillProgress:
    """Reports to a caller's function how many prompt tokens are computed."""

    def __init__(
        self, progress: Callable[[int, int], None] | None, num_layers: int, *, watches_layers: bool
    ) -> None:
        """Prepare reports.

        Args:
            progress: called with (tokens computed, tokens in all); None reports nothing.
            num_layers: number of layers of the model.
            watches_layers: report after each layer; else after each step, as watching a layer that
                runs on a GPU takes time, and a step has one observer.
        """
        self._progress = progress
        self._num_layers = num_layers
        self._watches_layers = watches_layers

    def begin(self, start: int, count: int, total: int) -> Observer | None:
        """Report the beginning of a step; return an observer for it if layers are watched.

        Args:
            start: number of tokens computed before.
            count: number of tokens of the step.
            total: number of tokens in all; a single one is not reported.
        """
        progress, num_layers = self._progress, self._num_layers
        if progress is None or total == 1:
            return None
        progress(start, total)

        def observe(stage: Stage, layer: int, _stream: FloatArray) -> None:
            if stage is Stage.FFN:
                # Without the last token, so that the end is reported once, after the output head.
                progress(start + (count * (layer + 1) - 1) // num_layers, total)

        return observe if self._watches_layers else None

    def end(self, total: int) -> None:
        """Report that all tokens are computed."""
        if self._progress is not None and total > 1:
            self._progress(total, total)
