"""Placing: sizes, plans, what happens when memory runs out. The GPU is a stand-in."""

import logging
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from powerinfer import LLM
from powerinfer.engine.offload import place as placement
from powerinfer.engine.offload import problem as placement_problem
from powerinfer.engine.offload.choose_plan import choose_plan, without_neurons
from powerinfer.engine.offload.device_speeds import ASSUMED_GPU
from powerinfer.engine.offload.devices import Device
from powerinfer.engine.offload.model_sizes import (
    CONTEXT_BYTES,
    SPARE_NEURONS,
    SizeAssumptions,
    model_sizes,
)
from powerinfer.engine.offload.place import Placement, place, prefill_crossover
from powerinfer.engine.offload.problem import PlacementTask, budget_bytes, placement_task
from powerinfer.engine.options import EngineOptions, engine_options
from powerinfer.engine.vram_budget import MARGIN_BYTES
from powerinfer.errors import OutOfDeviceMemoryError, PlacementError
from powerinfer.ops.protocol import KVType
from powerinfer.placement.plan import PlacementPlan
from tiny_models import TINY_MODELS, write_model

STAND_IN = Device("cpu", "a stand-in", is_interpreted=True)
ASSUMED = SizeAssumptions(KVType.F16, seq_len=16, batch_size=512)
MODELS = ("bamboo", "llama-relu", "falcon", "falcon-40b-powerinfer", "opt-powerinfer", "arcee")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def bamboo(folder: Path) -> Iterator[LLM]:
    with LLM(write_model(folder / "bamboo.gguf", TINY_MODELS["bamboo"]), device="cpu") as llm:
        yield llm


def _task(llm: LLM, budget: str = "1", **options: Any) -> PlacementTask:
    loaded = llm.loaded
    asked = engine_options(vram_budget=budget, **options)
    return placement_task(loaded.sparsity, loaded.file, loaded.tokenizer, asked, STAND_IN)


def _place(llm: LLM, budget: str = "1", **options: Any) -> Placement:
    loaded = llm.loaded
    asked = engine_options(vram_budget=budget, solver="greedy", **options)
    return place(loaded.sparsity, loaded.file, loaded.tokenizer, asked, STAND_IN)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("sparsity", ["off", None])
def test_sizes_of_float_models_are_those_of_the_file(
    folder: Path, name: str, sparsity: str | None
) -> None:
    path = write_model(folder / f"{name}.gguf", TINY_MODELS[name])
    with LLM(path, device="cpu", sparsity=sparsity) as llm:
        loaded = llm.loaded
        sizes = model_sizes(loaded.model, ASSUMED)
        tensors = loaded.file.tensors
    for number, layer in enumerate(sizes.layers):
        own = {n.split(".", 2)[2]: t for n, t in tensors.items() if n.startswith(f"blk.{number}.")}
        parts = {n: t.num_bytes for n, t in own.items() if "ffn_" not in n and "fc" not in n}
        norms = sum(t.num_bytes for n, t in own.items() if n.startswith("ffn_norm"))
        down_bias = sum(
            t.num_bytes for n, t in own.items() if n.startswith("ffn_down") and "bias" in n
        )
        assert layer.attention_bytes == sum(parts.values()) + norms + down_bias
        neurons = sum(
            t.num_bytes for n, t in own.items() if n.startswith(("ffn_gate", "ffn_up", "ffn_down"))
        )
        placed = (layer.neuron_bytes - 12) * sizes.num_neurons
        assert placed == neurons - down_bias
        predictor = sum(t.num_bytes for n, t in own.items() if n.startswith("fc"))
        assert layer.predictor_bytes == (predictor if sparsity is None else 0)
        read = layer.idle_bytes + layer.active_bytes
        assert read == layer.neuron_bytes - 12
        assert (layer.active_bytes == 0) == (loaded.model.sparsity == "off")
        matrices = ("ffn_gate.weight", "ffn_up.weight", "ffn_down.weight", "ffn_down_t.weight")
        rows = {n: own[n].num_bytes for n in matrices if n in own}
        host = layer.host_reads
        # A down whose rows are not neurons is read whole on the CPU.
        assert host.down_bytes == rows.get("ffn_down.weight", 0)
        per_neuron = host.idle_bytes + host.active_bytes
        assert per_neuron * sizes.num_neurons + host.down_bytes == sum(rows.values())
    assert sizes.is_parallel == name.startswith("falcon")
    assert sizes.overhead_bytes > CONTEXT_BYTES


def test_slots_for_neurons_that_move(bamboo: LLM) -> None:
    model = bamboo.loaded.model
    still, moving = (
        model_sizes(model, replace(ASSUMED, neurons_move=moves)) for moves in (False, True)
    )
    spare = sum(SPARE_NEURONS * layer.neuron_bytes for layer in still.layers)
    assert moving.overhead_bytes == still.overhead_bytes + spare
    task = _task(bamboo, online=True)
    assert task.problem.sizes.overhead_bytes == _task(bamboo).problem.sizes.overhead_bytes + spare


def test_budgets_by_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement_problem, "_free_bytes", lambda _: 10 << 30)
    device = Device("cuda:0", "a GPU")
    assert budget_bytes(EngineOptions(), device) == (10 << 30) - MARGIN_BYTES
    assert budget_bytes(engine_options(vram_budget="4"), device) == 4 << 30
    assert budget_bytes(engine_options(vram_budget="50%"), device) == 5 << 30


def test_more_than_is_free_is_warned_about(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(placement_problem, "_free_bytes", lambda _: 10 << 30)
    got = budget_bytes(engine_options(vram_budget="40"), Device("cuda:0", "a GPU"))
    assert got == (10 << 30) - MARGIN_BYTES
    assert "40.00 GiB were asked for, but a GPU has only 10.00 GiB free" in caplog.text


def test_only_native_models_are_placed(folder: Path) -> None:
    path = write_model(folder / "reference.gguf", TINY_MODELS["bamboo"])
    with LLM(path, kernels="reference") as llm, pytest.raises(PlacementError, match="reference"):
        _task(llm)


def test_an_interpreted_gpu_is_assumed_to_be_fast(bamboo: LLM) -> None:
    task = _task(bamboo)
    assert task.speeds.gpu == ASSUMED_GPU
    assert task.speeds.is_gpu_assumed
    assert task.problem.sizes.overhead_bytes < CONTEXT_BYTES


def test_without_neurons_attention_fills_the_budget(bamboo: LLM) -> None:
    problem = _task(bamboo).problem
    sizes = problem.sizes
    layer = sizes.layers[0].attention_bytes + sizes.layers[0].kv_bytes
    for added, layers, has_output in (
        (layer - 1, 0, False),
        (layer, 1, False),
        (2 * layer, 2, False),
        (2 * layer + sizes.output_bytes, 2, True),
    ):
        budget = sizes.overhead_bytes + added
        plan = without_neurons(replace(problem, budget_bytes=budget))
        assert sum(placed.has_attention for placed in plan.layers) == layers
        assert plan.has_output == has_output
        assert not any(len(placed.hot) or placed.has_predictor for placed in plan.layers)
        assert sizes.placed_bytes(plan) <= budget
        assert plan.predicted_s


def test_disabling_the_index_keeps_neurons_away(bamboo: LLM) -> None:
    chosen = choose_plan(_task(bamboo), EngineOptions(disable_gpu_index=True))
    assert chosen.plan.has_output
    assert not any(len(layer.hot) for layer in chosen.plan.layers)


def test_the_crossover_of_prompts(bamboo: LLM) -> None:
    problem = _task(bamboo).problem
    nothing = without_neurons(problem)
    cost = problem.cost
    fast_link = replace(problem, cost=replace(cost, transfer_bytes_per_s=1e15))
    slow_link = replace(problem, cost=replace(cost, transfer_bytes_per_s=1.0))
    assert prefill_crossover(fast_link, nothing) == 9
    assert prefill_crossover(slow_link, nothing) == 512
    every = np.arange(problem.sizes.num_neurons, dtype=np.int32)
    full = replace(nothing, layers=tuple(replace(one, hot=every) for one in nothing.layers))
    assert prefill_crossover(problem, full) == 9


class _Exhausted:
    """Stands in for placing: memory runs out a number of times."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.plans: list[PlacementPlan] = []

    def __call__(self, _task: Any, model: Any, plan: PlacementPlan, *_: Any) -> tuple[Any, Any]:
        self.plans.append(plan)
        if len(self.plans) <= self.times:
            raise OutOfDeviceMemoryError("the device has no room for a test")
        return model, None


def test_a_plan_that_does_not_fit_is_shrunk(
    bamboo: LLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake = _Exhausted(2)
    monkeypatch.setattr(placement, "_placed", fake)
    monkeypatch.setattr(placement_problem, "model_sizes", _without_overhead)
    found = _place(bamboo)
    budgets = [plan.budget_bytes for plan in fake.plans]
    assert budgets[0] == 1 << 30
    # The plan did not need the whole budget: a tenth less of what it needed must be tried.
    full = found.problem.sizes.full_bytes
    assert budgets[1:] == [int(0.9 * full), int(0.9 * int(0.9 * full))]
    assert found.plan.budget_bytes == budgets[2] == found.problem.budget_bytes
    assert found.gpu_bytes <= budgets[2]
    assert found.device == STAND_IN
    warnings = [record.message for record in caplog.records if "ran out" in record.message]
    assert len(warnings) == 2
    assert "no room for a test" in warnings[0]


def test_nothing_fits_in_the_end(
    bamboo: LLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake = _Exhausted(1000)
    monkeypatch.setattr(placement, "_placed", fake)
    monkeypatch.setattr(placement_problem, "model_sizes", _without_overhead)
    found = _place(bamboo)
    assert 5 < len(fake.plans) < 60
    assert found.model is found.cpu_model is bamboo.loaded.model
    assert not found.plan.has_anything
    assert found.gpu_bytes == 0
    assert found.handoff is None
    assert "the CPU runs alone" in caplog.text


def test_a_closed_model_gives_the_gpu_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    # Imports Triton such that kernels are interpreted where there is no GPU.
    pytest.importorskip("powerinfer.ops.gpu.kernels", reason="triton is not installed")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    path = write_model(folder / "closed.gguf", TINY_MODELS["bamboo"])
    with LLM(path, device="cuda", vram_budget="1", solver="greedy") as llm:
        placed = llm.loaded.placement
        assert placed is not None
        assert placed.plan.has_anything
        ops: Any = placed.model.ops
        held = weakref.ref(ops.gpu)
        del ops, placed
    assert held() is None


def test_a_named_plan_that_runs_out_of_memory_is_replaced(
    bamboo: LLM, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from powerinfer.engine.offload.plan_files import write_plan

    monkeypatch.setattr(placement_problem, "model_sizes", _without_overhead)
    named = write_plan(tmp_path / "p.json", _place_only_plan(bamboo))
    fake = _Exhausted(1)
    monkeypatch.setattr(placement, "_placed", fake)
    found = _place(bamboo, gpu_index=named)
    assert len(fake.plans) == 2
    assert "solved by greedy" in found.chosen.source


def test_a_cpu_that_is_faster_is_no_warning_unless_a_gpu_was_asked_for(
    bamboo: LLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = bamboo.loaded
    monkeypatch.setattr(placement_problem, "_free_bytes", lambda _: 2 << 30)
    with caplog.at_level(logging.INFO):
        place(loaded.sparsity, loaded.file, loaded.tokenizer, EngineOptions(), STAND_IN)
    told = [record for record in caplog.records if "predicted to be faster" in record.message]
    assert [record.levelno for record in told] == [logging.INFO]


def _place_only_plan(llm: LLM) -> PlacementPlan:
    return choose_plan(_task(llm), EngineOptions(solver="greedy", reset_gpu_index=True)).plan


def _without_overhead(*arguments: Any) -> Any:
    return replace(model_sizes(*arguments), overhead_bytes=0)
