"""Whose turn it is to use the one sequence of an `LLM`: one at a time, in the order of asking.

A generation takes the turn with its first piece and gives it back when it ends, because its keys
and values fill the sequence in between. Others wait, except where waiting would never end: a caller
whose own thread, or own asyncio task, left a generation unfinished ends that one and goes on.
"""

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from queue import SimpleQueue

from powerinfer.engine.turn import (
    ABANDONED,
    CLOSED,
    LOOK_EVERY_S,
    REPLACED,
    Caller,
    Held,
    PieceInProgress,
    Turn,
    tell,
    wait_for,
)
from powerinfer.errors import PowerInferError

__all__ = ["Turns"]


class Turns:
    """Lets one turn at a time use a sequence; for threads and asyncio tasks alike."""

    def __init__(self) -> None:
        """Start with nobody waiting, in this process."""
        self._process_id = os.getpid()
        # Ctrl-C may come between any two lines. A plain lock in a `with` statement is always given
        # back, which that of a `threading.Condition` is not; and a state that is left half-way is
        # put right by `_advance`.
        self._lock = threading.Lock()
        self._holder: Turn | None = None
        self._queue: list[Turn] = []
        self._unfinished: weakref.WeakSet[Turn] = weakref.WeakSet()
        self._is_closed = False
        self._closing: list[Callable[[], None]] = []

    @property
    def is_of_this_process(self) -> bool:
        """False in a child that fork() made: locks may be held there by threads it lacks."""
        return self._process_id == os.getpid()

    def check_process(self) -> None:
        """Refuse to work in a forked child.

        Raises:
            PowerInferError: this is one.
        """
        if not self.is_of_this_process:
            raise PowerInferError(
                "this LLM belongs to the process that loaded it; threads do not survive fork(), so "
                "load the model after it, or start processes with the method 'spawn'"
            )

    def open(self, work: Iterator[str], at_end: Callable[[], object] | None = None) -> Turn:
        """A turn that takes its place among the others with its first piece.

        Args:
            work: must not refer to this object or to the turn: they would keep each other alive.
            at_end: called once when the turn is over; must not wait for anything.
        """
        self.check_process()
        turn = Turn(work, at_end)
        with self._lock:
            self._unfinished.add(turn)
            if self._is_closed:
                self._end(turn, CLOSED)
        return turn

    @contextmanager
    def piece(self, turn: Turn) -> Iterator[Iterator[str]]:
        """Keep everybody out while a piece is computed; for those who have waited for the turn.

        Yields the work; an iterator without items where the turn is over. Any exception ends it.

        Raises:
            PowerInferError: something else ended the turn.
        """
        piece = PieceInProgress()
        try:
            yield self._begin(turn, piece)
        except BaseException:
            self.end(turn)
            raise
        finally:
            with self._lock:
                turn.piece = None
                self._advance()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Wait for the turn, and keep everybody out until the block ends.

        Raises:
            PowerInferError: the model was closed, or the call comes from inside a piece.
        """
        held = Held(self.drop, self.open(iter(())))
        self.wait(held.turn, Caller())
        with self.piece(held.turn):
            yield
            self.end(held.turn)

    def wait(self, turn: Turn, caller: Caller) -> None:
        """Wait for the turn, or for its end; any exception ends it.

        Two threads may wait for the same turn. It is kept until it is over.

        Raises:
            PowerInferError: something else ended the turn, or the call comes from inside a piece.
        """
        self.check_process()
        self._check_not_inside()
        news: SimpleQueue[None] = SimpleQueue()
        try:
            turn.wake = lambda: news.put(None)
            with self._lock:
                self._request(turn, caller)
            while not self._is_up(turn):
                wait_for(news)
        except BaseException:
            self.end(turn)
            raise
        finally:
            turn.wake = None

    async def wait_in_loop(self, turn: Turn, caller: Caller) -> None:
        """As `wait`, without holding up the loop; cancelling ends the turn.

        Raises:
            PowerInferError: as for `wait`.
        """
        import asyncio

        self.check_process()
        self._check_not_inside()
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(news.set)

        try:
            turn.wake = wake
            with self._lock:
                self._request(turn, caller)
            while not self._is_up(turn):
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_EVERY_S):
                        await news.wait()
                news.clear()
        except BaseException:
            self.end(turn)
            raise
        finally:
            turn.wake = None

    def end(self, turn: Turn) -> None:
        """End a turn because its work is done or nobody wants more; waits for nothing."""
        if self.is_of_this_process:
            with self._lock:
                self._end(turn, None)

    def drop(self, turn: Turn) -> None:
        """The same, for destructors: these may run while this very thread holds the lock."""
        turn.is_dropped = True
        if not self.is_of_this_process:
            return
        if turn.running is None:  # else who computes ends it; nobody can begin another piece
            turn.work = turn.at_end = None
        for waiting in list(self._queue):
            tell(waiting)  # it will look, and find that the turn is free

    @property
    def num_waiting(self) -> int:
        """Turns that wait for that of another."""
        with self._lock:
            return len(self._queue)

    def close(self) -> None:
        """End all turns, now and in future; waits for the piece that is being computed.

        Raises:
            PowerInferError: the call comes from inside that piece.
        """
        self._check_not_inside()
        news: SimpleQueue[None] = SimpleQueue()
        wake = partial(news.put, None)
        try:
            self._closing.append(wake)
            with self._lock:
                self._is_closed = True
                for turn in list(self._unfinished):
                    self._end(turn, CLOSED)
            while True:
                with self._lock:
                    self._advance()
                    if self._holder is None:
                        return
                wait_for(news)
        finally:
            with suppress(ValueError):
                self._closing.remove(wake)

    def _check_not_inside(self) -> None:
        holder = self._holder
        running = None if holder is None else holder.running
        if running is not None and running.thread_id == threading.get_ident():
            raise PowerInferError(
                "a callback used the LLM that was calling it; callbacks must not use that LLM"
            )

    def _begin(self, turn: Turn, piece: PieceInProgress) -> Iterator[str]:
        with self._lock:
            turn.check_not_ended()
            turn.piece = weakref.ref(piece)
            # Read once, after the piece was announced: a destructor may drop the turn meanwhile.
            work = turn.work
            return iter(()) if work is None else work

    def _is_up(self, turn: Turn) -> bool:
        with self._lock:
            self._advance()
            turn.check_not_ended()
            return turn.is_over or self._holder is turn

    # What follows is called with the lock held.

    def _request(self, turn: Turn, caller: Caller) -> None:
        """Queue up for the turn, unless it is over or has its place."""
        holder = self._holder
        self._queue = [waiting for waiting in self._queue if not waiting.is_over]
        if turn.is_over:
            return
        turn.caller = caller  # whoever reads on has it from now on
        if holder is turn:
            return
        if turn not in self._queue:
            self._queue.append(turn)
        if holder is not None and holder.caller and caller.cannot_wait_for(holder.caller):
            self._end(holder, REPLACED)
        self._advance()

    def _end(self, turn: Turn, message: str | None) -> None:
        """End a turn; one that is being computed ends with that piece."""
        if turn.is_over:
            return
        turn.end_message = message
        turn.is_ending = True
        if turn.running is not None:
            return
        turn.work = turn.caller = None
        if turn in self._queue:
            self._queue.remove(turn)
        self._unfinished.discard(turn)
        at_end = turn.at_end
        if at_end is not None:
            at_end()
        tell(turn)
        self._advance()

    def _advance(self) -> None:
        """Give the turn to the next one if nobody has it, or nobody who could go on."""
        holder = self._holder
        if holder is not None and holder.running is not None:
            return
        if holder is not None and not holder.is_over:
            if holder.is_ending or holder.is_abandoned:
                self._end(holder, holder.end_message if holder.is_ending else ABANDONED)
            return
        chosen = self._holder = self._next()
        if chosen is not None:
            self._queue.remove(chosen)
            tell(chosen)
            return
        for wake in list(self._closing):
            wake()

    def _next(self) -> Turn | None:
        """The first that can go on: not a task whose loop waits for this very turn."""
        self._queue = [turn for turn in self._queue if not (turn.is_over or turn.is_abandoned)]
        callers = [turn.caller for turn in self._queue if turn.caller is not None]
        halted = [caller.thread for caller in callers if caller.is_thread]
        for turn in self._queue:
            caller = turn.caller
            if caller is not None and (caller.is_thread or caller.thread not in halted):
                return turn
        return None
