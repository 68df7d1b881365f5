"""Neurons move while steps run: whatever comes when, a step finds the neurons that it expects."""

import importlib.util
import logging
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="torch is not installed")
# Not imported here: how Triton runs is chosen by our own import of it.
if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

import torch

from fake_uploads import FakeGPU, Machine, PatientUploader, replace_everywhere, running_machine
from powerinfer.errors import OutOfDeviceMemoryError
from powerinfer.ops.gpu.ffn import HotNeurons
from powerinfer.ops.gpu.matrix import empty_matrix
from powerinfer.ops.hybrid.decode import SplitFFN
from powerinfer.ops.hybrid.handles import SlotTable
from powerinfer.ops.hybrid.migration import (
    OnlineMode,
    OnlinePlacement,
    OnlineSettings,
    choose_moves,
)
from powerinfer.values import Activation, ActivationKind, FloatArray, IntArray

NUM_LAYERS, NEURONS, HOT, SPARE = 3, 40, 12, 5
SETTINGS = OnlineSettings(mode=OnlineMode.ON, interval=2, max_moves=SPARE, decay=0.5, margin=0.01)


class Layer:
    """Neurons whose only weight is their own number."""

    def __init__(self, machine: Machine, random: np.random.Generator) -> None:
        hot = np.sort(random.choice(NEURONS, HOT, replace=False)).astype(np.int32)
        self.machine = machine
        self.table = SlotTable(hot, NEURONS, HOT + SPARE)
        self.scores = torch.zeros(NEURONS)
        rows = empty_matrix("f32", HOT + SPARE, 1, "cpu")
        rows.values[:HOT, 0] = torch.from_numpy(hot)
        self.hot = HotNeurons(
            None,
            rows,
            rows,
            torch.from_numpy(self.table.neuron_of_slot.copy()),
            torch.from_numpy(self.table.slot_of_neuron.copy()),
            Activation(ActivationKind.RELU),
        )
        self.num_loads = 0
        self.fails_at = 1 << 30

    def load(self, neurons: IntArray, slots: IntArray) -> None:
        names = [(self, int(slot)) for slot in slots]
        self.machine.write(*names)
        # As much as had arrived of what will not be completed.
        self.hot.up.values[slots, 0] = np.nan
        self.num_loads += 1
        if self.num_loads > self.fails_at:
            raise OutOfDeviceMemoryError("full")
        self.hot.up.values[slots, 0] = torch.from_numpy(neurons.astype(np.float32))
        self.machine.write(*names)

    def step(self, random: np.random.Generator) -> None:
        """Use every neuron where the tables say it is; other ones begin to fire now and then."""
        neuron_of_slot, slot_of_neuron = self.hot.neuron_of_slot, self.hot.slot_of_neuron
        np.testing.assert_array_equal(neuron_of_slot.numpy(), self.table.neuron_of_slot)
        np.testing.assert_array_equal(slot_of_neuron.numpy(), self.table.slot_of_neuron)
        used = np.flatnonzero(self.table.neuron_of_slot >= 0)
        assert len(used) == HOT == len(self.table.hot)
        self.machine.read(*((self, int(slot)) for slot in used))
        found = self.hot.up.values[used, 0].numpy()
        np.testing.assert_array_equal(found, self.table.neuron_of_slot[used])
        np.testing.assert_array_equal(slot_of_neuron.numpy()[found.astype(int)], used)
        favourites = (np.arange(NEURONS) + self.machine.num_steps // 7 * 9) % NEURONS < 10
        fires = random.random(NEURONS) < np.where(favourites, 0.9, 0.05)
        self.scores.mul_(0.5).add_(torch.from_numpy(0.5 * fires.astype(np.float32)))


class Uploads:
    """Loads the neurons of such a layer in place of those of a block."""

    @staticmethod
    def neurons(layer: Layer, hot: HotNeurons, ids: IntArray, slots: IntArray) -> None:
        assert hot is layer.hot
        layer.load(ids, slots)


@contextmanager
def _watching_scores(machine: Machine) -> Iterator[None]:
    """Fetched scores are read when they have arrived."""
    fetch = OnlinePlacement._fetch

    def watched_fetch(self: OnlinePlacement, scores: torch.Tensor, host: torch.Tensor) -> None:
        fetch(self, scores, host)
        machine.write(("scores", host.data_ptr()))

    def watched_choice(table: SlotTable, scores: FloatArray, settings: OnlineSettings) -> object:
        machine.read_on_host(("scores", scores.ctypes.data))
        return choose_moves(table, scores, settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OnlinePlacement, "_fetch", watched_fetch)
        replace_everywhere(patch, choose_moves, watched_choice)
        yield


class Bench:
    """Layers whose neurons move on a machine of its own."""

    def __init__(self, machine: Machine, seed: int, settings: OnlineSettings = SETTINGS) -> None:
        self.machine = machine
        self.random = np.random.default_rng(seed)
        self.layers = [Layer(machine, self.random) for _ in range(NUM_LAYERS)]
        blocks = [
            SplitFFN(cast("Any", layer), layer.hot, None, layer.table, scores=layer.scores)
            for layer in self.layers
        ]
        self.uploader = PatientUploader(torch.device("cpu"))
        self.online = OnlinePlacement(
            blocks, cast("Any", Uploads), FakeGPU(), self.uploader, settings
        )

    def run(self, num_steps: int, seconds: float = 1.0) -> None:
        for _ in range(num_steps):
            for layer in self.layers:
                layer.step(self.random)
            self.online.after_step(seconds)
            self.machine.step()


@contextmanager
def _bench(seed: int, most_late: int = 3, settings: OnlineSettings = SETTINGS) -> Iterator[Bench]:
    with (
        pytest.MonkeyPatch.context() as patch,
        running_machine(patch, seed, most_late=most_late) as machine,
        _watching_scores(machine),
    ):
        yield Bench(machine, seed, settings)


@pytest.mark.slow
@given(seed=st.integers(0, 2**32 - 1), most_late=st.integers(0, 9))
@example(seed=0, most_late=0)
def test_steps_find_their_neurons_whatever_comes_when(seed: int, most_late: int) -> None:
    with _bench(seed, most_late) as bench:
        bench.run(60)
        # With scores that are late at nearly every question neurons begin to move late.
        while not bench.online.num_moved and bench.machine.num_steps < 1000:
            bench.run(1)
        bench.run(20)
        assert bench.online.is_moving
        assert bench.online.num_moved > 0
        assert bench.machine.num_pieces > 0
        assert not bench.machine.num_waits


@pytest.mark.slow
@given(seed=st.integers(0, 2**32 - 1), layer=st.integers(0, NUM_LAYERS - 1), at=st.integers(0, 3))
def test_an_upload_that_fails_ends_moving_with_one_warning(seed: int, layer: int, at: int) -> None:
    warnings: list[tuple[object, ...]] = []
    with _bench(seed) as bench, pytest.MonkeyPatch.context() as patch:
        log = logging.getLogger("powerinfer.ops.hybrid.migration")
        patch.setattr(log, "warning", lambda *words: warnings.append(words))
        bench.layers[layer].fails_at = at
        while bench.online.is_moving and bench.machine.num_steps < 1000:
            bench.run(1)
        assert not bench.online.is_moving
        num_loads = [one.num_loads for one in bench.layers]
        assert num_loads[layer] == at + 1
        num_moved = bench.online.num_moved
        bench.run(20)
        assert [one.num_loads for one in bench.layers] == num_loads
        assert bench.online.num_moved == num_moved
    assert len(warnings) == 1


@given(seed=st.integers(0, 2**32 - 1))
def test_moves_that_do_not_pay_end_in_a_state_that_steps_can_use(seed: int) -> None:
    settings = OnlineSettings(
        mode=OnlineMode.TRIAL,
        interval=2,
        max_moves=SPARE,
        decay=0.5,
        margin=0.01,
        trial_steps=4,
        settle_steps=8,
    )
    with _bench(seed, settings=settings) as bench:
        bench.run(16)
        assert not bench.online.is_moving
        bench.run(10)


def test_no_page_locked_memory_is_freed_beside_steps() -> None:
    """Torch marks it on the streams that used it, on which a step may be being recorded."""
    threads: list[threading.Thread] = []
    pinned = FakeGPU.pinned

    def watched(self: FakeGPU, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        memory = np.array(pinned(self, shape, dtype).numpy())
        weakref.finalize(memory, lambda: threads.append(threading.current_thread()))
        return torch.from_numpy(memory)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeGPU, "pinned", watched)
        with _bench(0) as bench:
            bench.run(60)
            assert bench.online.num_moved > 0
            bench.layers[0].fails_at = 0
            while bench.online.is_moving:
                bench.run(1)
            bench.uploader.close()
        del bench
    assert set(threads) == {threading.current_thread()}
