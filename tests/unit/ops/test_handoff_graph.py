"""Recording steps: when, and what happens when the hand-off fails."""

import gc
import logging
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

from fake_stream import Machine
from powerinfer.ops.gpu.recorder import Activations
from powerinfer.values import FloatArray
from split_ffn import HIDDEN
from step_bench import LAYERS, Key, StepBench, step_bench


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.WARNING]


def test_steps_are_recorded_after_two_eager_ones_and_then_replayed(machine: Machine) -> None:
    bench = step_bench(machine)
    for seed in range(3):
        assert bench.graphs.num_records == 0
        bench.step(seed)
    assert bench.graphs.num_records == 1
    # Two warm-ups, the one compared with, the record.
    assert bench.num_run == 4
    for seed in range(100):
        bench.step(seed)
    assert bench.num_run == 4
    assert bench.handoff == "memory_operations"


def test_a_method_that_does_not_work_is_tried_once_and_leaves_eager_steps(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    bench = step_bench(machine)
    bench.is_working = False
    for seed in range(6):
        bench.step(seed)
    assert bench.handoff == "eager"
    assert bench.num_made == 1
    assert bench.graphs.choice.is_exhausted
    (warning,) = _warnings(caplog)
    assert "memory operations do not work here; steps run eagerly from now on" in warning


def test_a_method_that_cannot_be_recorded_leaves_eager_steps(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    bench = step_bench(machine)
    machine.refuses_memory = True
    for seed in range(6):
        bench.step(seed)
    assert bench.handoff == "eager"
    assert bench.graphs.num_records == 0
    assert bench.graphs.choice.is_exhausted
    (warning,) = _warnings(caplog)
    assert "memory operations cannot be recorded; steps run eagerly from now on" in warning


@pytest.mark.parametrize("wrong", [1.0, np.nan, np.inf])
def test_a_record_that_gives_other_numbers_is_not_used(
    wrong: float, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    bench = step_bench(machine)
    bench.recorder.errors = [wrong]
    for seed in range(6):
        bench.step(seed)
    assert bench.handoff == "eager"
    (warning,) = _warnings(caplog)
    assert "the recorded step differs by" in warning
    assert [recording.is_dropped for recording in bench.recorder.recordings] == [True]


def test_a_record_may_round_otherwise(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    bench = step_bench(machine, num_warm_ups=0)
    bench.recorder.errors = [1e-5]
    x = np.ones((1, HIDDEN), np.float32)
    bench.run(x, bench.key)
    assert bench.handoff == "memory_operations"
    assert not _warnings(caplog)


def test_a_method_that_fails_later_costs_no_step(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    bench = step_bench(machine, watchdog_s=0.1)
    for seed in range(4):
        bench.step(seed)
    (recording,) = bench.recorder.recordings
    # The device loses its first signal.
    del recording.actions[3]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepBench, "save_counts", lambda self: lambda: None)
        bench.num_counted -= 1  # the failed replay counts too
        x = np.ones((1, HIDDEN), np.float32)
        expected = bench.layers.expected(x, LAYERS)
        result = bench.run(x, bench.key)
        np.testing.assert_array_equal(result, expected)
    assert recording.is_dropped
    assert len(_warnings(caplog)) == 1
    for seed in range(3):
        bench.step(seed)
    assert bench.handoff == "eager"
    assert bench.graphs.num_records == 0


def test_every_key_and_size_has_a_record_of_its_own(machine: Machine) -> None:
    bench = step_bench(machine)
    other = Key()
    for seed in range(4):
        bench.step(seed, 1)
        bench.step(seed, 2)
        bench.step(seed, 2, other)
    assert bench.graphs.num_records == 3
    bench.graphs.forget(other)
    assert bench.graphs.num_records == 2
    bench.graphs.forget()
    assert bench.graphs.num_records == 0
    assert all(recording.is_dropped for recording in bench.recorder.recordings)
    bench.step(9, 2, other)


def test_the_record_longest_unused_goes_first(machine: Machine) -> None:
    bench = step_bench(machine, num_warm_ups=0, max_sizes=2)
    keys = [Key() for _ in range(3)]
    for key in (keys[0], keys[1], keys[0], keys[2]):
        bench.step(0, 1, key)
    dropped = [recording.is_dropped for recording in bench.recorder.recordings]
    assert dropped == [False, True, False]


def test_a_key_is_not_kept_alive_and_its_record_goes_with_it(machine: Machine) -> None:
    bench = step_bench(machine, num_warm_ups=0)
    key = Key()
    bench.step(0, 1, key)
    del key
    gc.collect()
    bench.step(0, 1, Key())
    assert [recording.is_dropped for recording in bench.recorder.recordings] == [True, False]


def test_a_key_may_be_a_plain_value(machine: Machine) -> None:
    bench = step_bench(machine, num_warm_ups=0)
    bench.step(0, 1, ("a", 1))
    bench.step(1, 1, ("a", 1))
    assert len(bench.recorder.recordings) == 1


@pytest.mark.parametrize(
    ("num_tokens", "key", "records"), [(1, None, True), (3, "own", True), (1, "own", False)]
)
def test_some_steps_are_never_recorded(
    num_tokens: int, key: Any, records: bool, machine: Machine
) -> None:
    bench = step_bench(machine, num_warm_ups=0, max_tokens=2, records=records)
    for seed in range(3):
        bench.step(seed, num_tokens, key)
    assert bench.recorder.recordings == []
    assert bench.handoff == "eager"
    assert bench.num_run == 3


def test_steps_without_layers_for_the_cpu_try_no_hand_off(machine: Machine) -> None:
    bench = step_bench(machine, num_warm_ups=0)
    bench.order = ()
    bench.step(0)
    bench.step(1)
    assert bench.graphs.num_records == 1
    assert not bench.num_made


def test_ctrl_c_in_a_replay_leaves_the_next_step_good(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = step_bench(machine)
    for seed in range(4):
        bench.step(seed)
    (recording,) = bench.recorder.recordings

    def interrupted() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(recording, "replay", interrupted)
        with pytest.raises(KeyboardInterrupt):
            bench.run(np.zeros((1, HIDDEN), np.float32), bench.key)
    for seed in range(3):
        bench.step(seed)
    assert bench.handoff == "memory_operations"


def test_ctrl_c_while_recording_is_not_taken_for_a_failure(machine: Machine) -> None:
    bench = step_bench(machine, num_warm_ups=0)
    num_runs = 0

    def queue(x: Activations, batch: object, handoff: Any) -> FloatArray:
        nonlocal num_runs
        num_runs += 1
        if num_runs == 2:
            try:
                raise KeyboardInterrupt
            finally:
                # As torch does, whose end of the record then fails.
                raise RuntimeError("the record is not complete")
        return bench.queue(x, batch, handoff)

    with pytest.raises(KeyboardInterrupt):
        bench.run(np.zeros((1, HIDDEN), np.float32), bench.key, queue)
    bench.step(0)
    assert bench.graphs.num_records == 1
