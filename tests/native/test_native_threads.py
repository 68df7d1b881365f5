"""Where the threads of a backend run."""

import os
from collections import Counter
from pathlib import Path

from exchange_cases import share
from powerinfer.ops.cpu.ops import NativeOps

TASKS = Path("/proc/self/task")


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
