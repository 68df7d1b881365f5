"""The thread that steps the engines of all models in turn."""

import threading
import time
from concurrent.futures import Executor

from powerinfer.engine.engine import Engine
from powerinfer.serve.metrics import ModelMetrics
from powerinfer.serve.running_engine import RunningEngine

__all__ = ["EngineThread"]

# How far an engine may get ahead of the others before it is another one's turn. A turn's first step
# reads weights that the other engine has driven out of the cache.
_LEAD_S = 0.010

# Most time that an engine is owed when it gets work again. A client that asks one thing after the
# other leaves gaps of milliseconds.
_MOST_OWED_S = 0.050


class EngineThread:
    """Steps engines with work in turns, so that each gets an equal share of the time.

    An engine takes steps until it had `_LEAD_S` more than another one; then the turn is of the one
    that had the least. One that was idle begins where the others are (start-time fair queueing,
    Goyal et al. 1996), less what it was owed before.
    """

    def __init__(self, pool: Executor) -> None:
        """Prepare the thread; requests are checked in `pool`."""
        self._pool = pool
        self._condition = threading.Condition()
        self._engines: list[RunningEngine] = []
        self._busy: list[RunningEngine] = []
        self._stepped: RunningEngine | None = None
        # Whose turn it is, or was if it has no more work.
        self._last: RunningEngine | None = None
        self._now_s = 0.0
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start stepping, unless it has begun."""
        if self._thread.ident is None:
            self._thread.start()

    def close(self) -> None:
        """End the thread after the current step; running requests are not finished."""
        with self._condition:
            self._is_closing = True
            self._condition.notify_all()

    def join(self, timeout_s: float) -> bool:
        """Wait until the thread has ended; returns False after a timeout."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def engines(self) -> tuple[RunningEngine, ...]:
        """All engines that are stepped."""
        with self._condition:
            return tuple(self._engines)

    def add(self, engine: Engine, metrics: ModelMetrics) -> RunningEngine:
        """Step an engine, too; called on the running event loop that reads its requests."""
        running = RunningEngine(engine, self._pool, metrics, self._wake)
        with self._condition:
            self._engines.append(running)
        return running

    def remove(self, running: RunningEngine) -> None:
        """Step an engine no more; returns after its current step, so not on the event loop."""
        with self._condition:
            self._engines.remove(running)
            self._busy = [each for each in self._busy if each is not running]
            if self._last is running:
                self._last = None
            self._condition.wait_for(lambda: self._stepped is not running)

    def _wake(self) -> None:
        with self._condition:
            self._condition.notify_all()

    def _run(self) -> None:
        while (chosen := self._wait()) is not None:
            started = time.perf_counter()
            try:
                chosen.step()
            except RuntimeError:
                self.close()
            chosen.turn_s += time.perf_counter() - started

    def _wait(self) -> RunningEngine | None:
        """Wait for an engine with work, and choose one; None at the end."""
        with self._condition:
            if self._stepped is not None:
                self._stepped = None
                self._condition.notify_all()
            while not self._is_closing:
                self._stepped = self._choose()
                if self._stepped is not None:
                    return self._stepped
                self._condition.wait()
            return None

    def _choose(self) -> RunningEngine | None:
        busy = [each for each in self._engines if each.engine.has_work]
        for each in busy:
            if each not in self._busy:
                each.turn_s = max(each.turn_s, self._now_s - _MOST_OWED_S)
        self._busy = busy
        if not busy:
            return None
        least = min(busy, key=lambda each: each.turn_s)
        if self._last not in busy or self._last.turn_s >= least.turn_s + _LEAD_S:
            self._last = least
        self._now_s = max(self._now_s, least.turn_s)
        return self._last
