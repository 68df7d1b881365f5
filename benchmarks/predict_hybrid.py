"""Predicts decoding at a third of the model, without a GPU: before and after plans had one run.

Three plans of each model within a third of its bytes, all by the same cost model and by the speeds
that are written here; nothing is measured.

before   each layer placed by itself, as the solver did before its plans had one run, and executed
         eagerly where the step cannot be one graph: 0.3 ms of Python for each layer on the GPU.
after    the solver's plan, recorded.
offload  whole layers on the GPU, the others on the CPU, all neurons computed, recorded.

Run: python benchmarks/predict_hybrid.py
"""

from dataclasses import dataclass, replace

import numpy as np

from planting.shapes import SHAPES, PlantedShape
from powerinfer.ops.gpu.formats import device_bytes
from powerinfer.placement.cost_model import CostModel, DeviceSpeed
from powerinfer.placement.plan import PlacementPlan
from powerinfer.placement.problem import ActivationStats, LayerSizes, ModelSizes, PlacementProblem
from powerinfer.placement.solvers import get_solver
from powerinfer.placement.solvers._choices import Choices, PartOptions, hull_path
from powerinfer.placement.step_time import num_runs, step_s
from powerinfer.values import FloatArray
from two_devices.sides import SIDES

# The RTX 4090 that `powerinfer plan` assumes, and a server's CPU.
COST = CostModel(
    gpu=DeviceSpeed(8.5e11, 6e11, 1e-5),
    cpu=DeviceSpeed(1e11, 7.5e10, 1e-5),
    handoff_s=1.5e-5,
    transfer_bytes_per_s=2.2e10,
    run_s=6e-5,
)
# Of one layer in state S: 17 launches of Triton kernels from Python, counted, not timed.
EAGER_LAYER_S = 3e-4
RANK, CONTEXT, OVERHEAD_BYTES = 1024, 2048, 800 << 20
# Neurons that the predictors let pass, as a share of all: more than fire.
PREDICTED = {"relullama-7b": 0.12, "falcon-40b": 0.06}
ROWS = (
    ("relullama-7b", "f16"),
    ("relullama-7b", "q4_0"),
    ("falcon-40b", "f16"),
    ("falcon-40b", "q4_0"),
)


@dataclass(frozen=True)
class Row:
    """Tokens per second of one model; `before` and `after` with the plan's own facts."""

    name: str
    before: float
    before_runs: int
    after: float
    offload: float


def frequencies(shape: PlantedShape, predicted: float) -> FloatArray:
    """A power law in every layer, of which so many neurons are predicted for a token."""
    rng = np.random.default_rng(0)
    rank = np.arange(shape.intermediate_size) / (0.03 * shape.intermediate_size)
    exponents = rng.uniform(0.6, 1.6, (shape.num_layers, 1))
    values = (1.0 + rank) ** -exponents
    for _ in range(20):
        values = np.minimum(values * predicted / values.mean(axis=1, keepdims=True), 1.0)
    return rng.permuted(values, axis=1).astype(np.float32)


def problem_of(name: str, format_name: str, *, is_sparse: bool) -> PlacementProblem:
    """A model with `mlp:q4_0` predictors, or with all neurons computed, at a third of its bytes."""
    shape = SHAPES[name]
    hidden, neurons = shape.hidden_size, shape.intermediate_size
    row = device_bytes(format_name, 1, hidden)
    num_rows = 3 if shape.is_gated else 2
    kv_bytes = 2 * 2 * shape.kv_size
    layer = LayerSizes(
        attention_bytes=row * (2 * hidden + 2 * shape.kv_size),
        kv_bytes=kv_bytes * CONTEXT,
        predictor_bytes=device_bytes("q4_0", RANK, hidden) + device_bytes("q4_0", neurons, RANK),
        neuron_bytes=num_rows * row + 12,
        idle_bytes=0,
        active_bytes=num_rows * row,
        kv_read_bytes=kv_bytes * 512,
    )
    if not is_sparse:
        layer = replace(layer, predictor_bytes=0, idle_bytes=num_rows * row, active_bytes=0)
    sizes = ModelSizes(
        layers=(layer,) * shape.num_layers,
        num_neurons=neurons,
        hidden_size=hidden,
        output_bytes=row * shape.vocab_size,
        overhead_bytes=OVERHEAD_BYTES,
        is_parallel=shape.is_parallel,
    )
    stats = ActivationStats(frequencies(shape, PREDICTED[name]), "a power law", 0)
    return PlacementProblem("", sizes, stats, COST, 0)


def placed_each_by_itself(problem: PlacementProblem) -> PlacementPlan:
    """The shortest decode step where layers on the CPU cost hand-offs and runs cost nothing."""
    alone = replace(problem, prompt_tokens=0.0)
    choices = Choices(alone)
    handoffs = [1 if problem.sizes.is_parallel else 2] * len(problem.sizes.layers) + [1]
    parts = []
    for part, count in zip(choices.parts, handoffs, strict=True):
        cost = part.cost + part.held * choices.byte_s
        cost[0] += count * problem.cost.handoff_s
        parts.append(PartOptions(part.held, cost))
    path = hull_path(parts)
    capacity = choices.capacity(problem.budget_bytes)
    return choices.plan("before", problem.budget_bytes, path.choice(path.best_within(capacity)))


def eager_s(problem: PlacementProblem, plan: PlacementPlan) -> float:
    """A step of such a plan: recorded if everything but neurons is on the GPU, else eager."""
    on_gpu = [layer for layer in plan.layers if layer.has_attention]
    has_all_predictors = all(layer.has_predictor for layer in plan.layers)
    if plan.has_output and has_all_predictors and len(on_gpu) == len(plan.layers):
        return step_s(problem, plan)
    return step_s(problem, plan) + EAGER_LAYER_S * len(on_gpu)


def row_of(name: str, format_name: str) -> Row:
    """Predict one model."""
    sparse, dense = (problem_of(name, format_name, is_sparse=flag) for flag in (True, False))
    budget = OVERHEAD_BYTES + (dense.sizes.full_bytes - OVERHEAD_BYTES) // 3
    sparse, dense = (replace(each, budget_bytes=budget) for each in (sparse, dense))
    every = np.ones_like(dense.stats.frequency)
    dense = replace(dense, stats=replace(dense.stats, frequency=every))
    before = placed_each_by_itself(sparse)
    after = get_solver("latency").solve(sparse)
    offload = SIDES["b"].plan(dense)
    return Row(
        f"{name} {format_name}",
        1 / eager_s(sparse, before),
        num_runs(before),
        1 / step_s(sparse, after),
        1 / step_s(dense, offload),
    )


def main() -> None:
    """Print the table."""
    columns = ("model", "before", "after", "layer offload", "after / before", "after / offload")
    print(f"| {' | '.join(columns)} |")
    print("|---|---|---|---|---|---|")
    for name, format_name in ROWS:
        row = row_of(name, format_name)
        print(
            f"| {row.name} | {row.before:.1f} ({row.before_runs} runs) | {row.after:.1f} | "
            f"{row.offload:.1f} | {row.after / row.before:.2f} | {row.after / row.offload:.1f} |"
        )


if __name__ == "__main__":
    main()
