"""Bytes held in GPU memory and bytes read by one decode step. Plain values.

The engine, which knows the model, fills these in. `cost_model` turns reads into seconds, and
solvers keep within the budget.
"""

from dataclasses import dataclass, fields

from powerinfer.errors import PlacementError
from powerinfer.placement.plan import LayerPlacement, PlacementPlan

__all__ = ["HostReads", "LayerSizes", "ModelSizes"]


@dataclass(frozen=True, slots=True)
class HostReads:
    """Bytes that one decode step reads of a layer on the CPU, where formats differ from the GPU's.

    Attributes:
        attention_bytes: norms, attention matrices, router and shared expert.
        idle_bytes: per candidate neuron, whether or not it fires.
        active_bytes: additional bytes per candidate that fires.
        down_bytes: a down matrix that is not stored by neurons, read whole if any neuron is
            computed; 0 for one that is, and that counts in the two above.
    """

    attention_bytes: int
    predictor_bytes: int
    idle_bytes: int
    active_bytes: int
    down_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """Sizes of one layer, in the formats of the GPU.

    Candidate neurons: with a predictor, idle_bytes is 0 and a neuron costs active_bytes (all its
    rows) as often as it is predicted; without one (`exact`) idle_bytes is the deciding row and
    active_bytes the rest; dense (`off`), idle_bytes is everything and active_bytes 0.

    Attributes:
        attention_bytes: norms, attention matrices, router, shared expert and the neuron tables;
            held, and read in each step.
        kv_bytes: keys and values held at the requested context length.
        predictor_bytes: held, and read in each step; 0 without a predictor.
        neuron_bytes: held per hot neuron (its rows, biases and table entry).
        idle_bytes: read per hot neuron in every step.
        active_bytes: additional bytes read per hot neuron that fires.
        kv_read_bytes: keys and values read by a step at the predicted sequence length.
        host: reads of the CPU; None if its formats are the GPU's.
        is_handed: the CPU computes all neurons wherever attention is; none is ever hot.
    """

    attention_bytes: int
    kv_bytes: int
    predictor_bytes: int
    neuron_bytes: int
    idle_bytes: int
    active_bytes: int
    kv_read_bytes: int = 0
    host: HostReads | None = None
    is_handed: bool = False

    @property
    def host_reads(self) -> HostReads:
        """Reads of the CPU for the parts that it computes."""
        return self.host or HostReads(
            self.attention_bytes, self.predictor_bytes, self.idle_bytes, self.active_bytes
        )

    def placed_bytes(self, placement: LayerPlacement) -> int:
        """Return the GPU memory of a placement of this layer."""
        held = self.attention_bytes + self.kv_bytes if placement.has_attention else 0
        held += self.predictor_bytes if placement.has_predictor else 0
        return held + self.neuron_bytes * len(placement.hot)


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Sizes of a whole model.

    Attributes:
        num_neurons: neurons per layer.
        output_bytes: the output head and its norm; held, and read in each step.
        overhead_bytes: fixed cost of using the GPU: CUDA context, graph pools, workspaces, pinned
            and staging buffers that live there.
        is_parallel: attention and FFN of a layer take the same input (Falcon).
        host_output_bytes: bytes the CPU reads for the head; None if equal to output_bytes.
        num_experts: experts per layer; 1 without a router.
        num_used: experts selected for a token.

    Raises:
        PlacementError: a size is negative, there are no layers or neurons, or experts do not fit.
    """

    layers: tuple[LayerSizes, ...]
    num_neurons: int
    hidden_size: int
    output_bytes: int
    overhead_bytes: int
    is_parallel: bool = False
    host_output_bytes: int | None = None
    num_experts: int = 1
    num_used: int = 1

    def __post_init__(self) -> None:
        if not self.layers or self.num_neurons < 1:
            raise PlacementError(
                f"a model to place has {len(self.layers)} layers of {self.num_neurons} neurons; "
                "it needs at least one of both"
            )
        for number, layer in enumerate(self.layers):
            _check(f"layer {number}", layer)
            if layer.host is not None:
                _check(f"layer {number} on the CPU", layer.host)
        _check("the model", self)
        if not 1 <= self.num_used <= self.num_experts or self.num_neurons % self.num_experts:
            raise PlacementError(
                f"{self.num_used} of {self.num_experts} experts cannot share {self.num_neurons} "
                "neurons"
            )

    @property
    def asked_share(self) -> float:
        """Share of a layer's neurons in the experts selected for a token."""
        return self.num_used / self.num_experts

    @property
    def full_bytes(self) -> int:
        """GPU memory of the whole model, overhead included."""
        layers = sum(
            layer.attention_bytes
            + layer.kv_bytes
            + layer.predictor_bytes
            + layer.neuron_bytes * (0 if layer.is_handed else self.num_neurons)
            for layer in self.layers
        )
        return self.overhead_bytes + self.output_bytes + layers

    def placed_bytes(self, plan: PlacementPlan) -> int:
        """Return the GPU memory of a plan: overhead and all placed parts; 0 for an empty plan.

        Raises:
            PlacementError: the plan is of a model of another shape.
        """
        self.check_shape(plan)
        pairs = zip(self.layers, plan.layers, strict=True)
        placed = sum(layer.placed_bytes(placement) for layer, placement in pairs)
        placed += self.output_bytes if plan.has_output else 0
        return placed + self.overhead_bytes if plan.has_anything else 0

    def check_shape(self, plan: PlacementPlan) -> None:
        """Raise PlacementError if a plan has another number of layers or neurons."""
        if len(plan.layers) != len(self.layers) or plan.num_neurons != self.num_neurons:
            raise PlacementError(
                f"the plan is for {len(plan.layers)} layers of {plan.num_neurons} neurons, the "
                f"model has {len(self.layers)} of {self.num_neurons}; make a plan of this model"
            )


def _check(name: str, sizes: LayerSizes | HostReads | ModelSizes) -> None:
    for field in fields(sizes):
        value = getattr(sizes, field.name)
        if isinstance(value, int) and value < 0:
            raise PlacementError(f"{field.name} of {name} is {value}, sizes are not negative")
