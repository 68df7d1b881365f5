"""Placement problems for tests: small random ones, and shapes of real models."""

import importlib.util
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import strategies as st

from powerinfer import _plugins
from powerinfer.placement.cost_model import CostModel, DeviceSpeed
from powerinfer.placement.plan import LayerPlacement, PlacementPlan
from powerinfer.placement.problem import (
    ActivationStats,
    HostReads,
    LayerSizes,
    ModelSizes,
    PlacementProblem,
)
from powerinfer.values import FloatArray

GIB = 1 << 30

needs_scipy = pytest.mark.skipif(
    importlib.util.find_spec("scipy") is None, reason="scipy is not installed"
)
SOLVERS = [
    pytest.param(name, marks=needs_scipy if name == "paper" else ())
    for name in _plugins.keys("powerinfer.placement.solvers")
]
"""Every solver there is; those that lack their library skip."""

# About an H200 and a server CPU.
COST = CostModel(
    gpu=DeviceSpeed(3.5e12, 2e12, 8e-6),
    cpu=DeviceSpeed(1e11, 7.5e10, 1e-5),
    handoff_s=25e-6,
    transfer_bytes_per_s=5e10,
    run_s=6e-5,
)


def power_law(num_layers: int, num_neurons: int, seed: int = 0) -> FloatArray:
    """Frequencies of which few are large, in random order; every layer with its own exponent."""
    rng = np.random.default_rng(seed)
    rank = np.arange(num_neurons) / (0.03 * num_neurons)
    exponents = rng.uniform(0.6, 1.6, (num_layers, 1))
    frequency = 0.9 * (1.0 + rank) ** -exponents * rng.uniform(0.9, 1.1, (1, num_neurons))
    return rng.permuted(np.minimum(frequency, 1.0), axis=1).astype(np.float32)


def model_shape(
    num_layers: int, hidden_size: int, num_neurons: int, *, has_predictor: bool, is_parallel: bool
) -> PlacementProblem:
    """An F16 model with a context of 4096; its whole size is the budget."""
    kv_bytes = 2 * 4096 * (hidden_size // 8) * 2
    layer = LayerSizes(
        attention_bytes=hidden_size * hidden_size * 9 // 4 * 2,
        kv_bytes=kv_bytes,
        predictor_bytes=(hidden_size + num_neurons) * 1024 * 2 if has_predictor else 0,
        neuron_bytes=3 * hidden_size * 2,
        idle_bytes=0 if has_predictor else hidden_size * 2,
        active_bytes=(3 if has_predictor else 2) * hidden_size * 2,
        kv_read_bytes=kv_bytes // 2,
    )
    sizes = ModelSizes(
        layers=(layer,) * num_layers,
        num_neurons=num_neurons,
        hidden_size=hidden_size,
        output_bytes=32000 * hidden_size * 2,
        overhead_bytes=GIB,
        is_parallel=is_parallel,
    )
    stats = ActivationStats(power_law(num_layers, num_neurons), "power law", 1000)
    return PlacementProblem("", sizes, stats, COST, sizes.full_bytes)


def smallest(num_layers: int, num_neurons: int, identity: str) -> PlacementProblem:
    """A model with predictors and hardly any bytes."""
    layers = (LayerSizes(1, 1, 1, 1, 0, 1),) * num_layers
    sizes = ModelSizes(layers, num_neurons, 8, output_bytes=1, overhead_bytes=1)
    stats = ActivationStats(np.zeros((num_layers, num_neurons), np.float32), "none", 0)
    return PlacementProblem(identity, sizes, stats, COST, GIB)


def with_budget(problem: PlacementProblem, budget_bytes: int) -> PlacementProblem:
    """The same problem with another budget."""
    return replace(problem, budget_bytes=budget_bytes)


_SIZES = st.integers(0, 300)
_TIMES = st.sampled_from([0.0, 1e-6, 30e-6, 1e-3])


@st.composite
def _speeds(draw: st.DrawFn) -> DeviceSpeed:
    read, gather = (draw(st.floats(1e5, 1e8)) for _ in range(2))
    return DeviceSpeed(read, gather, draw(_TIMES))


@st.composite
def _layers(draw: st.DrawFn, *, has_predictor: bool) -> LayerSizes:
    host = st.builds(HostReads, _SIZES, _SIZES, st.integers(0, 20), st.integers(0, 20), _SIZES)
    return LayerSizes(
        attention_bytes=draw(_SIZES),
        kv_bytes=draw(_SIZES),
        predictor_bytes=draw(st.integers(1, 300)) if has_predictor else 0,
        neuron_bytes=draw(st.integers(0, 20)),
        idle_bytes=draw(st.integers(0, 20)),
        active_bytes=draw(st.integers(0, 20)),
        kv_read_bytes=draw(_SIZES),
        host=draw(st.none() | host),
    )


@st.composite
def _frequencies(draw: st.DrawFn, num_layers: int, num_neurons: int) -> FloatArray:
    kind = draw(st.sampled_from(["power law", "uniform", "few values", "none", "all"]))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    shape = (num_layers, num_neurons)
    if kind == "power law":
        return power_law(num_layers, num_neurons, draw(st.integers(0, 99)))
    if kind == "uniform":
        return rng.random(shape, np.float32)
    if kind == "few values":
        return (rng.integers(0, 4, shape) / 3).astype(np.float32)
    return np.full(shape, 0.0 if kind == "none" else 1.0, np.float32)


@st.composite
def problems(draw: st.DrawFn, max_layers: int = 4, max_neurons: int = 300) -> PlacementProblem:
    """Any small problem."""
    num_experts = draw(st.sampled_from([1, 1, 2, 5]))
    num_neurons = num_experts * draw(st.integers(1, max_neurons // num_experts))
    has_predictor = draw(st.booleans())
    layers = draw(st.lists(_layers(has_predictor=has_predictor), min_size=1, max_size=max_layers))
    sizes = ModelSizes(
        layers=tuple(layers),
        num_neurons=num_neurons,
        hidden_size=64,
        output_bytes=draw(_SIZES),
        overhead_bytes=draw(st.sampled_from([0, 100, 1000])),
        is_parallel=draw(st.booleans()),
        host_output_bytes=draw(st.none() | _SIZES),
        num_experts=num_experts,
        num_used=draw(st.integers(1, num_experts)),
    )
    transfer = draw(st.floats(1e4, 1e8))
    cost = CostModel(draw(_speeds()), draw(_speeds()), draw(_TIMES), transfer, draw(_TIMES))
    prompt_tokens, batch = draw(st.sampled_from([0.0, 0.3, 1.0, 40.0])), draw(st.integers(1, 600))
    stats = ActivationStats(draw(_frequencies(len(layers), num_neurons)), "random", 10)
    budget = draw(st.integers(0, sizes.full_bytes + 100))
    return PlacementProblem("model", sizes, stats, cost, budget, prompt_tokens, batch)


@st.composite
def plans(draw: st.DrawFn) -> PlacementPlan:
    """Any plan of a small model, with any hot sets."""
    num_neurons = draw(st.integers(1, 70))
    return PlacementPlan(
        model_identity=draw(st.text(max_size=20)),
        solver=draw(st.text(max_size=20)),
        budget_bytes=draw(st.integers(0, 1 << 50)),
        num_neurons=num_neurons,
        has_output=draw(st.booleans()),
        layers=tuple(draw(st.lists(_placements(num_neurons), min_size=1, max_size=4))),
        predicted_s=draw(st.none() | st.floats(0, 1e9)),
    )


@st.composite
def _placements(draw: st.DrawFn, num_neurons: int) -> LayerPlacement:
    has_attention = draw(st.booleans())
    ids = draw(st.sets(st.integers(0, num_neurons - 1))) if has_attention else set()
    return LayerPlacement(
        has_attention=has_attention,
        has_predictor=has_attention and draw(st.booleans()),
        hot=np.array(sorted(ids), np.int32),
    )
