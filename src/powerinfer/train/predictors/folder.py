"""The folder of predictors that training writes: PowerInfer's files, and a report beside them.

`model_N.pt` and `config.json` are what PowerInfer's converter and ours read; `predictors.json` says
whose predictors these are, how good they are, and how far the training is.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from powerinfer._files import read_small_file, write_atomically
from powerinfer._replacing import remove_abandoned, replacing
from powerinfer.errors import PowerInferError
from powerinfer.sidecar import Field
from powerinfer.train.predictors.fitting import LayerFigures
from powerinfer.train.predictors.goal import THRESHOLD
from powerinfer.train.predictors.layer_data import HalfArray

__all__ = ["REPORT", "FolderState", "LayerReport", "PredictorFolder"]

REPORT = "predictors.json"

_VERSION = 1
_LARGEST_REPORT = 1 << 24
_MOST = 1 << 20
_STATE = ("tokens", "held_out_tokens", "sparse_threshold", "finished", "layers")


@dataclass(frozen=True, slots=True)
class LayerReport:
    """One layer of the report.

    Attributes:
        active: share of the neurons that fire.
        rank: of the predictor.
        recall: share of those that fire which pass.
        precision: share of those that pass which fire.
        density: share of the neurons that pass.
        ffn_error: relative error of the FFN's output.
    """

    active: float
    rank: int
    recall: float
    precision: float
    density: float
    ffn_error: float

    @classmethod
    def of(cls, rank: int, figures: LayerFigures) -> "LayerReport":
        """Of a layer that was just trained."""
        return cls(
            active=figures.active,
            rank=rank,
            recall=figures.recall,
            precision=figures.precision,
            density=figures.density,
            ffn_error=figures.ffn_error,
        )


@dataclass(frozen=True, slots=True)
class FolderState:
    """What the report says.

    Attributes:
        tokens: of the text.
        held_out_tokens: of these, not trained on.
        layers: that are trained; figures of their training, or of the whole model at the end.
        is_finished: all are, and the model was measured with them.
    """

    tokens: int = 0
    held_out_tokens: int = 0
    layers: tuple[LayerReport, ...] = ()
    is_finished: bool = False


class PredictorFolder:
    """Reads and writes such a folder; each file appears whole or not at all."""

    def __init__(self, path: Path, run: Mapping[str, object]) -> None:
        """Take a folder.

        Args:
            path: of the folder; made when something is written.
            run: everything that decides the predictors, as `predictors.json` shows it: objects of
                numbers and texts.
        """
        self.path = path
        self._run = json.loads(json.dumps(run))

    def read(self) -> FolderState:
        """What an earlier run left; nothing in a new folder.

        Raises:
            PowerInferError: it belongs to another run, or is damaged.
        """
        path = self.path / REPORT
        if not path.exists():
            self._check_is_free()
            return FolderState()
        data = read_small_file(path, _LARGEST_REPORT, noun="report", error=PowerInferError)
        top = Field.parse(data, lambda problem: _damaged(path, problem))
        found = top.exactly("version", *self._run, *_STATE)
        version = found["version"].integer(0, _MOST)
        if version != _VERSION:
            found["version"].fail(f"is {version}; this program reads version {_VERSION}")
        self._check_run(json.loads(data))
        layers = tuple(_layer(item) for item in found["layers"].items())
        return FolderState(
            tokens=found["tokens"].integer(0, 1 << 50),
            held_out_tokens=found["held_out_tokens"].integer(0, 1 << 50),
            layers=layers,
            is_finished=found["finished"].boolean(),
        )

    def _check_is_free(self) -> None:
        if any(self.path.glob("model_*.pt")):
            raise PowerInferError(
                f"{self.path}: holds predictors that this command did not train, which would be "
                "lost",
                remedy="name another folder with {output}",
            )

    def _check_run(self, found: Mapping[str, object]) -> None:
        for part, wanted in self._run.items():
            problem = _difference(found[part], wanted)
            if problem:
                raise PowerInferError(
                    f"{self.path}: belongs to a run with another {part}: {problem}",
                    remedy="go on with the same, or name another folder with {output}",
                )

    def write_layer(self, number: int, fc1: HalfArray, fc2: HalfArray) -> None:
        """Write the predictor of a layer: f16[rank, hidden_size] and f16[num_neurons, rank].

        Raises:
            PowerInferError: it cannot be written.
        """
        matrices = {"fc1.weight": fc1, "fc2.weight": fc2}
        tensors = {
            name: torch.from_numpy(np.array(matrix, np.float16, order="C"))
            for name, matrix in matrices.items()
        }
        path = self.path / f"model_{number}.pt"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PowerInferError(f"{path}: cannot write: {error.strerror or error}") from None
        with replacing(path, error=PowerInferError) as file:
            torch.save(tensors, file)

    def read_layer(self, number: int) -> tuple[HalfArray, HalfArray]:
        """What `write_layer` wrote.

        Raises:
            PowerInferError: the file is missing or damaged.
        """
        path = self.path / f"model_{number}.pt"
        try:
            found = torch.load(path, map_location="cpu", weights_only=True)
            return found["fc1.weight"].numpy(), found["fc2.weight"].numpy()
        except Exception as error:  # noqa: BLE001 - a damaged file may make torch raise anything
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise PowerInferError(
                f"{path}: cannot be read ({reason:.100}); remove {self.path} and train again"
            ) from None

    def write_report(self, state: FolderState) -> None:
        """Write `predictors.json`, and `config.json` where it is missing.

        Raises:
            PowerInferError: they cannot be written.
        """
        if not (self.path / "config.json").exists():
            self._write_json("config.json", {"sparse_threshold": THRESHOLD})
        self._write_json(REPORT, self.report(state))

    def report(self, state: FolderState) -> dict[str, object]:
        """The content of `predictors.json`."""
        return {
            "version": _VERSION,
            **self._run,
            "tokens": state.tokens,
            "held_out_tokens": state.held_out_tokens,
            "sparse_threshold": THRESHOLD,
            "finished": state.is_finished,
            "layers": [asdict(layer) for layer in state.layers],
        }

    def remove_leftovers(self) -> None:
        """Remove temporary files of killed runs."""
        remove_abandoned(self.path)

    def _write_json(self, name: str, value: object) -> None:
        text = json.dumps(value, indent=1, allow_nan=False) + "\n"
        write_atomically(self.path / name, text.encode(), error=PowerInferError)


def _layer(field: Field) -> LayerReport:
    found = field.exactly("active", "rank", "recall", "precision", "density", "ffn_error")
    return LayerReport(
        active=found["active"].number(0, 1),
        rank=found["rank"].integer(1, _MOST),
        recall=found["recall"].number(0, 1),
        precision=found["precision"].number(0, 1),
        density=found["density"].number(0, 1),
        ffn_error=found["ffn_error"].number(0),
    )


def _damaged(path: Path, problem: str) -> PowerInferError:
    return PowerInferError(f"{path}: {problem}; remove the folder to start anew")


def _difference(found: object, wanted: object) -> str:
    """What differs between two parts of a run, but for names; empty if nothing does."""
    if not isinstance(found, dict) or not isinstance(wanted, dict):
        return "" if found == wanted else f"{found!s:.40}, now {wanted!s:.40}"
    for key, value in wanted.items():
        if key not in ("name", "names") and found.get(key) != value:
            return f"{key} {found.get(key)!s:.40}, now {value!s:.40}"
    return ""
