"""Plans as JSON: what `MODEL.plan.json` holds, written compactly and read strictly.

A file is input from outside: every field is checked for its type, length and range, and an error
names the field. Hot neurons are a set of bits, neuron n being bit n % 8 of byte n // 8, in base64.
"""

import base64
import json
from typing import Any, NoReturn

import numpy as np

from powerinfer.errors import PlacementError
from powerinfer.placement.plan import LayerPlacement, PlacementPlan
from powerinfer.values import IntArray

__all__ = ["plan_from_json", "plan_to_json"]

VERSION = 1

_FIELDS = (
    "version",
    "model",
    "solver",
    "budget_bytes",
    "num_neurons",
    "has_output",
    "predicted_s",
    "layers",
)
_LAYER_FIELDS = ("attention", "predictor", "hot")
# More than any model has, so that a few bytes of a file cannot ask for much memory.
_MOST_LAYERS = 1 << 12
_MOST_NEURONS = 1 << 24
_MOST_BYTES = 1 << 60
_LONGEST_TEXT = 200


def plan_to_json(plan: PlacementPlan) -> str:
    """One line of JSON."""
    value = {
        "version": VERSION,
        "model": plan.model_identity,
        "solver": plan.solver,
        "budget_bytes": plan.budget_bytes,
        "num_neurons": plan.num_neurons,
        "has_output": plan.has_output,
        "predicted_s": plan.predicted_s,
        "layers": [
            {
                "attention": layer.has_attention,
                "predictor": layer.has_predictor,
                "hot": _bits_of(layer.hot, plan.num_neurons),
            }
            for layer in plan.layers
        ],
    }
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def plan_from_json(text: str | bytes, where: str) -> PlacementPlan:
    """Read and check.

    Args:
        text: what `plan_to_json` made.
        where: names the file in messages.

    Raises:
        PlacementError: anything in it is not as it must be; names the field.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        _fail(where, f"it is not JSON ({error})")
    top = _Fields(value, _FIELDS, "", where)
    version = top.integer("version", 0, _MOST_BYTES)
    if version != VERSION:
        top.fail("version", f"is {version}; this program reads version {VERSION}")
    num_neurons = top.integer("num_neurons", 1, _MOST_NEURONS)
    layers = [_Fields(*layer, where) for layer in top.items("layers", _MOST_LAYERS)]
    fields: dict[str, Any] = {
        "model_identity": top.text("model"),
        "solver": top.text("solver"),
        "budget_bytes": top.integer("budget_bytes", 0, _MOST_BYTES),
        "has_output": top.boolean("has_output"),
        "predicted_s": top.seconds("predicted_s"),
        "layers": tuple(_layer(layer, num_neurons) for layer in layers),
    }
    try:
        return PlacementPlan(num_neurons=num_neurons, **fields)
    except PlacementError as error:
        _fail(where, str(error))


class _Fields:
    """An object of the file, with exactly the fields it must have."""

    def __init__(self, value: Any, known: tuple[str, ...], name: str, where: str) -> None:
        self._name = name
        self._where = where
        if not isinstance(value, dict):
            _fail(where, f"{name or 'the file'} is not an object")
        for key in known:
            if key not in value:
                _fail(where, f"{name or 'the file'} has no field {key!r}")
        for key in value:
            if key not in known:
                _fail(where, f"{name or 'the file'} has an unknown field {key[:60]!r}")
        self._value: dict[str, Any] = value

    def fail(self, key: str, problem: str) -> NoReturn:
        _fail(self._where, f"{self._name}{'.' if self._name else ''}{key} {problem}")

    def text(self, key: str) -> str:
        value = self._value[key]
        if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
            self.fail(key, f"is not a text of at most {_LONGEST_TEXT} characters")
        return value

    def boolean(self, key: str) -> bool:
        value = self._value[key]
        if not isinstance(value, bool):
            self.fail(key, "is neither true nor false")
        return value

    def integer(self, key: str, least: int, most: int) -> int:
        value = self._value[key]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.fail(key, f"is not a whole number from {least} to {most}")
        return value

    def seconds(self, key: str) -> float | None:
        value = self._value[key]
        if value is None:
            return None
        # Whole numbers of any length are legal JSON, and Python reads NaN.
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value < 1e300:
            self.fail(key, "is neither null nor a finite number of at least 0")
        return float(value)

    def items(self, key: str, most: int) -> list[tuple[Any, tuple[str, ...], str]]:
        """The objects of a list, each with its fields and its name."""
        value = self._value[key]
        if not isinstance(value, list) or not 1 <= len(value) <= most:
            self.fail(key, f"is not a list of 1 to {most} layers")
        return [(item, _LAYER_FIELDS, f"{key}[{index}]") for index, item in enumerate(value)]

    def bits(self, key: str, count: int) -> IntArray:
        """Numbers of the bits that are set, of so many."""
        value = self._value[key]
        size = -(-count // 8)
        # Its length first: decoding costs memory.
        if not isinstance(value, str) or len(value) != -(-size // 3) * 4:
            self.fail(key, f"is not base64 of {size} bytes")
        try:
            decoded = base64.b64decode(value, validate=True)
        except ValueError:
            self.fail(key, "is not base64")
        if len(decoded) != size:
            self.fail(key, f"is not base64 of {size} bytes")
        bits = np.unpackbits(np.frombuffer(decoded, np.uint8), bitorder="little")
        if bits[count:].any():
            self.fail(key, f"names neurons beyond the {count} that there are")
        return np.flatnonzero(bits).astype(np.int32)


def _layer(fields: _Fields, num_neurons: int) -> LayerPlacement:
    return LayerPlacement(
        has_attention=fields.boolean("attention"),
        has_predictor=fields.boolean("predictor"),
        hot=fields.bits("hot", num_neurons),
    )


def _bits_of(ids: IntArray, count: int) -> str:
    bits = np.zeros(count, np.uint8)
    bits[ids] = 1
    return base64.b64encode(np.packbits(bits, bitorder="little").tobytes()).decode("ascii")


def _fail(where: str, problem: str) -> NoReturn:
    raise PlacementError(
        f"{where}: the plan cannot be used: {problem}; run `powerinfer plan` again"
    )
