"""Steps of an exchange that go wrong: a stopped process, a device that does not come, no thread."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
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


@pytest.mark.parametrize("mode", ["signalled", "forsaken"])
def test_time_in_which_the_process_was_stopped_does_not_count(mode: str) -> None:
    path = os.pathsep.join([str(TESTS), *sys.path])
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED, mode],
        env=dict(os.environ, PYTHONPATH=path),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), process.communicate()
        time.sleep(2 * WATCHDOG_S)
        process.send_signal(signal.SIGCONT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
