"""The thread that steps the engines of all models in turn."""

import threading
import time
from concurrent.futures import Executor

from powerinfer.engine.engine import Engine
from powerinfer.serve.metrics import ModelMetrics
from powerinfer.serve.running_engine import RunningEngine

__all__ = ["EngineThread"]


class EngineThread:
    """Steps engines while they have work; the next step is of the one that had the least time.

    So busy engines get equal shares of the time, however long their steps are. An idle one saves
    none up: it begins where the others are (start-time fair queueing, Goyal et al. 1996).
    """

    def __init__(self, pool: Executor) -> None:
        """Prepare the thread; requests are checked in `pool`."""
        self._pool = pool
        self._condition = threading.Condition()
        self._engines: list[RunningEngine] = []
        self._busy: list[RunningEngine] = []
        self._stepped: RunningEngine | None = None
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
                each.turn_s = max(each.turn_s, self._now_s)
        self._busy = busy
        if not busy:
            return None
        chosen = min(busy, key=lambda each: each.turn_s)
        self._now_s = chosen.turn_s
        return chosen
