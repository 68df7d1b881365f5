"""Input of placement solvers: sizes of a model, its activation frequencies, and two devices.

Plain values: `offload`, which knows the model, fills them in. Solvers keep within the budget;
`step_time` turns the bytes read into seconds.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powerinfer.errors import PlacementError
from powerinfer.placement.cost_model import CostModel
from powerinfer.placement.plan import LayerPlacement, PlacementPlan
from powerinfer.values import FloatArray, IntArray

__all__ = [
    "ActivationStats",
    "HostReads",
    "LayerSizes",
    "ModelSizes",
    "PlacementProblem",
]

# Sums of multiples of 2^-24 (the spacing of f32 below 1) are exact in f64, in any order.
_TICKS_PER_TOKEN = 1 << 24


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

    def part_bytes(self, placed: LayerPlacement) -> dict[str, int]:
        """Return the GPU memory of each part of a placement of this layer, by its name here."""
        return {
            "attention_bytes": self.attention_bytes * placed.has_attention,
            "kv_bytes": self.kv_bytes * placed.has_attention,
            "predictor_bytes": self.predictor_bytes * placed.has_predictor,
            "neuron_bytes": self.neuron_bytes * len(placed.hot),
        }


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Sizes of a whole model.

    Attributes:
        output_bytes: the output head and its norm; held, and read in each step.
        overhead_bytes: fixed cost of using the GPU: CUDA context, graph pools, workspaces, pinned
            and staging buffers that live there.
        is_parallel: attention and FFN of a layer take the same input (Falcon).
        host_output_bytes: bytes the CPU reads for the head; None if equal to output_bytes.
        num_experts: experts per layer, of which a token uses `num_used`; 1 without a router.
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

    @property
    def full_bytes(self) -> int:
        """GPU memory of the whole model, overhead included."""
        total = self.overhead_bytes + self.output_bytes
        for layer in self.layers:
            total += layer.attention_bytes + layer.kv_bytes + layer.predictor_bytes
            total += 0 if layer.is_handed else layer.neuron_bytes * self.num_neurons
        return total

    def part_bytes(self, plan: PlacementPlan) -> dict[str, int]:
        """Return the GPU memory of each part of a plan, which must fit, by its size's name."""
        plan.check_shape(len(self.layers), self.num_neurons)
        sums: Counter[str] = Counter()
        for layer, placed in zip(self.layers, plan.layers, strict=True):
            sums.update(layer.part_bytes(placed))
        sums["output_bytes"] = self.output_bytes * plan.has_output
        sums["overhead_bytes"] = self.overhead_bytes * plan.has_anything
        return dict(sums)

    def placed_bytes(self, plan: PlacementPlan) -> int:
        """Return the GPU memory of a plan, overhead included; 0 for an empty plan."""
        return sum(self.part_bytes(plan).values())


@dataclass(frozen=True, slots=True, eq=False)
class ActivationStats:
    """Share of profiled tokens for which each neuron is computed.

    Paper: "Offline neuron activation profiling" (arXiv 2312.12456).

    Attributes:
        frequency: f32[num_layers, num_neurons] in [0, 1], probability that a neuron fires for a
            token (or is predicted to, where a predictor decides).
        source: name of a file or text, for users.
        num_tokens: number of tokens profiled; 0 if unknown.

    Raises:
        PlacementError: `frequency` has another shape, type or range.
    """

    frequency: FloatArray
    source: str
    num_tokens: int

    def __post_init__(self) -> None:
        values = self.frequency
        if values.ndim != 2 or values.dtype != np.float32 or not values.size:
            raise PlacementError(
                f"activation frequencies are {values.dtype}{list(values.shape)}, they must be "
                "float32[layers, neurons]"
            )
        # NaN fails too.
        if not (values.min() >= 0.0 and values.max() <= 1.0):
            raise PlacementError(
                f"activation frequencies from {self.source or 'nowhere'} reach from "
                f"{values.min():g} to {values.max():g}, they must be within 0 and 1"
            )

    def rounded(self, layer: int) -> npt.NDArray[np.float64]:
        """Return f64[num_neurons] of one layer in multiples of 2^-24, whose sums are exact.

        The predicted time of a set of neurons then does not depend on the order of summation.
        """
        return _rounded(self.frequency[layer].astype(np.float64))

    def order(self, layer: int) -> IntArray:
        """Return i32[num_neurons] of one layer by falling frequency, ties by id."""
        return np.argsort(-self.rounded(layer), kind="stable").astype(np.int32)

    def covered_share(self, plan: PlacementPlan, *layers: int) -> float:
        """Return the share of expected activations on the GPU, of all layers or those numbered."""
        covered = total = 0.0
        for number in layers or range(len(plan.layers)):
            frequency = self.rounded(number)
            covered += float(frequency[plan.layers[number].hot].sum())
            total += float(frequency.sum())
        return covered / total if total else 0.0


def _rounded(frequency: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.asarray(np.rint(frequency * _TICKS_PER_TOKEN) / _TICKS_PER_TOKEN)


@dataclass(frozen=True, slots=True)
class PlacementProblem:
    """All inputs of a plan.

    Attributes:
        model_identity: see `PlacementPlan`.
        budget_bytes: GPU memory for overhead_bytes of the sizes and all placed parts.
        prompt_tokens: prompt tokens per decoded token, to optimise for. One by default: in a
            conversation the question and the parts of it read again are about as long as the
            answer.
        batch_tokens: prompt tokens computed together: weights that the GPU lacks are sent to it
            once per batch.

    Raises:
        PlacementError: the statistics are of a model of another shape.
    """

    model_identity: str
    sizes: ModelSizes
    stats: ActivationStats
    cost: CostModel
    budget_bytes: int
    prompt_tokens: float = 1.0
    batch_tokens: int = 512

    def __post_init__(self) -> None:
        sizes, counted = self.sizes, self.stats.frequency.shape
        if counted != (len(sizes.layers), sizes.num_neurons):
            raise PlacementError(
                f"activation statistics from {self.stats.source or 'nowhere'} are of {counted[0]} "
                f"layers of {counted[1]} neurons, the model has {len(sizes.layers)} of "
                f"{sizes.num_neurons}; give those of this model"
            )

    def asked(self, layer: int) -> npt.NDArray[np.float64]:
        """Estimate how often a token checks each neuron of a layer: f64[num_neurons].

        That is how often its expert is selected, which counts of firing neurons do not contain.
        Experts are assumed to be selected in proportion to the firing of their neurons, and at
        least as often as any of these fires; 1 without experts.
        """
        frequency, num_experts = self.stats.rounded(layer), self.sizes.num_experts
        if num_experts == 1:
            return np.ones_like(frequency)
        by_expert = frequency.reshape(num_experts, -1)
        sums = by_expert.sum(axis=1)
        total = sums.sum()
        shares = sums / total if total else np.full(num_experts, 1 / num_experts)
        chosen = np.clip(self.sizes.num_used * shares, by_expert.max(axis=1), 1.0)
        return _rounded(np.repeat(chosen, by_expert.shape[1]))
