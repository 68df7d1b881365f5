"""Calibrations as JSON: what `MODEL.calibration.json` holds, written and read strictly.

A file is input from outside: every field is checked for its type, length and range, and an error
names the field.
"""

import json
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from powerinfer.errors import CalibrationError, UnsupportedError
from powerinfer.predictors.build import LayerChoice
from powerinfer.predictors.calibration import (
    Calibration,
    Curve,
    CurvePoint,
    Dial,
    LayerCalibration,
)
from powerinfer.predictors.kind import parse_kind
from powerinfer.values import FloatArray

__all__ = ["calibration_from_json", "calibration_to_json"]

VERSION = 1
EXACT = "exact"

_POINT_FIELDS = ("density", "recall", "precision", "ffn_error", "time", "ffn_error_high")
_LARGEST_COUNT = 1 << 40
_UNKNOWN_SPREAD = 1.5
# Thresholds are compared in f32.
_LARGEST_THRESHOLD = 3e38


def calibration_to_json(calibration: Calibration) -> str:
    """One line of JSON."""
    value = {
        "version": VERSION,
        "model": calibration.model_identity,
        "activation": calibration.activation,
        "text": {"name": calibration.text_name, "tokens": calibration.num_tokens},
        "dial": _dial_to_json(calibration.dial),
        "layers": [_layer_to_json(layer) for layer in calibration.layers],
    }
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def calibration_from_json(text: str | bytes, where: str) -> Calibration:
    """Read and check.

    Args:
        text: what `calibration_to_json` made.
        where: names the file in messages.

    Raises:
        CalibrationError: anything in it is not as it must be; names the field.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _error(where, f"it is not JSON ({error})") from None
    top = _Field(value, "", where)
    version = top["version"].integer(0)
    if version != VERSION:
        top["version"].fail(f"is {version}; this program reads version {VERSION}")
    layers = top["layers"].items()
    if not layers:
        top["layers"].fail("is empty")
    num_tokens = top["text"]["tokens"].integer(1)
    return Calibration(
        model_identity=top["model"].string(),
        activation=top["activation"].string(),
        text_name=top["text"]["name"].string(),
        num_tokens=num_tokens,
        dial=_dial_from_json(top["dial"]),
        layers=tuple(_layer_from_json(layer, num_tokens) for layer in layers),
    )


def _error(where: str, problem: str) -> CalibrationError:
    return CalibrationError(
        f"{where}: the calibration cannot be used: {problem}; remove it, or run "
        "`powerinfer calibrate` again"
    )


class _Field:
    """A value of the file with its place in it."""

    def __init__(self, value: Any, name: str, where: str) -> None:
        self._value = value
        self._name = name
        self._where = where

    def __getitem__(self, key: str) -> "_Field":
        fields = self.mapping()
        if key not in fields:
            self.fail(f"has no field {key!r}")
        return fields[key]

    def fail(self, problem: str) -> NoReturn:
        raise _error(self._where, f"{self._name or 'the file'} {problem}")

    def renamed(self, key: str) -> "_Field":
        """The key of this field as a value of its own."""
        return _Field(key, self._name, self._where)

    def mapping(self) -> dict[str, "_Field"]:
        if not isinstance(self._value, dict):
            self.fail("is not an object")
        prefix = f"{self._name}." if self._name else ""
        return {
            key: _Field(item, f"{prefix}{key:.60}", self._where)
            for key, item in self._value.items()
        }

    def items(self) -> list["_Field"]:
        if not isinstance(self._value, list):
            self.fail("is not a list")
        return [
            _Field(item, f"{self._name}[{index}]", self._where)
            for index, item in enumerate(self._value)
        ]

    def string(self) -> str:
        if not isinstance(self._value, str):
            self.fail("is not a text")
        return self._value

    def integer(self, minimum: int) -> int:
        value = self._value
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail("is not a whole number")
        if not minimum <= value <= _LARGEST_COUNT:
            self.fail(f"must be from {minimum} to {_LARGEST_COUNT}")
        return value

    def number(self, minimum: float = -math.inf, maximum: float = math.inf) -> float:
        value = self._value
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fail("is not a number")
        # Whole numbers of any length are legal JSON.
        if not abs(value) < 1e300 or not minimum <= value <= maximum:
            self.fail(f"must be a finite number from {minimum:g} to {maximum:g}")
        return float(value)

    def numbers(self, minimum: float, maximum: float) -> npt.NDArray[np.float64]:
        """A list of numbers as f64[n]; checked together, since there may be many."""
        value = self._value
        if not isinstance(value, list) or not value:
            self.fail("is not a list of numbers")
        if not all(type(item) in (int, float) and abs(item) < 1e300 for item in value):
            self.fail("holds something that is not a finite number")
        numbers = np.array(value, np.float64)
        if numbers.min() < minimum or numbers.max() > maximum:
            self.fail(f"must hold numbers from {minimum:g} to {maximum:g}")
        return numbers

    def kind(self) -> str:
        """Name of a kind that has thresholds, or `exact`: nothing else is calibrated."""
        name = self.string()
        try:
            parts = parse_kind(name)
        except UnsupportedError as error:
            self.fail(f"names no predictor kind: {error}")
        if parts[0].kind.scorer is None and name != EXACT:
            self.fail(f"is {name:.60}, which is nothing that a calibration chooses")
        return name


def _dial_to_json(dial: Dial) -> dict[str, float]:
    if dial.recall is not None:
        return {"recall": dial.recall}
    return {} if dial.max_ffn_error is None else {"max_ffn_error": dial.max_ffn_error}


def _dial_from_json(field: _Field) -> Dial:
    fields = field.mapping()
    if len(fields) != 1 or next(iter(fields)) not in ("max_ffn_error", "recall"):
        field.fail("must have either max_ffn_error or recall")
    ((name, value),) = fields.items()
    return Dial(**{name: value.number(0.0, 1.0)})


def _layer_to_json(layer: LayerCalibration) -> dict[str, Any]:
    return {
        "active": layer.num_active.tolist(),
        "mean": _short(layer.mean),
        "variance": _short(layer.variance),
        "curves": {
            kind: [
                {
                    "thresholds": list(point.thresholds),
                    **{name: getattr(point, name) for name in _POINT_FIELDS},
                }
                for point in curve
            ]
            for kind, curve in layer.curves.items()
        },
        "choice": {"kind": layer.choice.kind, "thresholds": list(layer.choice.thresholds)},
    }


def _short(values: FloatArray) -> list[float]:
    return [float(f"{value:.6g}") for value in values.tolist()]


def _layer_from_json(field: _Field, num_tokens: int) -> LayerCalibration:
    active = field["active"].numbers(0, num_tokens)
    if (active != np.floor(active)).any():
        field["active"].fail("must hold whole numbers")
    mean = field["mean"].numbers(-1e30, 1e30)
    variance = field["variance"].numbers(0, 1e30)
    if len(mean) != len(variance):
        field["variance"].fail(f"has {len(variance)} numbers, mean has {len(mean)}")
    curves: Mapping[str, Curve] = MappingProxyType(
        {name: _curve(name, curve) for name, curve in field["curves"].mapping().items()}
    )
    kind = field["choice"]["kind"].kind()
    return LayerCalibration(
        num_active=active.astype(np.int64),
        mean=mean.astype(np.float32),
        variance=variance.astype(np.float32),
        curves=curves,
        choice=LayerChoice(kind, _thresholds(kind, field["choice"]["thresholds"])),
    )


def _curve(name: str, field: _Field) -> Curve:
    field.renamed(name).kind()
    return tuple(_point(name, point) for point in field.items())


def _point(kind: str, field: _Field) -> CurvePoint:
    return CurvePoint(
        thresholds=_thresholds(kind, field["thresholds"]),
        density=field["density"].number(0.0, 1.0),
        recall=field["recall"].number(0.0, 1.0),
        precision=field["precision"].number(0.0, 1.0),
        ffn_error=field["ffn_error"].number(0.0),
        time=field["time"].number(0.0),
        ffn_error_high=_error_high(field),
    )


def _error_high(field: _Field) -> float:
    """Limit of the error; files from before it was measured get a cautious one."""
    if "ffn_error_high" in field.mapping():
        return field["ffn_error_high"].number(0.0)
    return _UNKNOWN_SPREAD * field["ffn_error"].number(0.0)


def _thresholds(kind: str, field: _Field) -> tuple[float, ...]:
    found = tuple(item.number(-_LARGEST_THRESHOLD, _LARGEST_THRESHOLD) for item in field.items())
    parts = parse_kind(kind)
    wanted = len(parts) if parts[0].kind.scorer is not None else 0
    if len(found) != wanted:
        field.fail(f"has {len(found)} thresholds; {kind} takes {wanted}")
    return found
