"""Calibrations as JSON, the content of `MODEL.calibration.json`, written and read strictly."""

from collections.abc import Mapping
from dataclasses import asdict
from types import MappingProxyType

import numpy as np

from powerinfer.errors import CalibrationError, UnsupportedError
from powerinfer.predictors.build import LayerChoice
from powerinfer.predictors.calibration import (
    Calibration,
    Curve,
    CurvePoint,
    Dial,
    LayerCalibration,
    six_digits,
)
from powerinfer.predictors.choosing import EXACT
from powerinfer.predictors.kind import THRESHOLD
from powerinfer.predictors.missing import missing_kind
from powerinfer.predictors.names import parse_kind
from powerinfer.sidecar import Field, Sidecar

__all__ = ["CALIBRATION"]

_SHARES = ("density", "recall", "precision")
_LARGEST_COUNT = 1 << 40
_UNKNOWN_SPREAD = 1.5
# Thresholds are compared in f32.
_LARGEST_THRESHOLD = 3e38


def _encode(calibration: Calibration) -> Mapping[str, object]:
    return {
        "model": calibration.model_identity,
        "activation": calibration.activation,
        "text": {"name": calibration.text_name, "tokens": calibration.num_tokens},
        "dial": {
            name: limit for name, limit in asdict(calibration.dial).items() if limit is not None
        },
        **_experts_to_json(calibration),
        "layers": [_layer_to_json(layer) for layer in calibration.layers],
    }


def _decode(top: Field) -> Calibration:
    layers = top["layers"].items()
    if not layers:
        top["layers"].fail("is empty")
    num_tokens = top["text"]["tokens"].integer(1, _LARGEST_COUNT)
    num_experts, num_experts_used = _experts_from_json(top)
    return Calibration(
        model_identity=top["model"].text(),
        activation=top["activation"].text(),
        text_name=top["text"]["name"].text(),
        num_tokens=num_tokens,
        dial=_dial_from_json(top["dial"]),
        layers=tuple(_layer_from_json(layer, num_tokens) for layer in layers),
        num_experts=num_experts,
        num_experts_used=num_experts_used,
    )


def _experts_to_json(calibration: Calibration) -> dict[str, object]:
    if calibration.num_experts == 1:
        return {}
    return {"experts": {"count": calibration.num_experts, "used": calibration.num_experts_used}}


def _experts_from_json(top: Field) -> tuple[int, int]:
    """Return the numbers of experts and of used ones, which only files of MoE models have."""
    if "experts" not in top.fields():
        return 1, 1
    count = top["experts"]["count"].integer(1, _LARGEST_COUNT)
    return count, top["experts"]["used"].integer(1, count)


def _dial_from_json(field: Field) -> Dial:
    fields = field.fields()
    if len(fields) != 1 or next(iter(fields)) not in ("max_ffn_error", "recall", "zeros"):
        field.fail("must have either max_ffn_error, recall or zeros")
    ((name, value),) = fields.items()
    return Dial(**{name: value.number(0.0, 1.0)})


def _layer_to_json(layer: LayerCalibration) -> dict[str, object]:
    return {
        "active": layer.num_active.tolist(),
        "mean": [six_digits(value) for value in layer.mean.tolist()],
        "variance": [six_digits(value) for value in layer.variance.tolist()],
        "curves": {kind: list(map(asdict, curve)) for kind, curve in layer.curves.items()},
        "choice": asdict(layer.choice),
    }


def _layer_from_json(field: Field, num_tokens: int) -> LayerCalibration:
    active = field["active"].counts(num_tokens)
    mean = field["mean"].numbers(-1e30, 1e30)
    variance = field["variance"].numbers(0, 1e30)
    if len(mean) != len(variance):
        field["variance"].fail(f"has {len(variance)} numbers, mean has {len(mean)}")
    curves: Mapping[str, Curve] = MappingProxyType(
        {
            name: _curve(name, curve)
            for name, curve in field["curves"].fields().items()
            # A kind that is missing here cannot be chosen; the file keeps it for other machines.
            if missing_kind(name) is None
        }
    )
    return LayerCalibration(
        num_active=active,
        mean=mean.astype(np.float32),
        variance=variance.astype(np.float32),
        curves=curves,
        choice=_choice(field["choice"]),
    )


def _choice(field: Field) -> LayerChoice:
    """Read the choice; a kind that is missing here is an error only where it has to run."""
    name = field["kind"].text()
    if missing_kind(name) is not None:
        return LayerChoice(name, _numbers(field["thresholds"]))
    kind = _kind(field["kind"])
    return LayerChoice(kind, _thresholds(kind, field["thresholds"]))


def _curve(name: str, field: Field) -> Curve:
    _kind(field.with_value(name))
    return tuple(_point(name, point) for point in field.items())


def _kind(field: Field) -> str:
    """Read the name of a kind with thresholds or `exact`: no other kinds are calibrated."""
    name = field.text()
    if name == THRESHOLD:
        return name
    try:
        parts = parse_kind(name)
    except UnsupportedError as error:
        field.fail(f"is not a predictor kind: {str(error).rstrip('.')}")
    if parts[0].kind.scorer is None and name != EXACT:
        field.fail(f"is {name:.60}, which a calibration cannot choose")
    return name


def _point(kind: str, field: Field) -> CurvePoint:
    return CurvePoint(
        thresholds=_thresholds(kind, field["thresholds"]),
        **{name: field[name].number(0.0, 1.0) for name in _SHARES},
        ffn_error=field["ffn_error"].number(0.0),
        time=field["time"].number(0.0),
        ffn_error_high=_error_high(field),
    )


def _error_high(field: Field) -> float:
    """Read the error bound; older files, which lack it, get a cautious one."""
    if "ffn_error_high" in field.fields():
        return field["ffn_error_high"].number(0.0)
    return _UNKNOWN_SPREAD * field["ffn_error"].number(0.0)


def _thresholds(kind: str, field: Field) -> tuple[float, ...]:
    found = _numbers(field)
    parts = () if kind in (EXACT, THRESHOLD) else parse_kind(kind)
    wanted = 1 if kind == THRESHOLD else len(parts)
    if len(found) != wanted:
        field.fail(f"has {len(found)} thresholds; {kind} takes {wanted}")
    return found


def _numbers(field: Field) -> tuple[float, ...]:
    return tuple(item.number(-_LARGEST_THRESHOLD, _LARGEST_THRESHOLD) for item in field.items())


CALIBRATION: Sidecar[Calibration] = Sidecar(
    noun="calibration",
    suffix=".calibration.json",
    folder="calibrations",
    version=1,
    largest_bytes=256 << 20,
    error=CalibrationError,
    encode=_encode,
    decode=_decode,
    identity=lambda calibration: calibration.model_identity,
    remedy="remove it, or run `powerinfer calibrate` again",
    remedy_for_others="remove it, or run `powerinfer calibrate` again",
)
"""`MODEL.calibration.json`; a calibration inside a model is the same line."""
