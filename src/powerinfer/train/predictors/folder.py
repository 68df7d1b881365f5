"""The folder of predictors that training writes: PowerInfer's files, and a report next to them.

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
from powerinfer._replacing import make_folder_of
from powerinfer.errors import PowerInferError
from powerinfer.sidecar import Field
from powerinfer.train.checkpoint import first_line, write_torch_file
from powerinfer.train.predictors.fitting import LayerFigures
from powerinfer.train.predictors.goal import THRESHOLD
from powerinfer.train.predictors.layer_data import HalfArray

__all__ = ["REPORT", "FolderState", "LayerReport", "PredictorFolder"]

REPORT = "predictors.json"

_VERSION = 1
_LARGEST_REPORT = 1 << 24
_MOST = 1 << 20
_SHARES = ("active", "recall", "precision", "density")
_STATE = ("tokens", "held_out_tokens", "sparse_threshold", "finished", "layers")


@dataclass(frozen=True, slots=True)
class LayerReport:
    """One layer of the report; its figures are those of `LayerFigures`."""

    active: float
    rank: int
    recall: float
    precision: float
    density: float
    ffn_error: float

    @classmethod
    def of(cls, rank: int, figures: LayerFigures) -> "LayerReport":
        """Report a layer that was just trained."""
        shown = {name: getattr(figures, name) for name in (*_SHARES, "ffn_error")}
        return cls(rank=rank, **shown)


@dataclass(frozen=True, slots=True)
class FolderState:
    """The variable part of the report.

    Attributes:
        layers: the trained ones; figures of their training, or of the whole model at the end.
        is_finished: all are trained, and the model was measured with them.
    """

    tokens: int = 0
    held_out_tokens: int = 0
    layers: tuple[LayerReport, ...] = ()
    is_finished: bool = False


class PredictorFolder:
    """Reads and writes such a folder; each file appears whole or not at all."""

    def __init__(self, path: Path, run: Mapping[str, object]) -> None:
        """Take a folder, made on the first write, and everything that decides the predictors.

        `run` has objects of numbers and texts, as `predictors.json` shows them.
        """
        self.path = path
        self._run = json.loads(json.dumps(run))

    def read(self) -> FolderState:
        """The state that an earlier run left; an empty one in a new folder."""
        path = self.path / REPORT
        if not path.exists():
            self._check_is_free()
            return FolderState()
        data = read_small_file(path, _LARGEST_REPORT, noun="report", error=PowerInferError)
        top = Field.parse(
            data,
            lambda problem: PowerInferError(f"{path}: {problem}; remove the folder to start again"),
        )
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
        """Write the predictor of a layer: f16[rank, hidden_size] and f16[num_neurons, rank]."""
        matrices = {"fc1.weight": fc1, "fc2.weight": fc2}
        tensors = {
            name: torch.from_numpy(np.array(matrix, np.float16, order="C"))
            for name, matrix in matrices.items()
        }
        path = self.path / f"model_{number}.pt"
        make_folder_of(path, error=PowerInferError)
        write_torch_file(path, tensors)

    def read_layer(self, number: int) -> tuple[HalfArray, HalfArray]:
        """Read what `write_layer` wrote."""
        path = self.path / f"model_{number}.pt"
        try:
            found = torch.load(path, map_location="cpu", weights_only=True)
            return found["fc1.weight"].numpy(), found["fc2.weight"].numpy()
        except Exception as error:  # noqa: BLE001 - a damaged file may make torch raise anything
            raise PowerInferError(
                f"{path}: cannot be read ({first_line(error):.100}); remove {self.path} and train "
                "again"
            ) from None

    def write_report(self, state: FolderState) -> None:
        """Write `predictors.json`, and `config.json` where it is missing."""
        if not (self.path / "config.json").exists():
            self._write_json("config.json", {"sparse_threshold": THRESHOLD})
        self._write_json(REPORT, self.report(state))

    def report(self, state: FolderState) -> dict[str, object]:
        """Content of `predictors.json`."""
        return {
            "version": _VERSION,
            **self._run,
            "tokens": state.tokens,
            "held_out_tokens": state.held_out_tokens,
            "sparse_threshold": THRESHOLD,
            "finished": state.is_finished,
            "layers": [asdict(layer) for layer in state.layers],
        }

    def _write_json(self, name: str, value: object) -> None:
        text = json.dumps(value, indent=1, allow_nan=False) + "\n"
        write_atomically(self.path / name, text.encode(), error=PowerInferError)


def _layer(field: Field) -> LayerReport:
    found = field.exactly("rank", "ffn_error", *_SHARES)
    return LayerReport(
        rank=found["rank"].integer(1, _MOST),
        ffn_error=found["ffn_error"].number(0),
        **{name: found[name].number(0, 1) for name in _SHARES},
    )


def _difference(found: object, wanted: object) -> str:
    """The first difference between two parts of a run, names apart; empty if there is none."""
    if not isinstance(found, dict) or not isinstance(wanted, dict):
        return "" if found == wanted else f"{found!s:.40}, now {wanted!s:.40}"
    for key, value in wanted.items():
        if key not in ("name", "names") and found.get(key) != value:
            return f"{key} {found.get(key)!s:.40}, now {value!s:.40}"
    return ""
