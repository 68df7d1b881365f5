"""What lies in GPU memory and what one decode step reads, in bytes. Plain values.

The engine, which knows the model, fills these in. `cost_model` turns reads into seconds, and
solvers keep within the budget.
"""

from dataclasses import dataclass, fields

from powerinfer.errors import PlacementError
from powerinfer.placement.plan import LayerPlacement, PlacementPlan

__all__ = ["HostReads", "LayerSizes", "ModelSizes"]


@dataclass(frozen=True, slots=True)
class HostReads:
    """What one decode step reads of a layer on the CPU, where formats differ from the GPU's.

    Attributes:
        attention_bytes: of norms, attention matrices, router and shared expert.
        predictor_bytes: of the predictor.
        idle_bytes: of each candidate neuron, whether or not it fires.
        active_bytes: more of each candidate that fires.
        down_bytes: of a down matrix that is not stored by neurons, which is read whole if any
            neuron is computed; 0 where down is, and counts in the two before.
    """

    attention_bytes: int
    predictor_bytes: int
    idle_bytes: int
    active_bytes: int
    down_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """Sizes of one layer, in the formats of the GPU.

    Which neurons are candidates: with a predictor, idle_bytes is 0 and a neuron costs active_bytes
    (all its rows) as often as it is predicted; without one (`exact`) idle_bytes is the row that
    decides and active_bytes the rest; dense (`off`), idle_bytes is everything and active_bytes 0.

    Attributes:
        attention_bytes: norms, attention matrices, router, shared expert and the tables that say
            where neurons lie; held, and read in each step.
        kv_bytes: keys and values held at the context asked for.
        predictor_bytes: held, and read in each step; 0 where nothing predicts.
        neuron_bytes: held for one hot neuron (its rows, biases and its entry of the table).
        idle_bytes: read of each hot neuron in every step.
        active_bytes: read besides of a hot neuron that fires.
        kv_read_bytes: keys and values that a step reads at the sequence length that the prediction
            is made for.
        host: what the CPU reads; None where its formats are the GPU's.
        is_handed: the CPU computes all neurons wherever attention lies; none is ever hot.
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
        """What the CPU reads of the parts that it computes."""
        return self.host or HostReads(
            self.attention_bytes, self.predictor_bytes, self.idle_bytes, self.active_bytes
        )

    def placed_bytes(self, placement: LayerPlacement) -> int:
        """GPU memory that a placement of this layer takes."""
        held = self.attention_bytes + self.kv_bytes if placement.has_attention else 0
        held += self.predictor_bytes if placement.has_predictor else 0
        return held + self.neuron_bytes * len(placement.hot)


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Sizes of a whole model.

    Attributes:
        layers: in order.
        num_neurons: of each layer.
        hidden_size: width of the residual stream.
        output_bytes: the output head and its norm; held, and read in each step.
        overhead_bytes: what using the GPU takes before anything is placed: CUDA context, graph
            pools, workspaces, pinned and staging buffers that live there.
        is_parallel: attention and FFN of a layer take the same input (Falcon).
        host_output_bytes: what the CPU reads for the head; None where it is output_bytes.
        num_experts: that the neurons of a layer are cut into; 1 without a router.
        num_used: of them, that a token asks.
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
        """Check that every size is one.

        Raises:
            PlacementError: a size is negative, or there are no layers or neurons.
        """
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
        """Share of a layer's neurons that a token's experts have."""
        return self.num_used / self.num_experts

    @property
    def full_bytes(self) -> int:
        """GPU memory that the whole model takes, overhead included."""
        layers = sum(
            layer.attention_bytes
            + layer.kv_bytes
            + layer.predictor_bytes
            + layer.neuron_bytes * (0 if layer.is_handed else self.num_neurons)
            for layer in self.layers
        )
        return self.overhead_bytes + self.output_bytes + layers

    def placed_bytes(self, plan: PlacementPlan) -> int:
        """GPU memory that a plan takes: overhead and all that is placed; 0 for an empty plan.

        Raises:
            PlacementError: the plan is of a model of another shape.
        """
        self.check_shape(plan)
        pairs = zip(self.layers, plan.layers, strict=True)
        placed = sum(layer.placed_bytes(placement) for layer, placement in pairs)
        placed += self.output_bytes if plan.has_output else 0
        return placed + self.overhead_bytes if plan.has_anything else 0

    def check_shape(self, plan: PlacementPlan) -> None:
        """Check that a plan is of a model of this shape.

        Raises:
            PlacementError: the number of layers or neurons differs.
        """
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
