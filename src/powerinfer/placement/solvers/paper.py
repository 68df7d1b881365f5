"""The paper's integer program: as many activations on the GPU as fit, for comparison.

Paper: "Offline neuron placement" (arXiv 2312.12456). Dense parts come first in PowerInfer's order;
if all of them fit, groups of 64 neurons are chosen to maximise the summed frequency within the
memory left, where a layer has no neurons on the GPU or enough to earn its synchronisation. HiGHS
solves it.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from powerinfer.placement.plan import PlacementPlan
from powerinfer.placement.problem import PlacementProblem
from powerinfer.placement.solvers import Solver
from powerinfer.placement.solvers._choices import Choices, PartOptions, Path, hull_path
from powerinfer.placement.solvers.greedy import dense_steps

__all__ = ["SOLVER", "least_neurons"]

_Ids = npt.NDArray[np.int64]

# Limits that do not depend on the clock, so that plans are reproducible. The reduced problem takes
# far fewer nodes.
_OPTIONS = {"mip_rel_gap": 1e-7, "node_limit": 20_000}


def least_neurons(problem: PlacementProblem, number: int) -> int | None:
    """C_l of a layer, from C_l * T_gpu + T_sync <= C_l * T_cpu with T the time of one neuron.

    Returns:
        The least number of neurons that may be on the GPU; None where the GPU is no faster.
    """
    layer, cost = problem.sizes.layers[number], problem.cost
    asked_share = problem.sizes.num_used / problem.sizes.num_experts
    gpu_s, cpu_s = (
        asked_share * reads.idle_bytes / speed.read_bytes_per_s
        + reads.active_bytes / speed.gather_bytes_per_s
        for reads, speed in ((layer, cost.gpu), (layer.host_reads, cost.cpu))
    )
    if gpu_s >= cpu_s:
        return None
    least = cost.handoff_s / (cpu_s - gpu_s)
    # Clamped, as the quotient may be infinite.
    return math.ceil(min(least, problem.sizes.num_neurons + 1))


def _prepare(problem: PlacementProblem) -> Callable[[int], PlacementPlan]:
    choices = Choices(problem)
    dense = choices.path(dense_steps(choices))
    allowed = [_allowed_options(choices, number) for number in range(len(choices.layers))]
    # Bytes of neurons, and negated activations that they cover.
    groups = [
        PartOptions(layer.num_hot[options] * sizes.neuron_bytes, -layer.expected[options])
        for layer, sizes, options in zip(choices.layers, problem.sizes.layers, allowed, strict=True)
    ]
    path = hull_path(groups)

    def plan(budget_bytes: int) -> PlacementPlan:
        capacity = choices.capacity(budget_bytes)
        if capacity < 0:
            return choices.plan(SOLVER.name, budget_bytes, choices.nothing)
        steps = dense.last_within(capacity)
        choice = dense.choice(steps)
        if steps == len(dense.part):
            chosen = _most_activations(groups, path, capacity - int(dense.held[steps]))
            for number, (options, option) in enumerate(zip(allowed, chosen, strict=True)):
                choice[number] = int(options[option])
        return choices.plan(SOLVER.name, budget_bytes, choice)

    return plan


def _allowed_options(choices: Choices, number: int) -> _Ids:
    """Return the layer's options, i64[n], with all dense parts and no or enough neurons."""
    layer = choices.layers[number]
    options = np.arange(layer.first_group, len(layer.num_hot))
    least = least_neurons(choices.problem, number)
    if least is None:
        return options[:1]
    num_hot = layer.num_hot[options]
    return np.asarray(options[(num_hot == 0) | (num_hot >= least)])


def _most_activations(groups: Sequence[PartOptions], path: Path, capacity: int) -> list[int]:
    """Find the options of least cost that fit: HiGHS on those that may be part of an optimum."""
    steps = path.last_within(capacity)
    known, known_cost = path.choice(steps), float(path.cost[steps])
    if steps == len(path.part):
        return known
    price = (path.cost[steps] - path.cost[steps + 1]) / (path.held[steps + 1] - path.held[steps])
    # Cost of each option at this price of a byte. The sum over layers is at least `bound`, so
    # options worse than the best of their layer by more than `margin` are in no optimum.
    excess = [options.cost + price * options.held for options in groups]
    bound = sum(float(costs.min()) for costs in excess) - price * capacity
    margin = known_cost - bound + 1e-9 * abs(bound)
    kept = [np.flatnonzero(costs <= costs.min() + margin) for costs in excess]
    chosen = _solve(groups, kept, capacity) or known
    pairs = list(zip(groups, chosen, strict=True))
    fits = sum(int(part.held[option]) for part, option in pairs) <= capacity
    cost = sum(float(part.cost[option]) for part, option in pairs)
    return chosen if fits and cost <= known_cost else known


def _solve(groups: Sequence[PartOptions], kept: Sequence[_Ids], capacity: int) -> list[int]:
    """Choose one of the kept options per layer; none if the solver found nothing."""
    held = np.concatenate([part.held[ids] for part, ids in zip(groups, kept, strict=True)])
    cost = np.concatenate([part.cost[ids] for part, ids in zip(groups, kept, strict=True)])
    unit = max(1, math.gcd(*(int(value) for value in np.unique(held))))
    counts = [len(ids) for ids in kept]
    one_each = sparse.csr_matrix(
        (np.ones(len(cost)), np.arange(len(cost)), np.concatenate([[0], np.cumsum(counts)]))
    )
    solved = milp(
        cost,
        integrality=np.ones(len(cost)),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(one_each, 1, 1),
            LinearConstraint((held // unit)[np.newaxis, :], -np.inf, capacity // unit),
        ],
        options=_OPTIONS,
    )
    if solved.x is None:
        return []
    parts = np.split(solved.x, np.cumsum(counts)[:-1])
    return [int(ids[np.argmax(part)]) for ids, part in zip(kept, parts, strict=True)]


SOLVER = Solver("paper", "the paper's integer program: most activations on the GPU", _prepare)
