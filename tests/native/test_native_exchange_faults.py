"""Steps of an exchange that go wrong: a stopped process, a device that does not come, no thread."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from exchange_cases import HIDDEN, MAX_TOKENS, Device, Shared, make_buffers, share, wait_for
from native_cases import numbers, same_bits
from patience import PATIENCE_S

SUPPORT = Path(__file__).parents[1] / "support"
WATCHDOG_S = 1.0

# Runs in a process of its own that stops itself within a step and is continued from outside.
STOPPED = f"""
import os, signal, sys, time
from exchange_cases import Device, HIDDEN, MAX_TOKENS, share
from native_cases import numbers, same_bits
from powerinfer.errors import DeviceError

shared = share(1, watchdog_s={WATCHDOG_S})
shared.exchange.start_step([0], MAX_TOKENS)
time.sleep(0.1)  # the thread has begun to wait
os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(0.1)  # the other threads too find out how long they did not run
if sys.argv[1] == "signalled":
    device = Device(shared.buffers, [0], numbers((1, MAX_TOKENS, HIDDEN), 9))
    device.run()
    shared.exchange.finish_step()
    assert same_bits(device.results[0], shared.expected(0, MAX_TOKENS))
else:
    try:
        shared.exchange.finish_step()
    except DeviceError as error:
        assert "no signal for layer 0" in str(error), error
    else:
        raise AssertionError("a step without signals was not given up")
"""


# The thread of the steps finds no room for its stack.
WITHOUT_ROOM = """
import resource
from exchange_cases import Device, HIDDEN, MAX_TOKENS, share
from native_cases import numbers, same_bits
from powerinfer.errors import DeviceError

shared = share(1)
_, most = resource.getrlimit(resource.RLIMIT_AS)
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 20), most))
for _ in range(2):
    try:
        shared.exchange.start_step([0], MAX_TOKENS)
    except DeviceError as error:
        assert "no thread can be started" in str(error), error
    else:
        raise AssertionError("a thread was started without memory for it")
    shared.exchange.finish_step()
    shared.exchange.abort_step()
resource.setrlimit(resource.RLIMIT_AS, (most, most))
shared.exchange.start_step([0], MAX_TOKENS)
device = Device(shared.buffers, [0], numbers((1, MAX_TOKENS, HIDDEN), 9))
device.run()
shared.exchange.finish_step()
assert same_bits(device.results[0], shared.expected(0, MAX_TOKENS))
"""


def begin(script: str, *arguments: str) -> subprocess.Popen[str]:
    """A process of its own that can import what tests do."""
    path = os.pathsep.join([str(SUPPORT), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        env=dict(os.environ, PYTHONPATH=path),
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["signalled", "forsaken"])
def test_time_in_which_the_process_was_stopped_does_not_count(mode: str) -> None:
    with begin(STOPPED, mode) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), process.communicate()
        time.sleep(2 * WATCHDOG_S)
        process.send_signal(signal.SIGCONT)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors


@pytest.mark.skipif(
    # AddressSanitizer ends a process that finds no room for a thread.
    not Path("/proc/self/statm").exists() or "asan" in os.environ.get("LD_PRELOAD", ""),
    reason="memory cannot be limited here",
)
def test_a_thread_that_cannot_start_is_one_error() -> None:
    with begin(WITHOUT_ROOM) as process:
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors


def check_step(shared: Shared, layers: list[int]) -> None:
    """A whole step, with the results it must have."""
    inputs = numbers((len(layers), MAX_TOKENS, HIDDEN), 9)
    shared.exchange.start_step(layers, MAX_TOKENS)
    device = Device(shared.buffers, layers, inputs)
    device.run()
    shared.exchange.finish_step()
    for layer, x, got in zip(layers, inputs, device.results, strict=True):
        shared.buffers.x[:] = x
        assert same_bits(got, shared.expected(layer, MAX_TOKENS))


@pytest.mark.parametrize("num_signalled", [0, 1, 2])
def test_a_step_is_aborted_at_once_and_without_an_error(num_signalled: int) -> None:
    shared = share(3)
    layers = [0, 1, 2]
    exchange, flags, status = shared.exchange, shared.buffers.flags, shared.buffers.status
    assert flags is not None
    exchange.abort_step()  # none has begun
    for delay_s in (0, 0.1):
        start = time.monotonic()
        exchange.start_step(layers, 1)
        for layer in layers[:num_signalled]:
            flags[0, layer] = 1
            wait_for(flags[1], layer)
            flags[1, layer] = 0
        time.sleep(delay_s)
        exchange.abort_step()
        assert flags[1].tolist() == [int(layer >= num_signalled) for layer in layers]
        assert not status[0]
        exchange.finish_step()
        exchange.raise_failure()
        exchange.abort_step()
        assert time.monotonic() - start < 30  # half of what the thread would have waited
        flags[:] = 1  # what a device does that comes too late
        check_step(shared, layers)


def test_an_aborted_step_forgets_what_failed_in_it() -> None:
    shared = share(2, watchdog_s=0.05)
    flags = shared.buffers.flags
    assert flags is not None
    shared.exchange.start_step([0, 1], 1)
    wait_for(flags[1], 0, 1)
    shared.exchange.abort_step()
    shared.exchange.raise_failure()
    check_step(shared, [0, 1])


def test_only_an_exchange_with_flags_has_steps_to_abort() -> None:
    exchange = share().ops.exchange(make_buffers())
    with pytest.raises(ValueError, match="without flags"):
        exchange.abort_step()
