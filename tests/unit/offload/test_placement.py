"""Placing: sizes, plans, what happens when memory runs out. The GPU is a stand-in."""

import importlib.util
import logging
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from powerinfer import LLM
from powerinfer.cli.report.placement import print_placement
from powerinfer.errors import OutOfDeviceMemoryError, PlacementError
from powerinfer.models import Model
from powerinfer.offload import problem as placement_problem
from powerinfer.offload.choose_plan import choose_plan, without_neurons
from powerinfer.offload.device_speeds import ASSUMED_GPU, Speeds, machine_speeds
from powerinfer.offload.devices import Device
from powerinfer.offload.model_sizes import (
    CONTEXT_BYTES,
    SPARE_NEURONS,
    SizeAssumptions,
    model_sizes,
)
from powerinfer.offload.place import (
    Placement,
    place,
    prefill_crossover,
    stream_crossover,
)
from powerinfer.offload.problem import PlacementTask, budget_bytes, placement_task
from powerinfer.ops.protocol import KVType
from powerinfer.options.options import EngineOptions, engine_options
from powerinfer.options.vram_budget import MARGIN_BYTES
from powerinfer.placement.cost_model import CostModel, DeviceSpeed
from powerinfer.placement.plan import PlacementPlan
from powerinfer.placement.step_time import step_s
from powerinfer.values import FloatArray
from tiny_models import TINY_MODELS, write_model
from tolerances import assert_close

STAND_IN = Device("cpu", "a stand-in", is_interpreted=True)
ASSUMED = SizeAssumptions(KVType.F16, seq_len=16, batch_size=512)
MODELS = ("bamboo", "llama-relu", "falcon", "falcon-40b-powerinfer", "opt-powerinfer", "arcee")


# A server's CPU, and the GPU that is assumed: what is measured depends on what else runs here.
CPU = DeviceSpeed(1e11, 7.5e10, 2e-6)
SPEEDS = Speeds(
    CostModel(DeviceSpeed(8.5e11, 6e11, 1e-5), CPU, 1.5e-5, 2.2e10, 6e-5),
    "a CPU",
    ASSUMED_GPU,
    is_gpu_assumed=True,
)


@pytest.fixture(autouse=True)
def given_speeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement_problem, "machine_speeds", lambda *_: SPEEDS)


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
    placed = place(loaded.sparsity, loaded.file, loaded.tokenizer, asked, STAND_IN)
    assert placed is not None
    return placed


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
        # Arrays of an arena begin at multiples of 256 bytes.
        held = {n: -(-t.num_bytes // 256) * 256 for n, t in own.items()}
        parts = sum(n for name, n in held.items() if "ffn_" not in name and "fc" not in name)
        norms = sum(n for name, n in held.items() if name.startswith("ffn_norm"))
        down_biases = [t for n, t in own.items() if n.startswith("ffn_down") and "bias" in n]
        down_bias = sum(t.num_bytes for t in down_biases)
        table = -(-4 * sizes.num_neurons // 256) * 256
        gaps = layer.attention_bytes - parts - norms - -(-down_bias // 256) * 256 - table
        assert 0 <= gaps < 4096
        neurons = sum(
            t.num_bytes for n, t in own.items() if n.startswith(("ffn_gate", "ffn_up", "ffn_down"))
        )
        placed = (layer.neuron_bytes - 4) * sizes.num_neurons
        assert placed == neurons - down_bias
        predictor = sum(n for name, n in held.items() if name.startswith("fc"))
        assert layer.predictor_bytes == (predictor if sparsity is None else 0)
        read = layer.idle_bytes + layer.active_bytes
        assert read == layer.neuron_bytes - 4
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


def test_the_cache_is_counted_in_whole_blocks(folder: Path) -> None:
    path = write_model(folder / "llama.gguf", TINY_MODELS["llama"])
    counted = []
    for length in (65, 128, 129):
        with LLM(path, device="cpu", context_length=length) as llm:
            (first, *_) = model_sizes(llm.loaded.model, ASSUMED).layers
            counted.append(first.kv_bytes)
    assert counted[0] == counted[1] < counted[2]


def test_slots_for_neurons_that_move(bamboo: LLM) -> None:
    model = bamboo.loaded.model
    still, moving = (
        model_sizes(model, replace(ASSUMED, neurons_move=moves)) for moves in (False, True)
    )
    spare = sum(SPARE_NEURONS * layer.neuron_bytes for layer in still.layers)
    assert moving.overhead_bytes == still.overhead_bytes + spare
    for there, here in zip(moving.layers, still.layers, strict=True):
        scores = there.attention_bytes - here.attention_bytes
        assert scores == -(-4 * still.num_neurons // 256) * 256
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
    assert "you asked for 40.00 GiB, but a GPU has only 10.00 GiB free" in caplog.text


def test_only_native_models_are_placed(folder: Path) -> None:
    path = write_model(folder / "reference.gguf", TINY_MODELS["bamboo"])
    with LLM(path, kernels="reference") as llm, pytest.raises(PlacementError, match="reference"):
        _task(llm)


def test_an_interpreted_gpu_is_assumed_to_be_fast(
    bamboo: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement_problem, "machine_speeds", machine_speeds)
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
    assert [stream_crossover(one.cost) for one in (fast_link, slow_link)] == [64, 512]
    assert prefill_crossover(fast_link, nothing) == 9
    assert prefill_crossover(slow_link, nothing) == 512
    every = np.arange(problem.sizes.num_neurons, dtype=np.int32)
    full = replace(nothing, layers=tuple(replace(one, hot=every) for one in nothing.layers))
    assert prefill_crossover(problem, full) == 9


@pytest.fixture
def shrink_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """Leave the device room for so many bytes of weights, whatever its reported memory.

    Returns what grows as models are placed: the bytes that each attempt came to.
    """
    _skip_without_torch()
    from powerinfer.ops.gpu.memory import Arena

    def limit(num_bytes: int) -> list[int]:
        attempts: list[int] = []
        allocate = Arena.allocate

        def limited(device: Any, wanted: int, what: str, **options: Any) -> Arena:
            if what == "the placed weights":
                attempts.append(wanted)
                if wanted > num_bytes:
                    raise OutOfDeviceMemoryError("the device has no room for a test")
            return allocate(device, wanted, what, **options)

        monkeypatch.setattr(Arena, "allocate", limited)
        return attempts

    return limit


def _logits(model: Model) -> FloatArray:
    cache = model.new_cache(64)
    steps = [
        model.forward(cache.batch([(0, [token], position)], [False]), cache)
        for position, token in enumerate((5, 17, 250))
    ]
    return np.concatenate(steps)


@pytest.mark.slow
def test_a_plan_that_does_not_fit_is_shrunk(
    bamboo: LLM, shrink_gpu: Callable[[int], list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    room = sum(tensor.num_bytes for tensor in bamboo.loaded.file.tensors.values()) // 2
    attempts = shrink_gpu(room)
    found = _place(bamboo)
    assert len(attempts) > 1
    assert all(tried > room for tried in attempts[:-1])
    assert 0 < attempts[-1] <= room
    assert found.plan.has_anything
    assert found.gpu_bytes <= found.problem.budget_bytes == found.plan.budget_bytes
    assert found.device == STAND_IN
    warnings = [record.message for record in caplog.records if "ran out" in record.message]
    assert len(warnings) == len(attempts) - 1
    assert "no room for a test" in warnings[0]
    assert_close(_logits(found.model), _logits(bamboo.loaded.model), "hybrid")


@pytest.mark.slow
@pytest.mark.measured
def test_a_plan_whose_steps_do_not_fit_is_shrunk(
    bamboo: LLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Memory runs out for the record of the trial, before the first word of a reply."""
    _skip_without_torch()
    import torch

    from powerinfer.offload import place as placing
    from repeating_recorder import repeating

    loaded, task = bamboo.loaded, _task(bamboo)
    monkeypatch.setattr(placing, "placement_task", lambda *_: task)
    asked = engine_options(vram_budget="1", solver="greedy", batch_size=4)
    no_memory = torch.cuda.OutOfMemoryError("CUDA out of memory")
    # On a GPU, unlike the stand-in, what was placed is tried out.
    gpu = Device("cpu", "a GPU for a test", is_interpreted=False)
    with repeating(monkeypatch, no_memory) as made:
        found = place(loaded.sparsity, loaded.file, loaded.tokenizer, asked, gpu)
    assert [recorder.num_records for recorder in made] == [0, 1]
    assert found is not None
    assert found.plan.has_anything
    assert found.problem.budget_bytes < task.problem.budget_bytes
    (warning,) = [record.message for record in caplog.records if "ran out" in record.message]
    assert "no room to record a step of 1 tokens" in warning


def test_the_start_says_what_keeps_steps_from_being_recorded(
    bamboo: LLM, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _skip_without_torch()
    loaded: Any = SimpleNamespace(placement=_place(bamboo), model=bamboo.loaded.model)
    print_placement(loaded)
    assert "hot neurons" in (said := capsys.readouterr().err)
    assert "not recorded" not in " ".join(said.split())
    loaded.model = replace(loaded.model, observer=lambda *_: None)
    print_placement(loaded)
    assert "not recorded" in (said := " ".join(capsys.readouterr().err.split()))
    assert "every layer is observed" in said
    with LLM(folder / "bamboo.gguf", device="cpu", sparsity="oracle") as llm:
        loaded.placement, loaded.model = _place(llm), llm.loaded.model
    print_placement(loaded)
    assert "steps are not recorded" in (said := capsys.readouterr().err)
    assert "written in Python" in " ".join(said.split())


def test_nothing_fits_in_the_end(
    bamboo: LLM, shrink_gpu: Callable[[int], list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    attempts = shrink_gpu(0)
    expected = _logits(bamboo.loaded.model)
    found = _place(bamboo)
    assert 5 < len(attempts) < 60
    assert found.model is found.cpu_model is bamboo.loaded.model
    assert not found.plan.has_anything
    assert found.handoff is None
    assert "the CPU runs alone" in caplog.text
    np.testing.assert_array_equal(_logits(found.model), expected)


def test_a_closed_model_gives_the_gpu_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _skip_without_torch()
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
    bamboo: LLM, shrink_gpu: Callable[[int], list[int]], tmp_path: Path
) -> None:
    from powerinfer.offload.plan_files import write_plan

    named = write_plan(tmp_path / "p.json", _place_only_plan(bamboo))
    found = _place(bamboo, gpu_index=named)
    assert "solved by" not in found.chosen.source
    room = sum(tensor.num_bytes for tensor in bamboo.loaded.file.tensors.values()) // 2
    attempts = shrink_gpu(room)
    found = _place(bamboo, gpu_index=named)
    assert attempts[0] > room >= attempts[-1]
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


@pytest.fixture(scope="module")
def embedded() -> Iterator[LLM]:
    with LLM(device="cpu") as llm:
        yield llm


def test_the_model_in_the_package_stays_on_the_cpu(
    embedded: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fixed costs decide: without them any GPU reads faster."""
    task = _task(embedded)
    nothing = choose_plan(task, EngineOptions())
    assert not nothing.plan.has_anything
    assert nothing.plan.predicted_s == step_s(task.problem, nothing.plan)
    cost = task.problem.cost
    free = replace(cost, gpu=replace(cost.gpu, launch_s=0.0), run_s=0.0)
    chosen = choose_plan(replace(task, problem=replace(task.problem, cost=free)), EngineOptions())
    assert chosen.plan.has_output


@pytest.mark.parametrize("solver", ["greedy", "latency"])
def test_only_auto_asks_whether_the_cpu_is_faster(bamboo: LLM, solver: str) -> None:
    """Prompts alone speak for the GPU here: it decodes more slowly."""
    task = _task(bamboo)
    slow = replace(task.problem.cost, run_s=1.0, transfer_bytes_per_s=1e15)
    problem = replace(task.problem, cost=slow, prompt_tokens=1e9)
    task = replace(task, problem=problem)
    asked = choose_plan(task, EngineOptions(solver=solver))
    assert asked.plan.has_anything
    chosen = choose_plan(task, EngineOptions())
    assert not chosen.plan.has_anything
    assert (chosen.plan.predicted_s or 0.0) < (asked.plan.predicted_s or 0.0)
    assert "CPU alone" in chosen.source


def _place_only_plan(llm: LLM) -> PlacementPlan:
    return choose_plan(_task(llm), EngineOptions(solver="greedy", reset_gpu_index=True)).plan


def _skip_without_torch() -> None:
    for name in ("torch", "triton"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
