"""Placed models keep to their budget of device memory, by a simulation of torch's allocator."""

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")
# Not imported here: how Triton runs is chosen by our own import of it.
if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)


import torch

from large_shapes import LARGE_MODELS, hybrid, shaped_model
from placed_models import load, make_plan, place, tiny_file
from placement_cases import COST, power_law
from powerinfer.models import Model
from powerinfer.offload.model_sizes import (
    CHUNK_BYTES,
    SPARE_NEURONS,
    SizeAssumptions,
    model_sizes,
)
from powerinfer.offload.placing import count_bytes
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.gpu import ffn as gpu_ffn
from powerinfer.ops.gpu import linear as gpu_linear
from powerinfer.ops.gpu.matrix import DeviceMatrix
from powerinfer.ops.gpu.memory import Arena, DeviceMemory
from powerinfer.ops.hybrid import streamed as streamed_layers
from powerinfer.ops.hybrid.handles import device_linears, fused_whole
from powerinfer.ops.hybrid.migration import OnlineMode, OnlineSettings
from powerinfer.ops.hybrid.ops import HybridSettings
from powerinfer.ops.hybrid.streamed import StreamedWeights
from powerinfer.ops.protocol import KVType
from powerinfer.placement.plan import PlacementPlan
from powerinfer.placement.problem import ActivationStats, ModelSizes, PlacementProblem
from powerinfer.placement.solvers import get_solver
from powerinfer.values import Activation, ActivationKind
from simulated_memory import MIB, CachingAllocator, watched

# Of a layer: gaps behind arrays that it lacks, and of parts that lie in one array.
_LAYER_GAPS = 4096


def _assumed(kv_type: KVType, *, neurons_move: bool) -> SizeAssumptions:
    return SizeAssumptions(kv_type, 1, 512, driver_bytes=0, neurons_move=neurons_move)


def _kv_bytes(model: Model, plan: PlacementPlan, sizes: ModelSizes) -> int:
    pairs = zip(sizes.layers, plan.layers, strict=True)
    return sum(layer.kv_bytes for layer, place in pairs if place.has_attention)


def _plan_of(sizes: ModelSizes, budget: int) -> PlacementPlan:
    stats = ActivationStats(power_law(len(sizes.layers), sizes.num_neurons), "power law", 1000)
    return get_solver("greedy").solve(PlacementProblem("", sizes, stats, COST, budget))


def _count(model: Model, plan: PlacementPlan, *, neurons_move: bool) -> int:
    """Bytes of all but the chunks of cold neurons."""
    ops = hybrid(
        model, plan, neurons_move=neurons_move, chunk_bytes=CHUNK_BYTES, max_moves=SPARE_NEURONS
    )
    counted, blocks = count_bytes(model, ops), cast("Any", ops.blocks)
    return counted - int(blocks._chunks.nbytes)


def _most_held(model: Model, plan: PlacementPlan, *, neurons_move: bool) -> int:
    """What was promised to lie in the arenas, chunks apart."""
    sizes = model_sizes(model, _assumed(KVType.F16, neurons_move=neurons_move))
    attention = tuple(replace(options, rope=None) for options in model.attention)
    unrotated = replace(model, attention=attention)
    plain = model_sizes(unrotated, _assumed(KVType.F16, neurons_move=False))
    # The overhead for them: slots kept free, and angles.
    beside = sizes.overhead_bytes - plain.overhead_bytes
    return sizes.placed_bytes(plan) - sizes.overhead_bytes + beside


@pytest.mark.each_value
@pytest.mark.parametrize("neurons_move", [False, True])
@pytest.mark.parametrize("name", LARGE_MODELS)
def test_weights_and_cache_take_what_was_promised(name: str, neurons_move: bool) -> None:
    model = shaped_model(LARGE_MODELS[name])
    sizes = model_sizes(model, _assumed(KVType.F16, neurons_move=neurons_move))
    for share in (0.25, 0.5, 1.0):
        budget = int(share * (sizes.full_bytes - sizes.overhead_bytes))
        plan = _plan_of(sizes, sizes.overhead_bytes + budget)
        taken = [_count(model, plan, neurons_move=neurons_move), _kv_bytes(model, plan, sizes)]
        promised = _most_held(model, plan, neurons_move=neurons_move)
        unused = promised - sum(taken)
        # A layer whose neurons are the CPU's has no tables, and slots are kept free, and scores,
        # where some neurons lie on the device and some do not.
        most = (_LAYER_GAPS + 8 * sizes.num_neurons) * len(sizes.layers)
        if neurons_move:
            most += SPARE_NEURONS * sum(layer.neuron_bytes for layer in sizes.layers)
        assert 0 <= unused <= most
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


def _without_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let products of prompts only allocate."""

    def multiplied(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.new_empty((x.shape[0], y.shape[1]), dtype=torch.float32)

    def halved(x: torch.Tensor, _largest: float) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.empty_like(x, dtype=torch.float16), x.new_empty((len(x), 1))

    monkeypatch.setattr(gpu_linear, "decode_rows", lambda *_: None)
    monkeypatch.setattr(gpu_linear, "halved", halved)
    monkeypatch.setattr(gpu_ffn, "select_values", lambda *_: None)
    monkeypatch.setattr(gpu_linear, "multiplied", multiplied)
    monkeypatch.setattr(gpu_ffn, "multiplied", multiplied)


def _others(model: Model) -> int:
    """Shares of the overhead for pools, chunks (in the arena), uploads and angles."""
    return (64 + 2 * 32) * MIB + 2 * CHUNK_BYTES + 2 * model.context_length * 64 * 4


@pytest.mark.each_value
@pytest.mark.parametrize(
    "kind", [ActivationKind.RELU, ActivationKind.DRELU, ActivationKind.CLAMPED_SWIGLU]
)
@pytest.mark.parametrize("name", LARGE_MODELS)
def test_prompts_keep_to_their_workspace(
    name: str, kind: ActivationKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the products of one layer, without numbers: the allocator reserves what was set aside."""
    _without_numbers(monkeypatch)
    model, num_tokens = shaped_model(LARGE_MODELS[name]), 512
    sizes = model_sizes(model, _assumed(KVType.F16, neurons_move=False))
    hidden, neurons = model.config.hidden_size, model.config.num_neurons
    plan = _plan_of(sizes, 0)
    ops = hybrid(model, plan, neurons_move=False, chunk_bytes=CHUNK_BYTES, max_moves=0)
    placer, layer = ops.placer(Arena.counting()), cast("Any", model.weights.layers[0])
    table = placer.arena.array((neurons,), torch.int32)
    hot = replace(
        placer.empty_neurons(layer.ffn, neurons),
        activation=Activation(kind),
        neuron_of_slot=table,
        slot_of_neuron=table,
        counters=placer.arena.array((3,), torch.int64),
    )
    parts = placer.joined(layer.mixer.qkv)
    fused = fused_whole(parts)
    # Packed formats that differ are not joined.
    assert (fused is None) == (name == "7B Q4_K")
    products = device_linears(parts) if fused is None else [fused.whole]
    output = placer.linear(layer.mixer.attn_output).matrix.device
    allocator = CachingAllocator()
    with watched(allocator, "meta"):
        stream = torch.empty((num_tokens, hidden), device="meta")
        normed = torch.empty_like(stream)
        qkv = gpu_linear.linear(normed, products)
        attended = torch.empty_like(stream)
        del qkv
        stream.add_(gpu_linear.product(attended, output))
        del attended
        mask = torch.empty((num_tokens, neurons), dtype=torch.uint8, device="meta")
        weights = None
        if model.config.num_experts:
            weights = torch.empty((num_tokens, model.config.num_experts), device="meta")
        stream.add_(gpu_ffn.masked_ffn(normed, hot, mask, weights))
    assert allocator.reserved <= sizes.overhead_bytes - _others(model)


@pytest.mark.parametrize("name", [name for name in LARGE_MODELS if name.startswith("7")])
def test_layers_that_are_sent_keep_to_the_same_workspace(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _without_numbers(monkeypatch)
    model, num_tokens = shaped_model(LARGE_MODELS[name]), 512
    sizes = model_sizes(model, _assumed(KVType.F16, neurons_move=False))
    ops = hybrid(
        model, _plan_of(sizes, 0), neurons_move=False, chunk_bytes=CHUNK_BYTES, max_moves=0
    )
    uploads, layer = ops.uploads, cast("Any", model.weights.layers[0])
    room = Arena.counting()

    def sent(_self: StreamedWeights, matrix: Any) -> list[DeviceMatrix]:
        return [chunk.place(room) for chunk in uploads.chunks(matrix, CHUNK_BYTES)]

    monkeypatch.setattr(streamed_layers, "select_values", lambda *_: None)
    monkeypatch.setattr(StreamedWeights, "_count", lambda *_: None)
    monkeypatch.setattr(StreamedWeights, "_sent", sent)
    unused = cast("Any", None)
    streamed = StreamedWeights(uploads, unused, unused, unused)
    allocator = CachingAllocator()
    with watched(allocator, "meta"):
        x = torch.empty((num_tokens, model.config.hidden_size), device="meta")
        normed = torch.empty_like(x)
        q, k, v = streamed.linear(normed, layer.mixer.qkv)
        # As much as keys and values of f16, and what fills their blocks up.
        kept, attended = k.clone(), torch.empty_like(x)
        del q, k, v, kept
        x.add_(streamed.linear(attended, [layer.mixer.attn_output])[0])
        del attended
        x.add_(streamed.ffn(normed, layer.ffn, normed))
    assert allocator.reserved <= sizes.overhead_bytes - _others(model)


@pytest.mark.parametrize(
    "name",
    [
        "bamboo",
        "nemotron-biases",
        "llama-relu",
        "opt-powerinfer",
        "mixtral-relu-biases",
        "granitemoe-shared",
    ],
)
def test_small_models_lie_in_two_arenas(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever placing takes of torch and keeps is the two, as large as was promised."""
    arenas: list[int] = []
    allocate = Arena.allocate

    def noted(device: torch.device, num_bytes: int, what: str, **options: Any) -> Arena:
        arenas.append(num_bytes)
        return allocate(device, num_bytes, what, **options)

    def pinned(self: DeviceMemory, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        # Not torch's memory: the simulation is of the device's.
        return torch.from_numpy(np.empty(shape, str(dtype).removeprefix("torch.")))

    def to_device(self: DeviceMemory, values: Any) -> torch.Tensor:
        return torch.from_numpy(values).clone()

    monkeypatch.setattr(Arena, "allocate", noted)
    monkeypatch.setattr(DeviceMemory, "pinned", pinned)
    monkeypatch.setattr(DeviceMemory, "to_device", to_device)
    model = load(tiny_file(tmp_path, name), NativeOps(1))
    plan = make_plan("SF", 3, num_neurons=model.config.num_neurons)
    settings = HybridSettings(online=OnlineSettings(mode=OnlineMode.ON, max_moves=SPARE_NEURONS))
    allocator = CachingAllocator()
    with watched(allocator, "cpu"):
        placed = place(model, plan, settings)
        cache = placed.new_cache(64)
    weights, kv = arenas
    # The counters of layers are apart: a few bytes.
    assert weights + kv <= allocator.requested <= weights + kv + 1024
    chunks = int(cast("Any", placed.ops).blocks._chunks.nbytes)
    assert _most_held(model, plan, neurons_move=True) - (weights + kv - chunks) >= 0
    sizes = model_sizes(model, _assumed(KVType.F16, neurons_move=True))
    assert allocator.reserved <= sizes.placed_bytes(plan)
    assert len(cache.layers) == 2
