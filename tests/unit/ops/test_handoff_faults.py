"""Faults while steps are recorded and replayed: the text goes on, or ends in one error."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import powerinfer  # noqa: E402
from fake_stream import Machine  # noqa: E402
from powerinfer.errors import DeviceError, OutOfDeviceMemoryError  # noqa: E402
from powerinfer.ops.cpu.exchange import NativeExchange  # noqa: E402
from split_ffn import HIDDEN  # noqa: E402
from step_bench import Key, StepBench, step_bench  # noqa: E402

# So long that a test in which the CPU's half waits for nobody hangs instead of passing late.
FOREVER_S = 1000.0
HYBRID = str(Path(powerinfer.__file__).parent / "ops" / "hybrid")
ILLEGAL = "CUDA error: an illegal memory access was encountered\nCompile with TORCH_USE_CUDA_DSA"

NO_MEMORY = [
    torch.cuda.OutOfMemoryError("CUDA out of memory"),
    RuntimeError("Triton Error [CUDA]: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
]


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.WARNING]


def _no_memory() -> BaseException:
    """What torch raises when memory runs out in a record: its end fails too."""
    failed = RuntimeError("operation failed due to a previous error during capture")
    failed.__context__ = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB")
    return failed


class TestMemory:
    @pytest.mark.parametrize("where", ["record", "inputs"])
    def test_on_trial_it_is_raised_and_a_smaller_plan_can_follow(
        self, where: str, machine: Machine, caplog: pytest.LogCaptureFixture
    ) -> None:
        bench = step_bench(machine, num_warm_ups=0)
        bench.step(0, 1, key := Key())
        bench.graphs.is_on_trial = True
        bench.recorder.failures[where] = [_no_memory()]
        with pytest.raises((OutOfDeviceMemoryError, RuntimeError)) as caught:
            bench.step(1, 2)
        if where == "record":
            assert isinstance(caught.value, OutOfDeviceMemoryError)
        assert machine.main.is_idle
        assert not _warnings(caplog)
        for seed in range(3):
            bench.step(seed, 2)
            bench.step(seed, 1, key)
        assert bench.graphs.num_records == 2

    @pytest.mark.parametrize("where", ["record", "inputs"])
    def test_later_it_costs_the_records_of_other_sizes(
        self, where: str, machine: Machine, caplog: pytest.LogCaptureFixture
    ) -> None:
        bench = step_bench(machine, num_warm_ups=0)
        bench.step(0, 1)
        (first,) = bench.recorder.recordings
        bench.recorder.failures[where] = [_no_memory()]
        bench.step(1, 2)
        assert first.is_dropped
        assert bench.graphs.num_records == 1
        assert bench.handoff == "memory_operations"
        assert not _warnings(caplog)
        num_run = bench.num_run
        bench.step(2, 2)
        assert bench.num_run == num_run

    def test_a_size_for_which_that_is_not_enough_runs_eagerly(
        self, machine: Machine, caplog: pytest.LogCaptureFixture
    ) -> None:
        bench = step_bench(machine, num_warm_ups=0)
        bench.step(0, 1)
        bench.recorder.failures["record"] = [_no_memory(), _no_memory()]
        bench.step(1, 2)
        (warning,) = _warnings(caplog)
        assert "steps of 2 tokens are not recorded" in warning
        assert "out of memory" in warning
        for seed in range(4):
            bench.step(seed, 2)
            bench.step(seed, 1)
        assert bench.handoff == "memory_operations"
        assert bench.graphs.num_records == 1
        assert len(_warnings(caplog)) == 1

    def test_two_sizes_that_do_not_fit_together_do_not_displace_each_other_for_good(
        self, machine: Machine
    ) -> None:
        bench = step_bench(machine, num_warm_ups=0)
        record = bench.recorder.record

        def only_one(work: Any, shape: Any = None) -> Any:
            if bench.graphs.num_records:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory")
            return record(work, shape)

        bench.recorder.record = only_one  # type: ignore[method-assign]
        for seed in range(12):
            bench.step(seed, 1 + seed % 2)
        num_made = len(bench.recorder.recordings)
        for seed in range(12):
            bench.step(seed, 1 + seed % 2)
        assert len(bench.recorder.recordings) == num_made
        assert bench.graphs.num_records == 1

    @pytest.mark.parametrize("failure", NO_MEMORY, ids=str)
    def test_an_eager_step_gets_the_room_of_records(
        self, failure: BaseException, machine: Machine
    ) -> None:
        bench = step_bench(machine, num_warm_ups=0)
        bench.step(0, 1)
        failures = [failure]

        def queue(x: Any, batch: Any, handoff: Any) -> Any:
            if failures:
                raise failures.pop()
            return bench.queue(x, batch, handoff)

        x = np.ones((2, HIDDEN), np.float32)
        expected = bench.layers.expected(x, bench.order)
        np.testing.assert_array_equal(bench.run(x, None, queue), expected)
        assert bench.graphs.num_records == 0


class TestDevice:
    @pytest.mark.parametrize("num_steps", [0, 3])
    def test_a_failing_wait_is_named_and_leaves_nobody_waiting(
        self, num_steps: int, machine: Machine, caplog: pytest.LogCaptureFixture
    ) -> None:
        bench = step_bench(machine, num_warm_ups=0, watchdog_s=FOREVER_S)
        for seed in range(num_steps):
            bench.step(seed)
        if num_steps:
            # The device dies before its first signal.
            bench.recorder.recordings[0].actions.clear()
        bench.recorder.failures["wait"] = [RuntimeError(ILLEGAL), RuntimeError(ILLEGAL)]
        x = np.ones((1, HIDDEN), np.float32)
        with pytest.raises(DeviceError, match=r"GPU failed.*illegal memory access") as caught:
            bench.run(x, bench.key)
        assert "TORCH_USE_CUDA_DSA" not in str(caught.value)
        assert not _warnings(caplog)
        # What was queued passes its waits, and the CPU's half is at rest: it takes another step.
        machine.main.synchronize()
        bench.layers.exchange.start_step([0], 1)
        bench.layers.exchange.abort_step()
        bench.graphs.forget()
        for seed in range(3):
            bench.step(seed)

    @pytest.mark.parametrize(
        "says", [ILLEGAL, "Triton Error [CUDA]: an illegal memory access was encountered"]
    )
    def test_a_failing_launch_is_named_too(self, says: str, machine: Machine) -> None:
        bench = step_bench(machine)

        def queue(x: Any, batch: Any, handoff: Any) -> Any:
            raise RuntimeError(says)

        with pytest.raises(DeviceError, match=r"GPU failed.*illegal memory access"):
            bench.run(np.ones((1, HIDDEN), np.float32), None, queue)
        bench.step(0)

    def test_a_replay_that_cannot_be_launched_wakes_no_one(self, machine: Machine) -> None:
        bench = step_bench(machine, num_warm_ups=0, watchdog_s=FOREVER_S)
        bench.step(0)
        (recording,) = bench.recorder.recordings

        def failing() -> None:
            raise RuntimeError("the graph cannot be launched")

        recording.replay = failing  # type: ignore[method-assign]
        for seed in range(3):
            bench.step(seed)
        assert bench.handoff == "eager"


class TestDeadWaiter:
    @pytest.mark.parametrize("name", ["start_step", "finish_step"])
    def test_the_text_goes_on_eagerly(
        self,
        name: str,
        machine: Machine,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        bench = step_bench(machine, num_warm_ups=0)
        bench.step(0)

        def fail(*_: Any) -> None:
            raise DeviceError("the thread that waits for the GPU is gone")

        with monkeypatch.context() as patch:
            patch.setattr(NativeExchange, name, fail)
            # The replay that failed counted too where it had run.
            x = np.ones((1, HIDDEN), np.float32)
            expected = bench.layers.expected(x, bench.order)
            np.testing.assert_array_equal(bench.run(x, bench.key), expected)
            for seed in range(3):
                bench.step(seed)
        assert bench.handoff == "eager"
        (warning,) = _warnings(caplog)
        assert "the thread that waits for the GPU is gone" in warning


class _Interrupt:
    """Ctrl-C before a line of the code that runs steps.

    Attributes:
        has_come: whether so many lines ran.
    """

    def __init__(self, line: int) -> None:
        self._left = line
        self.has_come = False

    @contextmanager
    def coming(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(before)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(HYBRID):
            return None
        if event == "line":
            self._left -= 1
            if not self._left:
                self.has_come = True
                sys.settrace(None)
                raise KeyboardInterrupt
        return self._trace


class TestCtrlC:
    @pytest.mark.parametrize("what", ["eager", "record", "replay"])
    def test_anywhere_leaves_device_and_cpu_at_rest(self, what: str, machine: Machine) -> None:
        bench = step_bench(machine, num_warm_ups=0, watchdog_s=FOREVER_S)
        line = 0
        has_come = True
        while has_come:
            line += 1
            key: Any = None if what == "eager" else Key()
            if what == "replay":
                bench.step(0, 1, key)
            has_come = self._interrupted(bench, line, key)
            assert machine.main.is_idle, line
            bench.step(1, 1, key)
            bench.step(2, 1, key)
            bench.graphs.forget()
        assert line > 20
        assert bench.graphs.choice.best(hands_over=True) is not None
        assert bench.handoff in ("eager", "memory_operations")

    def _interrupted(self, bench: StepBench, line: int, key: Any) -> bool:
        """Do a step with Ctrl-C before this line; whether it was so long."""
        interrupt = _Interrupt(line)
        try:
            with interrupt.coming():
                bench.run(np.ones((1, HIDDEN), np.float32), key)
        except KeyboardInterrupt:
            pass
        return interrupt.has_come
