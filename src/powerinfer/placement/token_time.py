"""Predicted time of a prompt token of a plan, and the cost of a plan for a mix of tokens.

Prompts are computed in batches of many tokens, in which nearly every neuron fires for some token,
so the GPU computes its layers densely. Computing on the GPU is left out, as it takes the same time
wherever the weights came from.
"""

import math

import numpy as np
import numpy.typing as npt

from powerinfer.placement.cost_model import CostModel
from powerinfer.placement.plan import PlacementPlan
from powerinfer.placement.problem import PlacementProblem
from powerinfer.placement.sizes import LayerSizes
from powerinfer.placement.step_time import HotShare, cold_neurons_s, hot_share, rounded_s, step_s

__all__ = ["MEMORY_WORTH", "layer_prompt_times", "prompt_s", "token_s"]

_Float = npt.NDArray[np.float64]

MEMORY_WORTH = 0.03
"""Relative cost that a plan may have above the best for holding more on the GPU.

Predictions are no more accurate than this, and unused memory helps no other text.
"""

# Speed-up of a token on the CPU in a batch over one alone, for which each weight is read: with the
# kernels of this project 3.4 (Q4_0), 5.3 (Q8_0) to 7.5 (F16), at 7B width.
_BATCH_GAIN = 5.0


def layer_prompt_times(
    cost: CostModel, layer: LayerSizes, hot: HotShare, batch_tokens: int, *, has_attention: bool
) -> _Float:
    """Predict one layer for many candidates of hot neurons at once, per token of a full batch.

    A layer on the GPU is read once per batch. Its cold neurons are sent to it once per batch, or
    computed by the CPU for each token, whichever is faster. A layer on the CPU is read whole,
    `_BATCH_GAIN` times faster than for a token alone.

    Returns:
        f64[n], seconds in multiples of 2^-44.
    """
    host = layer.host_reads
    cold_count = hot.num_neurons - hot.count
    if not has_attention:
        neuron_bytes = host.idle_bytes + host.active_bytes
        whole_bytes = neuron_bytes * hot.num_neurons + host.down_bytes
        neurons_bytes = whole_bytes * hot.asked_total / hot.num_neurons
        read_s = (host.attention_bytes + neurons_bytes) / cost.cpu.read_bytes_per_s
        return rounded_s(np.full_like(hot.count, read_s / _BATCH_GAIN))
    held_bytes = layer.attention_bytes + layer.neuron_bytes * hot.num_neurons
    read_s = held_bytes / cost.gpu.read_bytes_per_s / batch_tokens
    send_s = layer.neuron_bytes * cold_count / cost.transfer_bytes_per_s / batch_tokens
    return rounded_s(read_s + np.minimum(send_s, cold_neurons_s(cost, layer, hot)))


def prompt_s(problem: PlacementProblem, plan: PlacementPlan) -> float:
    """Predict the seconds of one prompt token in a full batch."""
    batch_tokens = problem.workload.batch_tokens
    times = [
        layer_prompt_times(
            problem.cost,
            problem.sizes.layers[number],
            hot_share(problem, plan, number),
            batch_tokens,
            has_attention=placement.has_attention,
        )
        for number, placement in enumerate(plan.layers)
    ]
    return math.fsum(float(layer[0]) for layer in times)


def token_s(problem: PlacementProblem, plan: PlacementPlan) -> float:
    """Return the cost of a plan: a decode step and the prompt tokens per decoded token.

    Raises:
        PlacementError: the plan is of a model of another shape.
    """
    return step_s(problem, plan) + problem.workload.prompt_tokens * prompt_s(problem, plan)
