"""A placement plan: the parts of each layer on the GPU. Plain values, and their file.

`MODEL.plan.json` is written compactly and read strictly. Hot neurons are a bit set in base64;
neuron n is bit n % 8 of byte n // 8.

Paper: "offline neuron placement" (arXiv 2312.12456, section 6).
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from powerinfer.errors import PlacementError
from powerinfer.sidecar import Field, Sidecar
from powerinfer.values import IntArray

__all__ = ["PLAN", "LayerPlacement", "PlacementPlan"]

# More than any model has, so that a few bytes of a file cannot request much memory.
_MOST_LAYERS = 1 << 12
_MOST_NEURONS = 1 << 24
_MOST_BYTES = 1 << 60
_LONGEST_TEXT = 200


@dataclass(frozen=True, slots=True)
class LayerPlacement:
    """Placement of the parts of one layer; parts that are not on the GPU are on the CPU.

    Attributes:
        has_attention: norms, attention matrices, keys and values are on the GPU.
        has_predictor: the layer's predictor is on the GPU; False if it has none.
        hot: i32[k], ascending ids of the neurons on the GPU. Requires `has_attention`, and the
            layer's predictor, if it has one, on the GPU.
    """

    has_attention: bool
    has_predictor: bool
    hot: IntArray


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    """Plan of a whole model.

    Attributes:
        model_identity: `gguf.model_identity` of the model; empty for a model without a file.
        budget_bytes: GPU memory that it was made for.
        has_output: the output head and its norm are on the GPU.
        predicted_s: seconds per decode step by the cost model, or None.

    Raises:
        PlacementError: an invariant of a layer is broken; names the layer.
    """

    model_identity: str
    solver: str
    budget_bytes: int
    num_neurons: int
    has_output: bool
    layers: tuple[LayerPlacement, ...]
    predicted_s: float | None = None

    def __post_init__(self) -> None:
        for number, layer in enumerate(self.layers):
            hot, problem = layer.hot, None
            if len(hot) and (
                hot[0] < 0 or hot[-1] >= self.num_neurons or (np.diff(hot) <= 0).any()
            ):
                problem = f"ids of hot neurons must ascend strictly within [0, {self.num_neurons})"
            elif len(hot) and not layer.has_attention:
                problem = "a layer whose attention is on the CPU has hot neurons"
            elif layer.has_predictor and not layer.has_attention:
                problem = "a layer whose attention is on the CPU has its predictor apart"
            if problem is not None:
                raise PlacementError(f"layer {number} of the plan: {problem}")

    def check_shape(self, num_layers: int, num_neurons: int) -> None:
        """Raise PlacementError if the plan is of a model of another shape."""
        if (len(self.layers), self.num_neurons) != (num_layers, num_neurons):
            raise PlacementError(
                f"the plan is for {len(self.layers)} layers of {self.num_neurons} neurons, the "
                f"model has {num_layers} of {num_neurons}; make a plan of this model"
            )

    @property
    def has_anything(self) -> bool:
        """True if any part is on the GPU."""
        return self.has_output or any(layer.has_attention for layer in self.layers)

    @property
    def has_everything(self) -> bool:
        """True if all layers are on the GPU with all their neurons, and the output head."""
        return self.has_output and all(
            layer.has_attention and len(layer.hot) == self.num_neurons for layer in self.layers
        )


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
    fields = top.exactly(
        *("version", "model", "solver", "budget_bytes", "num_neurons", "has_output"),
        *("predicted_s", "layers"),
    )
    num_neurons = fields["num_neurons"].integer(1, _MOST_NEURONS)
    identity, solver = (fields[name].text(_LONGEST_TEXT) for name in ("model", "solver"))
    budget_bytes = fields["budget_bytes"].integer(0, _MOST_BYTES)
    has_output = fields["has_output"].boolean()
    predicted_s = fields["predicted_s"].number_or_null(0)
    layers = []
    for item in fields["layers"].items(_MOST_LAYERS):
        layer = item.exactly("attention", "predictor", "hot")
        flags = layer["attention"].boolean(), layer["predictor"].boolean()
        layers.append(LayerPlacement(*flags, layer["hot"].bits(num_neurons, what="neurons")))
    try:
        return PlacementPlan(
            identity, solver, budget_bytes, num_neurons, has_output, tuple(layers), predicted_s
        )
    except PlacementError as error:
        top.refuse(str(error))


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
