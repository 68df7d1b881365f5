"""The log of a training run: one line of JSON per some steps, consistent after a kill."""

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from powerinfer._files import write_atomically
from powerinfer.errors import PowerInferError
from powerinfer.train.checkpoint import SavedState

__all__ = ["LOG_FILE", "StepFigures", "TrainingLog"]

LOG_FILE = "training.jsonl"


@dataclass(frozen=True)
class StepFigures:
    """The figures of one step.

    Attributes:
        loss: Mean cross entropy of its tokens, in nats.
        zeros: Share of zero neurons in each layer, over some of its tokens.
    """

    step: int
    loss: float
    zeros: list[float]
    tokens_per_s: float


class TrainingLog:
    """Means over every `every` steps, written to `training.jsonl` in a folder."""

    def __init__(self, folder: Path, every: int = 10) -> None:
        self._path, self._every = folder / LOG_FILE, every
        self._since: list[StepFigures] = []

    def add(self, figures: StepFigures, *, is_last: bool) -> None:
        """Note a step; write a line when it is time."""
        self._since.append(figures)
        if figures.step % self._every and not is_last:
            return
        line = json.dumps(_means(self._since)) + "\n"
        self._since = []
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            raise PowerInferError(
                f"{self._path}: cannot write: {error.strerror or error}"
            ) from None

    def state(self) -> list[SavedState]:
        """The steps since the last line, for a checkpoint."""
        return [dict(vars(figures)) for figures in self._since]

    def restore(self, state: list[SavedState], step: int) -> None:
        """Resume after a step: lines that a killed run wrote later are removed."""
        self._since = [StepFigures(**figures) for figures in state]
        lines = self._path.read_bytes().splitlines() if self._path.exists() else []
        kept = [line for line in lines if _step_of(line) <= step]
        if kept != lines:
            data = b"".join(line + b"\n" for line in kept)
            write_atomically(self._path, data, error=PowerInferError)


def _means(steps: list[StepFigures]) -> dict[str, object]:
    count = len(steps)
    zeros = zip(*(figures.zeros for figures in steps), strict=True)
    return {
        "step": steps[-1].step,
        "loss": round(sum(figures.loss for figures in steps) / count, 5),
        "zeros": [round(sum(shares) / count, 5) for shares in zeros],
        "tokens_per_s": round(count / sum(1 / figures.tokens_per_s for figures in steps), 1),
    }


def _step_of(line: bytes) -> float:
    """The step of a line; a line that was cut off comes after everything."""
    with suppress(ValueError, KeyError, TypeError):
        return float(json.loads(line)["step"])
    return float("inf")
