"""Where the threads of a backend run."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from exchange_cases import share
from patience import PATIENCE_S
from powerinfer.ops.cpu.ops import NativeOps

TASKS = Path("/proc/self/task")
# Leaves 64 MiB of addresses; the stack of a thread takes 2 MiB or more.
REFUSED = """
import os, resource
import numpy as np
from powerinfer.errors import DeviceError
from powerinfer.ops.cpu.ops import NativeOps
with open("/proc/self/statm") as statm:
    used = int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
before = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), before[1]))
try:
    NativeOps(512)
except DeviceError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, before)
x = np.ones((64, 4096), np.float32)
NativeOps(3).add(x, x.copy())
assert (x == 2).all()
"""
FORKED = """
import os
import numpy as np
from powerinfer.ops.cpu.ops import NativeOps
parent = NativeOps(2, joins=True)
x = np.ones((64, 4096), np.float32)
parent.add(x, x.copy())
child = os.fork()
if not child:
    NativeOps(2, joins=True).add(x, x.copy())
    print(x[0, 0], end=" ", flush=True)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def affinities() -> Counter[frozenset[int]]:
    """Where the threads of this process may run, and how many; none where nobody says."""
    if not hasattr(os, "sched_getaffinity") or not TASKS.exists():
        return Counter()
    return Counter(frozenset(os.sched_getaffinity(int(task.name))) for task in TASKS.iterdir())


def test_a_team_is_pinned_and_let_go() -> None:
    ops = NativeOps(3)
    before = affinities()
    if not before:  # as on macOS
        assert not ops.pin({0})
        return
    cpu = max(os.sched_getaffinity(0))
    assert ops.pin([cpu])
    wanted = Counter(before)
    wanted[frozenset(os.sched_getaffinity(0))] -= 2  # the caller is not the team's
    wanted[frozenset({cpu})] += 2
    assert affinities() == +wanted
    ops.unpin()
    assert affinities() == before
    for bad in ([], [-1], [1 << 20]):
        assert not ops.pin(bad)
        assert affinities() == before


def test_the_thread_of_signalled_steps_follows_the_team() -> None:
    shared = share()
    if not affinities():
        return
    cpu = max(os.sched_getaffinity(0))
    assert shared.ops.pin([cpu])
    before = affinities()
    shared.exchange.start_step([0], 1)
    shared.exchange.abort_step()
    wanted = Counter(before)
    wanted[frozenset({cpu})] += 1
    assert affinities() == wanted


def _num_threads() -> int:
    return sum(affinities().values())


def test_instances_that_join_share_threads() -> None:
    first, alone = NativeOps(4, joins=True), NativeOps(4)
    before = _num_threads()
    second, other = NativeOps(4, joins=True), NativeOps(3, joins=True)
    if before:
        assert _num_threads() == before + 2
    x = np.ones((64, 4096), np.float32)
    second.add(x, x.copy())
    assert (x == 2).all()
    assert first.native_s == second.native_s > 0
    assert alone.native_s == other.native_s == 0
    # The threads stay as long as one instance does.
    del first
    second.add(x, x.copy())
    assert (x == 4).all()
    assert NativeOps(4, joins=True).native_s == second.native_s
    del second
    assert NativeOps(4, joins=True).native_s == 0


def test_a_forked_child_starts_threads_of_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "4.0 0\n", "")


@pytest.mark.skipif(
    # AddressSanitizer ends a process that finds no room for a thread.
    not Path("/proc/self/statm").exists() or "asan" in os.environ.get("LD_PRELOAD", ""),
    reason="memory cannot be limited here",
)
def test_threads_that_the_system_refuses_are_an_error() -> None:
    command = [sys.executable, "-c", REFUSED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("cannot start 512 threads: ")
    assert done.stdout.endswith(": take fewer (threads)\n")
    assert done.stdout.count("\n") == 1
