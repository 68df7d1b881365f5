"""`place` and whole texts with uploads beside the steps: memory that runs out, and early ends."""

import gc
import importlib.util
import logging
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")
# Not imported here: how Triton runs is chosen by our own import of it.
if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from fake_uploads import FakeGPU, Machine, PatientUploader, replace_everywhere, running_machine
from placed_models import make_plan, tiny_file
from powerinfer import LLM
from powerinfer.errors import OutOfDeviceMemoryError
from powerinfer.models import Model
from powerinfer.offload import place as placing
from powerinfer.offload import problem as placement_problem
from powerinfer.offload.choose_plan import choose_plan
from powerinfer.offload.device_speeds import machine_speeds
from powerinfer.offload.devices import Device
from powerinfer.ops.gpu.ops import TorchGPU
from powerinfer.ops.gpu.uploads import Uploader
from powerinfer.ops.hybrid import migration
from powerinfer.ops.hybrid.ops import HybridOps
from powerinfer.ops.hybrid.upload import Uploads
from powerinfer.options.options import engine_options
from powerinfer.values import FloatArray
from tolerances import assert_close


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """A device with late uploads, to which prompts always send the cold neurons."""
    with running_machine(monkeypatch, 3) as made:
        replace_everywhere(monkeypatch, TorchGPU, FakeGPU)
        replace_everywhere(monkeypatch, Uploader, PatientUploader)
        monkeypatch.setattr(placing, "prefill_crossover", lambda *_: 0)
        monkeypatch.setattr(HybridOps, "pin", lambda _: False)
        yield made


def _budget(llm: LLM, device: Device, share: float, **options: Any) -> str:
    """So much of what the model could use, as GiB."""
    loaded = llm.loaded
    asked = engine_options(vram_budget="2", **options)
    task = placement_problem.placement_task(
        loaded.sparsity, loaded.file, loaded.tokenizer, asked, device
    )
    sizes = task.problem.sizes
    placed = sizes.full_bytes - sizes.overhead_bytes
    return f"{(sizes.overhead_bytes + share * placed) / 2**30:.9f}"


def _logits(model: Model) -> FloatArray:
    cache = model.new_cache(64)
    steps = [np.arange(12, dtype=np.int32), np.array([5], np.int32), np.array([250], np.int32)]
    found, position = [], 0
    for ids in steps:
        found.append(model.forward(cache.batch([(0, ids, position)], [len(ids) > 1]), cache))
        position += len(ids)
    return np.concatenate(found)


@pytest.mark.slow
def test_memory_that_runs_out_beside_a_prompt_makes_the_plan_smaller(
    machine: Machine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(
        placement_problem, "machine_speeds", lambda ops, name, *_: machine_speeds(ops, name, None)
    )
    monkeypatch.setattr(placement_problem, "_free_bytes", lambda _: 4 << 30)
    write, main = Uploads.neurons, threading.current_thread()
    failed: list[bool] = []

    def failing(*arguments: Any) -> None:
        if threading.current_thread() is not main and not failed:
            failed.append(True)
            raise OutOfDeviceMemoryError("no room for a chunk")
        write(*arguments)

    monkeypatch.setattr(Uploads, "neurons", failing)
    # Not interpreted, so that a prompt and some steps are tried out.
    device = Device("cpu", "late uploads")
    options: dict[str, Any] = {"solver": "greedy", "batch_size": 12, "online": False}
    with LLM(tiny_file(tmp_path, "bamboo"), device="cpu") as llm:
        loaded = llm.loaded
        asked = engine_options(vram_budget=_budget(llm, device, 0.7, **options), **options)
        found = placing.place(loaded.sparsity, loaded.file, loaded.tokenizer, asked, device)
        assert failed
        assert found is not None
        assert found.plan.has_anything
        warnings = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
        assert len(warnings) == 1
        assert "no room for a chunk" in warnings[0]
        # A log that is kept keeps no error, whose frames hold what was uploaded.
        kept = [argument for one in caplog.records for argument in one.args or ()]
        assert not any(isinstance(argument, BaseException) for argument in kept)
        assert machine.num_pieces > 1
        assert_close(_logits(found.model), _logits(loaded.model), "hybrid")


def test_a_model_closed_within_a_round_ends_and_gives_everything_back(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    settings = partial(migration.OnlineSettings, interval=1, decay=0.5, margin=0.01)
    monkeypatch.setattr(migration, "OnlineSettings", settings)
    choose = choose_plan

    def some_neurons(*arguments: Any) -> Any:
        chosen = choose(*arguments)
        plan = replace(chosen.plan, layers=make_plan("SS", 4).layers)
        return replace(chosen, plan=plan)

    monkeypatch.setattr(placing, "choose_plan", some_neurons)
    path = tiny_file(tmp_path, "bamboo")
    with LLM(path, device="cuda", vram_budget="1", solver="greedy", online=True) as llm:
        placed = llm.loaded.placement
        assert placed is not None
        ops: Any = placed.model.ops
        held = weakref.ref(ops.gpu)
        online = ops.blocks.online
        machine.most_late = 0
        cache = placed.model.new_cache(32)
        for position in range(2):
            batch = cache.batch([(0, np.array([7], np.int32), position)], [False])
            placed.model.forward(batch, cache)
            machine.most_late = 1 << 20
        assert online._round is not None
        assert not machine.num_pieces
        del ops, online, placed, cache, batch
    # What had been submitted has yet to run, and then lets go of the device.
    machine.num_steps = 1 << 30
    machine.step()
    assert machine.num_pieces <= 1
    # Its thread lets go a moment after the end of the work.
    deadline = time.monotonic() + 10
    while held() is not None and time.monotonic() < deadline:
        gc.collect()
    assert held() is None
