"""Placed models on a real GPU where there is one: recorded steps, all hand-offs, moving neurons."""

import gc
import logging
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from torch_device import skip_module_without

skip_module_without("torch", "triton")

import torch

from placed_models import SMALL, load, make_plan, place, run, tiny_file
from powerinfer.errors import OutOfDeviceMemoryError
from powerinfer.models import Model
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.hybrid.migration import OnlineMode, OnlineSettings
from powerinfer.ops.hybrid.ops import HybridSettings
from powerinfer.ops.hybrid.upload import Uploads
from powerinfer.values import FloatArray
from tolerances import assert_close

IS_CUDA = torch.cuda.is_available()
DEVICE = "cuda" if IS_CUDA else "cpu"
STILL = OnlineSettings(mode=OnlineMode.OFF)
MODELS: tuple[str, ...] = (
    "bamboo",
    "opt-powerinfer",
    "falcon-powerinfer",
    "llama-relu",
    "nemotron-biases",
)
PLANS: tuple[str, ...] = ("SS", "FP", "SA", "CF", "SC", "CA")
HANDOFFS: tuple[str, ...] = ("auto", "eager")
if not IS_CUDA:
    # Interpreted kernels take seconds; tests/properties/test_hybrid.py draws from all of these.
    MODELS, PLANS, HANDOFFS = MODELS[:1], ("SC",), ("auto",)


def decode(model: Model, num_steps: int, num_sequences: int = 1) -> FloatArray:
    """Logits of every step, all in one cache."""
    cache = model.new_cache(64 * num_sequences)
    steps = []
    for position in range(num_steps):
        parts = [
            (number, [(11 * position + number) % 288], position) for number in range(num_sequences)
        ]
        steps.append(model.forward(cache.batch(parts, [False] * len(parts)), cache))
    return np.concatenate(steps)


class TestHybrid:
    """Each test loads a tiny model and places it."""

    num_steps = 40 if IS_CUDA else 6

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def loaded(self, name: str, format_name: str = "f32", kind: str | None = None) -> Model:
        return load(tiny_file(self.folder, name, format_name), NativeOps(2), kind)

    def check(self, model: Model, states: str, settings: HybridSettings = SMALL) -> Model:
        """Decode and prefill as the CPU does; returns the placed model."""
        placed = place(model, make_plan(states, 1), settings, DEVICE)
        got, expected = np.concatenate(run(placed)), np.concatenate(run(model))
        assert_close(got, expected, "hybrid")
        assert_close(decode(placed, self.num_steps), decode(model, self.num_steps), "hybrid")
        return placed

    @pytest.mark.parametrize("name", MODELS)
    @pytest.mark.parametrize("states", PLANS)
    def test_states_of_layers(self, name: str, states: str) -> None:
        self.check(self.loaded(name, "f16"), states)

    @pytest.mark.parametrize("handoff", HANDOFFS)
    def test_hand_offs(self, handoff: str) -> None:
        settings = HybridSettings(handoff=handoff, online=STILL)
        placed = self.check(self.loaded("bamboo"), "SS", settings)
        ops: Any = placed.ops
        is_recorded = IS_CUDA and handoff != "eager"
        assert (ops.blocks.graphs.num_records > 0) == is_recorded

    @pytest.mark.skipif(not IS_CUDA, reason="needs CUDA")
    @pytest.mark.parametrize("name", ("bamboo", "falcon-powerinfer", "llama-relu"))
    @pytest.mark.parametrize("states", ("SF", "CS", "SC", "SA"))
    def test_a_hundred_replays_equal_eager_steps(self, name: str, states: str) -> None:
        model = self.loaded(name, "f16")
        plan = make_plan(states, 2, has_output=states[-1] != "C")
        recorded = place(model, plan, HybridSettings(online=STILL), DEVICE)
        eager = place(model, plan, HybridSettings(handoff="eager", online=STILL), DEVICE)
        for num_sequences in (1, 3):
            found = [decode(one, 60, num_sequences) for one in (recorded, eager)]
            np.testing.assert_array_equal(found[0], found[1])
            again = decode(recorded, 60, num_sequences)
            np.testing.assert_array_equal(again, found[0])
        graphs: Any = recorded.ops
        assert graphs.blocks.graphs.num_records > 0

    def test_counts_of_replays_are_those_of_the_cpu(self) -> None:
        model = self.loaded("bamboo")
        placed = place(model, make_plan("SF", 3), HybridSettings(online=STILL), DEVICE)
        counters = model.ops.counters
        found = []
        for tried in (model, placed):
            before = counters.active, counters.predicted, counters.total
            decode(tried, self.num_steps)
            after = counters.active, counters.predicted, counters.total
            found.append([b - a for a, b in zip(before, after, strict=True)])
        assert found[0] == found[1]

    def test_neurons_move_between_steps(self) -> None:
        model = self.loaded("bamboo", "f16")
        online = OnlineSettings(mode=OnlineMode.ON, interval=2, max_moves=8, decay=0.5, margin=0.01)
        placed = self.check(model, "SS", HybridSettings(online=online))
        ops: Any = placed.ops
        if IS_CUDA:
            # Copies arrive some steps later.
            decode(placed, 60)
        assert ops.blocks.online.num_moved > 0
        for layer in placed.weights.layers:
            block: Any = layer.ffn.native
            tables = block.hot.neuron_of_slot.cpu().numpy(), block.hot.slot_of_neuron.cpu().numpy()
            np.testing.assert_array_equal(tables[0], block.slots.neuron_of_slot)
            np.testing.assert_array_equal(tables[1], block.slots.slot_of_neuron)

    def test_moves_go_on_only_where_they_pay(self) -> None:
        model = self.loaded("bamboo")
        online = OnlineSettings(
            mode=OnlineMode.TRIAL, interval=2, trial_steps=6, settle_steps=4, decay=0.5
        )
        pause, settling = (9.0, 9.0), (5.0,) * 4
        for seconds, goes_on in ((0.9, True), (0.99, False), (2.0, False)):
            placed = place(model, make_plan("SS", 4), replace(SMALL, online=online), DEVICE)
            moving: Any = placed.ops.blocks.online  # type: ignore[attr-defined]
            times = (*pause, *(1.0,) * 4, *settling, *(seconds,) * 4, *pause)
            for number, step in enumerate(times):
                assert moving.is_moving
                if number < 6:
                    assert moving.num_moved == 0
                moving.after_step(step)
            assert moving.is_moving == goes_on
            for _ in range(8):
                moving.after_step(3.0)
            assert moving.is_moving == goes_on

    def test_a_round_of_moves_counts_as_part_of_the_next_step(self) -> None:
        model = self.loaded("bamboo")
        online = OnlineSettings(
            mode=OnlineMode.TRIAL, interval=1, trial_steps=2, settle_steps=0, decay=0.5
        )
        placed = place(model, make_plan("SS", 4), replace(SMALL, online=online), DEVICE)
        moving: Any = placed.ops.blocks.online  # type: ignore[attr-defined]
        # Begin and end of what is done after the steps.
        clock = mock.Mock(side_effect=[0.0, 0.0, 0.0, 5.0, 0.0, 5.0, 0.0])
        with mock.patch("powerinfer.ops.hybrid.migration.perf_counter", clock):
            for seconds in (1.0, 1.0, 0.5, 0.5):
                assert moving.is_moving
                moving.after_step(seconds)
        assert not moving.is_moving

    def test_a_failed_move_only_ends_moving(self, caplog: pytest.LogCaptureFixture) -> None:
        model = self.loaded("bamboo")
        online = OnlineSettings(mode=OnlineMode.ON, interval=1, decay=0.5, margin=0.01)
        placed = place(model, make_plan("SS", 1), replace(SMALL, online=online), DEVICE)
        moving: Any = placed.ops.blocks.online  # type: ignore[attr-defined]

        failing = mock.Mock(side_effect=OutOfDeviceMemoryError("full"))
        with mock.patch.object(Uploads, "rows", failing):
            got = decode(placed, self.num_steps)
        warnings = [one for one in caplog.records if one.levelno == logging.WARNING]
        assert len(warnings) == failing.call_count == 1
        assert not moving.is_moving
        assert_close(got, decode(model, self.num_steps), "hybrid")

    def test_exhausted_memory_leaves_nothing_behind(self) -> None:
        model = self.loaded("bamboo")
        uploaded: list[weakref.ref[Any]] = []
        rows = Uploads.rows

        def failing(self: Uploads, matrix: Any, ids: Any, target: Any, slots: Any) -> None:
            if len(uploaded) == 9:
                raise OutOfDeviceMemoryError("full")
            rows(self, matrix, ids, target, slots)
            uploaded.append(weakref.ref(target.values))

        patched = mock.patch.object(Uploads, "rows", failing)
        with patched, pytest.raises(OutOfDeviceMemoryError):
            place(model, make_plan("SS", 5), SMALL, DEVICE)
        gc.collect()
        assert [one() for one in uploaded] == [None] * 9
        # The model on the CPU is as good as before, also for placing it again.
        self.check(model, "CF")
