"""A summary of a plan, as plain values for a table or for JSON."""

from dataclasses import dataclass

from powerinfer.placement.plan import PlacementPlan
from powerinfer.placement.problem import PlacementProblem
from powerinfer.placement.step_time import layer_time, step_s

__all__ = ["LayerReport", "PlacementReport", "report"]


@dataclass(frozen=True, slots=True)
class LayerReport:
    """One layer of a plan; bytes are of GPU memory.

    Attributes:
        layer: index.
        has_attention: norms, attention matrices, keys and values are on the GPU.
        covered_share: share of the layer's expected activations on the GPU; 0 if no neuron fires.
        predicted_s: seconds of the layer in one decode step.
    """

    layer: int
    has_attention: bool
    has_predictor: bool
    num_hot: int
    attention_bytes: int
    kv_bytes: int
    predictor_bytes: int
    neuron_bytes: int
    covered_share: float
    predicted_s: float

    @property
    def total_bytes(self) -> int:
        """GPU memory of the layer."""
        return self.attention_bytes + self.kv_bytes + self.predictor_bytes + self.neuron_bytes


@dataclass(frozen=True, slots=True)
class PlacementReport:
    """A whole plan; bytes are of GPU memory.

    Attributes:
        num_neurons: neurons per layer.
        output_bytes: output head and its norm; 0 if on the CPU.
        overhead_bytes: fixed cost of using the GPU; 0 if nothing is there.
        covered_share: share of all expected activations on the GPU.
        predicted_s: seconds of one decode step.
    """

    layers: tuple[LayerReport, ...]
    num_neurons: int
    output_bytes: int
    overhead_bytes: int
    budget_bytes: int
    covered_share: float
    predicted_s: float

    @property
    def attention_bytes(self) -> int:
        """GPU memory of attention and norms."""
        return sum(layer.attention_bytes for layer in self.layers)

    @property
    def kv_bytes(self) -> int:
        """GPU memory of keys and values."""
        return sum(layer.kv_bytes for layer in self.layers)

    @property
    def predictor_bytes(self) -> int:
        """GPU memory of predictors."""
        return sum(layer.predictor_bytes for layer in self.layers)

    @property
    def neuron_bytes(self) -> int:
        """GPU memory of hot neurons."""
        return sum(layer.neuron_bytes for layer in self.layers)

    @property
    def total_bytes(self) -> int:
        """GPU memory of everything."""
        layers = sum(layer.total_bytes for layer in self.layers)
        return layers + self.output_bytes + self.overhead_bytes


def report(problem: PlacementProblem, plan: PlacementPlan) -> PlacementReport:
    """List the place and cost of every part of a plan.

    Raises:
        PlacementError: the plan is of a model of another shape.
    """
    sizes = problem.sizes
    sizes.check_shape(plan)
    return PlacementReport(
        layers=tuple(_layer(problem, plan, number) for number in range(len(plan.layers))),
        num_neurons=sizes.num_neurons,
        output_bytes=sizes.output_bytes if plan.has_output else 0,
        overhead_bytes=sizes.overhead_bytes if plan.has_anything else 0,
        budget_bytes=plan.budget_bytes,
        covered_share=problem.stats.covered_share(plan),
        predicted_s=step_s(problem, plan),
    )


def _layer(problem: PlacementProblem, plan: PlacementPlan, number: int) -> LayerReport:
    sizes, placement = problem.sizes.layers[number], plan.layers[number]
    frequency = problem.stats.rounded(number)
    expected = float(frequency.sum())
    return LayerReport(
        layer=number,
        has_attention=placement.has_attention,
        has_predictor=placement.has_predictor,
        num_hot=len(placement.hot),
        attention_bytes=sizes.attention_bytes if placement.has_attention else 0,
        kv_bytes=sizes.kv_bytes if placement.has_attention else 0,
        predictor_bytes=sizes.predictor_bytes if placement.has_predictor else 0,
        neuron_bytes=sizes.neuron_bytes * len(placement.hot),
        covered_share=float(frequency[placement.hot].sum()) / expected if expected else 0.0,
        predicted_s=layer_time(problem, plan, number).total_s,
    )
