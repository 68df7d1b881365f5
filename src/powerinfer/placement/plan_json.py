"""Plans as JSON, the content of `MODEL.plan.json`, written compactly and read strictly.

Hot neurons are a bit set in base64; neuron n is bit n % 8 of byte n // 8.
"""

import base64
from collections.abc import Mapping

import numpy as np

from powerinfer.errors import PlacementError
from powerinfer.placement.plan import LayerPlacement, PlacementPlan
from powerinfer.sidecar import Field, Sidecar
from powerinfer.values import IntArray

__all__ = ["PLAN"]

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
# More than any model has, so that a few bytes of a file cannot request much memory.
_MOST_LAYERS = 1 << 12
_MOST_NEURONS = 1 << 24
_MOST_BYTES = 1 << 60
_LONGEST_TEXT = 200


def _encode(plan: PlacementPlan) -> Mapping[str, object]:
    return {
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


def _decode(top: Field) -> PlacementPlan:
    fields = top.exactly(*_FIELDS)
    num_neurons = fields["num_neurons"].integer(1, _MOST_NEURONS)
    identity, solver = (fields[name].text(_LONGEST_TEXT) for name in ("model", "solver"))
    budget_bytes = fields["budget_bytes"].integer(0, _MOST_BYTES)
    has_output = fields["has_output"].boolean()
    predicted_s = fields["predicted_s"].number_or_null(0)
    layers = tuple(_layer(layer, num_neurons) for layer in fields["layers"].items(_MOST_LAYERS))
    try:
        return PlacementPlan(
            identity, solver, budget_bytes, num_neurons, has_output, layers, predicted_s
        )
    except PlacementError as error:
        top.refuse(str(error))


def _layer(field: Field, num_neurons: int) -> LayerPlacement:
    fields = field.exactly(*_LAYER_FIELDS)
    return LayerPlacement(
        has_attention=fields["attention"].boolean(),
        has_predictor=fields["predictor"].boolean(),
        hot=fields["hot"].bits(num_neurons, what="neurons"),
    )


def _bits_of(ids: IntArray, count: int) -> str:
    bits = np.zeros(count, np.uint8)
    bits[ids] = 1
    return base64.b64encode(np.packbits(bits, bitorder="little").tobytes()).decode("ascii")


PLAN: Sidecar[PlacementPlan] = Sidecar(
    noun="plan",
    suffix=".plan.json",
    folder="plans",
    version=1,
    largest_bytes=64 << 20,
    error=PlacementError,
    encode=_encode,
    decode=_decode,
    identity=lambda plan: plan.model_identity,
    remedy="run `powerinfer plan` again",
    remedy_for_others="run `powerinfer plan` for this one",
)
"""`MODEL.plan.json`."""
