"""Methods of handing layers to the CPU's real half, on a device made of threads."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

from fake_stream import FakeDriver, FakeRecorder, Machine
from powerinfer.errors import DeviceError
from powerinfer.ops.hybrid.handoff import EagerHandoff, MemoryOperationHandoff
from split_ffn import HIDDEN, MAX_TOKENS, SplitLayers

LAYERS = (0, 2, 1)


def _handoff(layers: SplitLayers, machine: Machine) -> Any:
    return MemoryOperationHandoff(layers.exchange, FakeDriver(machine))


def _random(seed: int, num_tokens: int) -> Any:
    return np.random.default_rng(seed).standard_normal((num_tokens, HIDDEN)).astype(np.float32)


def test_an_exchange_without_flags_has_no_memory_operations(machine: Machine) -> None:
    layers = SplitLayers()
    layers.exchange.buffers = replace(layers.exchange.buffers, flags=None)
    with pytest.raises(DeviceError, match="flags"):
        _handoff(layers, machine)


@pytest.mark.parametrize("is_cuda", [False, True])
@pytest.mark.parametrize("num_tokens", [1, 3])
def test_an_eager_step_waits_for_the_signal_only(
    is_cuda: bool, num_tokens: int, machine: Machine
) -> None:
    layers = SplitLayers()
    x = _random(0, num_tokens)
    expected = layers.expected(x, LAYERS)
    handoff = EagerHandoff(layers.exchange, is_cuda=is_cuda)
    handoff.begin_step(num_tokens, ())
    queue = machine.queue if is_cuda else _at_once
    result = layers.run(x, LAYERS, handoff, queue)
    handoff.end_step()
    machine.main.synchronize()
    np.testing.assert_array_equal(result, expected)


def _at_once(action: Any) -> None:
    action()


@pytest.mark.parametrize("num_tokens", [1, MAX_TOKENS])
def test_a_hundred_replays_of_one_record_with_new_inputs(num_tokens: int, machine: Machine) -> None:
    layers = SplitLayers()
    recorder = FakeRecorder(machine)
    handoff = _handoff(layers, machine)
    x = np.zeros((num_tokens, HIDDEN), np.float32)
    recording = recorder.record(lambda: layers.run(x, LAYERS, handoff, machine.queue))
    for step in range(100):
        given = _random(step, num_tokens)
        expected = layers.expected(given, LAYERS)
        x[...] = given
        handoff.begin_step(num_tokens, LAYERS)
        recording.replay()
        machine.main.synchronize()
        handoff.end_step()
        np.testing.assert_array_equal(recording.result(), expected, err_msg=f"step {step}")
        assert not layers.flags[1].any()


def test_a_step_never_started_leaves_the_next_one_good(machine: Machine) -> None:
    layers = SplitLayers()
    recorder = FakeRecorder(machine)
    handoff = _handoff(layers, machine)
    x = np.zeros((1, HIDDEN), np.float32)
    recording = recorder.record(lambda: layers.run(x, LAYERS, handoff, machine.queue))
    for step in range(3):
        handoff.begin_step(1, LAYERS)
        handoff.abort_step()
        x[...] = _random(step, 1)
        expected = layers.expected(x, LAYERS)
        handoff.begin_step(1, LAYERS)
        recording.replay()
        machine.main.synchronize()
        handoff.end_step()
        np.testing.assert_array_equal(recording.result(), expected)


def test_a_lost_signal_fails_the_step_and_no_other(machine: Machine) -> None:
    layers = SplitLayers(watchdog_s=0.1)
    recorder = FakeRecorder(machine)
    handoff = _handoff(layers, machine)
    x = np.zeros((1, HIDDEN), np.float32)
    recording = recorder.record(lambda: layers.run(x, LAYERS, handoff, machine.queue))
    # The device waits for a layer that the CPU does not expect yet.
    handoff.begin_step(1, (2, 0, 1))
    recording.replay()
    machine.main.synchronize()
    with pytest.raises(DeviceError, match="CPU half"):
        handoff.end_step()
    x[...] = _random(1, 1)
    expected = layers.expected(x, LAYERS)
    handoff.begin_step(1, LAYERS)
    recording.replay()
    machine.main.synchronize()
    handoff.end_step()
    np.testing.assert_array_equal(recording.result(), expected)


def test_a_trial_passes_where_waits_wait(machine: Machine) -> None:
    layers = SplitLayers()
    recorder = FakeRecorder(machine)
    _handoff(layers, machine).check(recorder)
    assert not layers.flags.any()
    assert [recording.is_dropped for recording in recorder.recordings] == [True]


def test_a_trial_finds_a_device_that_passes_waits_by(machine: Machine) -> None:
    layers = SplitLayers()
    machine.is_broken = True
    with pytest.raises(DeviceError, match="did not wait for the CPU"):
        _handoff(layers, machine).check(FakeRecorder(machine))
    assert not layers.flags.any()
