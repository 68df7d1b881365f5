"""A lock that is given away in the order of asking."""

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from patience import PATIENCE_S
from powerinfer import PowerInferError
from powerinfer.loading.turns import FairLock


def test_a_lock_goes_to_whoever_has_waited_longest() -> None:
    """Two threads that ask again at once alternate; each finds the other there."""
    lock, order, both = FairLock(), list[int](), threading.Barrier(2)

    def work(number: int) -> None:
        both.wait(PATIENCE_S)
        for _ in range(200):
            with lock.held():
                order.append(number)
                # The other has time to ask; what is tested is who gets the lock then.
                while lock.num_waiting < 1 and len(order) < 390:
                    threading.Event().wait(0.0001)

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(work, number) for number in (0, 1)]:
            future.result(PATIENCE_S)
    middle = order[1:380]
    assert all(left != right for left, right in pairwise(middle))


def test_a_lock_is_not_taken_twice_by_one_thread() -> None:
    lock = FairLock()
    with lock.held(), pytest.raises(PowerInferError, match="inside another step"), lock.held():
        pass
    with lock.held():
        pass


def test_a_lock_that_only_a_traceback_holds_is_free() -> None:
    lock = FairLock()

    def interrupted() -> None:
        left = lock.held()  # the frame keeps it
        left.__enter__()
        raise KeyboardInterrupt

    try:
        interrupted()
    except KeyboardInterrupt:
        with lock.held():
            assert not lock.num_waiting
    else:
        pytest.fail("there was no interrupt")
