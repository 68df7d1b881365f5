"""Placed models on a real GPU where there is one: recorded steps, all hand-offs, moving neurons."""

import gc
import sys
import tempfile
import unittest
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

try:
    import torch

    from powerinfer.ops.gpu import ops  # noqa: F401
except ModuleNotFoundError as missing:
    if missing.name not in ("torch", "triton"):
        raise
    raise unittest.SkipTest(f"{missing.name} is not installed") from missing

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

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


def decode(model: Model, num_steps: int, num_sequences: int = 1) -> FloatArray:
    """Logits of every step, all in one cache."""
    cache = model.new_cache(64 * num_sequences)
    steps = []
    for position in range(num_steps):
        parts = [
            (number, [(11 * position + number) % 288], position) for number in range(num_sequences)
        ]
        steps.append(model.forward(cache.batch(parts), cache))
    return np.concatenate(steps)


class HybridTest(unittest.TestCase):
    """Each test loads a tiny model and places it."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.num_steps = 40 if IS_CUDA else 6

    def loaded(self, name: str, format_name: str = "f32", kind: str | None = None) -> Model:
        return load(tiny_file(self.folder, name, format_name), NativeOps(2), kind)

    def check(self, model: Model, states: str, settings: HybridSettings = SMALL) -> Model:
        """Decode and prefill as the CPU does; returns the placed model."""
        placed = place(model, make_plan(states, 1), settings, DEVICE)
        got, expected = np.concatenate(run(placed)), np.concatenate(run(model))
        assert_close(got, expected, "hybrid")
        assert_close(decode(placed, self.num_steps), decode(model, self.num_steps), "hybrid")
        return placed

    def test_states_of_layers(self) -> None:
        names = ("bamboo", "opt-powerinfer", "falcon-powerinfer", "llama-relu", "nemotron-biases")
        plans = ("SS", "FP", "SA", "CF", "SC") if IS_CUDA else ("SC",)
        for name in names if IS_CUDA else names[:1]:
            model = self.loaded(name, "f16")
            for states in plans:
                with self.subTest(name=name, states=states):
                    self.check(model, states)

    def test_hand_offs(self) -> None:
        model = self.loaded("bamboo")
        for handoff in ("auto", "memory_operations", "host_functions", "eager"):
            with self.subTest(handoff=handoff):
                settings = HybridSettings(handoff=handoff, online=STILL)
                placed = self.check(model, "SS", settings)
                ops: Any = placed.ops
                is_recorded = IS_CUDA and handoff != "eager"
                self.assertEqual(ops.blocks.graphs.num_records > 0, is_recorded)
            if not IS_CUDA:
                break

    @unittest.skipUnless(IS_CUDA, "needs CUDA")
    def test_a_hundred_replays_equal_eager_steps(self) -> None:
        for name in ("bamboo", "falcon-powerinfer", "llama-relu"):
            model = self.loaded(name, "f16")
            plan = make_plan("SF", 2)
            recorded = place(model, plan, HybridSettings(online=STILL), DEVICE)
            eager = place(model, plan, HybridSettings(handoff="eager", online=STILL), DEVICE)
            for num_sequences in (1, 3):
                with self.subTest(name=name, sequences=num_sequences):
                    found = [decode(one, 60, num_sequences) for one in (recorded, eager)]
                    np.testing.assert_array_equal(found[0], found[1])
                    again = decode(recorded, 60, num_sequences)
                    np.testing.assert_array_equal(again, found[0])

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
        self.assertEqual(found[0], found[1])

    def test_neurons_move_between_steps(self) -> None:
        model = self.loaded("bamboo", "f16")
        online = OnlineSettings(mode=OnlineMode.ON, interval=2, max_moves=8, decay=0.5, margin=0.01)
        placed = self.check(model, "SS", HybridSettings(online=online))
        ops: Any = placed.ops
        if IS_CUDA:
            # Copies arrive some steps later.
            decode(placed, 60)
        self.assertGreater(ops.blocks.online.num_moved, 0)
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
            with self.subTest(seconds=seconds):
                placed = place(model, make_plan("SS", 4), replace(SMALL, online=online), DEVICE)
                moving: Any = placed.ops.blocks.online  # type: ignore[attr-defined]
                times = (*pause, *(1.0,) * 4, *settling, *(seconds,) * 4, *pause)
                for number, step in enumerate(times):
                    self.assertTrue(moving.is_moving)
                    if number < 6:
                        self.assertEqual(moving.num_moved, 0)
                    moving.after_step(step)
                self.assertEqual(moving.is_moving, goes_on)
                for _ in range(8):
                    moving.after_step(3.0)
                self.assertEqual(moving.is_moving, goes_on)

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
                self.assertTrue(moving.is_moving)
                moving.after_step(seconds)
        self.assertFalse(moving.is_moving)

    def test_a_failed_move_only_ends_moving(self) -> None:
        model = self.loaded("bamboo")
        online = OnlineSettings(mode=OnlineMode.ON, interval=1, decay=0.5, margin=0.01)
        placed = place(model, make_plan("SS", 1), replace(SMALL, online=online), DEVICE)
        moving: Any = placed.ops.blocks.online  # type: ignore[attr-defined]

        def failing(*_arguments: Any) -> None:
            raise OutOfDeviceMemoryError("full")

        patched = mock.patch.object(moving, "_load", failing)
        with patched, self.assertLogs("powerinfer", "WARNING"):
            got = decode(placed, self.num_steps)
        self.assertFalse(moving.is_moving)
        assert_close(got, decode(model, self.num_steps), "hybrid")

    def test_exhausted_memory_leaves_nothing_behind(self) -> None:
        model = self.loaded("bamboo")
        uploaded: list[weakref.ref[Any]] = []
        upload = Uploads.matrix

        def failing(self: Uploads, matrix: Any) -> Any:
            if len(uploaded) == 9:
                raise OutOfDeviceMemoryError("full")
            found = upload(self, matrix)
            uploaded.append(weakref.ref(found.values))
            return found

        patched = mock.patch.object(Uploads, "matrix", failing)
        with patched, self.assertRaises(OutOfDeviceMemoryError):
            place(model, make_plan("SS", 5), SMALL, DEVICE)
        gc.collect()
        self.assertEqual([one() for one in uploaded], [None] * 9)
        # The model on the CPU is as good as before, also for placing it again.
        self.check(model, "CF")


if __name__ == "__main__":
    unittest.main()
