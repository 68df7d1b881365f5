"""Placed models keep to their budget of device memory, by a simulation of torch's allocator."""

import importlib.util
from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="torch is not installed")
# Not imported here: how Triton runs is chosen by our own import of it.
if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

import torch

from large_shapes import LARGE_MODELS, hybrid, shaped_model
from placement_cases import COST, power_law
from powerinfer.engine.offload.model_sizes import (
    CHUNK_BYTES,
    SPARE_NEURONS,
    SizeAssumptions,
    model_sizes,
)
from powerinfer.models import Model
from powerinfer.models.placing import count_bytes
from powerinfer.ops.gpu.memory import Arena
from powerinfer.ops.protocol import KVType
from powerinfer.placement.activation_stats import ActivationStats
from powerinfer.placement.plan import PlacementPlan
from powerinfer.placement.problem import PlacementProblem
from powerinfer.placement.sizes import ModelSizes
from powerinfer.placement.solver import get_solver
from simulated_memory import MIB, CachingAllocator

# Of a layer: gaps behind arrays that it lacks, and of parts that lie in one array.
_LAYER_GAPS = 4096


def _assumed(kv_type: KVType, *, neurons_move: bool) -> SizeAssumptions:
    return SizeAssumptions(kv_type, 1, 512, context_bytes=0, neurons_move=neurons_move)


def _kv_bytes(model: Model, plan: PlacementPlan, sizes: ModelSizes) -> int:
    pairs = zip(sizes.layers, plan.layers, strict=True)
    return sum(layer.kv_bytes for layer, place in pairs if place.has_attention)


def _plan_of(sizes: ModelSizes, budget: int) -> PlacementPlan:
    stats = ActivationStats(power_law(len(sizes.layers), sizes.num_neurons), "power law", 1000)
    return get_solver("greedy").solve(PlacementProblem("", sizes, stats, COST, budget))


def _count(model: Model, plan: PlacementPlan, *, neurons_move: bool) -> int:
    ops = hybrid(
        model, plan, neurons_move=neurons_move, chunk_bytes=CHUNK_BYTES, max_moves=SPARE_NEURONS
    )
    return count_bytes(model, ops)


@pytest.mark.parametrize("neurons_move", [False, True])
@pytest.mark.parametrize("name", LARGE_MODELS)
def test_weights_and_cache_take_what_was_promised(name: str, neurons_move: bool) -> None:
    model = shaped_model(LARGE_MODELS[name])
    sizes = model_sizes(model, _assumed(KVType.F16, neurons_move=neurons_move))
    # In the overhead for them: slots kept free, chunks of cold neurons, angles.
    nothing = replace(model, rope=None)
    still = model_sizes(nothing, _assumed(KVType.F16, neurons_move=False))
    beside = sizes.overhead_bytes - still.overhead_bytes + 2 * (CHUNK_BYTES + 4096)
    for share in (0.25, 0.5, 1.0):
        weight_bytes = sizes.full_bytes - sizes.overhead_bytes
        plan = _plan_of(sizes, sizes.overhead_bytes + int(share * weight_bytes))
        promised = sizes.placed_bytes(plan) - sizes.overhead_bytes
        taken = [_count(model, plan, neurons_move=neurons_move), _kv_bytes(model, plan, sizes)]
        assert promised - _LAYER_GAPS * len(sizes.layers) <= sum(taken) + beside
        assert sum(taken) <= promised + beside
        assert CachingAllocator().allocate_all(taken) <= sum(taken) + 4 * MIB


@pytest.mark.parametrize("name", ["7B Q4_0", "70B Q4_0"])
def test_arrays_of_their_own_would_take_more(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the arena is for: without it a budget of all the model is exceeded."""
    model = shaped_model(LARGE_MODELS[name])
    sizes = model_sizes(model, _assumed(KVType.F16, neurons_move=False))
    plan = _plan_of(sizes, sizes.full_bytes)
    arrays: list[int] = []
    array = Arena.array

    def noted(self: Arena, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        found = array(self, shape, dtype)
        arrays.append(found.nbytes)
        return found

    monkeypatch.setattr(Arena, "array", noted)
    taken = _count(model, plan, neurons_move=False)
    apart = CachingAllocator().allocate_all(arrays)
    assert apart > taken + 24 * MIB
