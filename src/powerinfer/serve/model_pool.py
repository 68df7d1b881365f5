"""The models of a server: which are loaded, who waits for them, which leave for others."""

import asyncio
import gc
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager

from powerinfer.errors import PowerInferError
from powerinfer.loading.loader import WORKING_BYTES
from powerinfer.serve.engine_thread import EngineThread
from powerinfer.serve.errors import (
    ApiError,
    EndingError,
    model_failed,
    model_stays,
    model_too_large,
    shutting_down,
    unavailable,
)
from powerinfer.serve.metrics import ServerMetrics
from powerinfer.serve.model_source import ModelFacts, ModelSource, stamp_of
from powerinfer.serve.pooled_model import ModelList, PooledModel, Resident
from powerinfer.serve.served_model import ModelContext, ServedModel
from powerinfer.serve.settings import ServerSettings
from powerinfer.serve.workers import Workers, in_daemon_thread
from powerinfer.store.memory import available_memory_bytes

__all__ = ["ModelPool"]

_log = logging.getLogger(__name__)


class ModelPool:
    """Loads models when requests ask for them, one at a time, and lets them go.

    Used on the event loop only. A model leaves once no request has used it for `keep_alive_s`
    seconds, or, the one used longest ago first, when another one needs its memory. Then it takes
    no further requests, and leaves when those that run have ended.

    Attributes:
        longest_wait_s: how long a request may wait for its model.
        available_bytes: says how much memory there is; None if nobody knows.
        find_sources: lists the models that there are now, in any thread; None: always the same.
        look_every_s: least time from one look for models to the next.
        tell: takes a line for the server's log.
    """

    def __init__(
        self,
        settings: ServerSettings,
        metrics: ServerMetrics,
        workers: Workers,
        sources: Sequence[ModelSource] = (),
        keep_alive_s: float | None = None,
    ) -> None:
        """Serve `sources`, or, without any, the model that `put` gets.

        Args:
            keep_alive_s: seconds that an unused model stays; None: until memory is needed.
        """
        self.longest_wait_s = 60.0
        self.available_bytes: Callable[[], int | None] = available_memory_bytes
        self.find_sources: Callable[[], Sequence[ModelSource]] | None = None
        self.look_every_s = 1.0
        self.tell: Callable[[str], None] = _log.info
        self._workers = workers
        self._keep_alive_s = keep_alive_s
        self._thread = EngineThread(workers)
        self._is_draining = False
        # Held by whoever makes room, loads or lets a model go.
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._room_bytes: int | None = None
        self._looking = asyncio.Lock()
        self._looked_at = -math.inf
        self._list = ModelList(settings, metrics, sources)

    @property
    def models(self) -> Sequence[PooledModel]:
        """All of them; a request that names none gets the first."""
        return self._list.models

    @property
    def is_one(self) -> bool:
        """The server has one model, which was given to it and stays."""
        return self._list.is_one

    def find(self, name: str | None, param: str | None = None) -> PooledModel:
        """Find a model by one of its names; see `ModelList.find`."""
        return self._list.find(name, param)

    async def refresh(self, name: str | None = None) -> None:
        """Look for models that were added or removed.

        Args:
            name: if this model is loaded, do not look.
        """
        if self.find_sources is None or self._is_draining or self._list.is_loaded(name):
            return
        async with self._looking:
            if time.monotonic() < self._looked_at + self.look_every_s:
                return
            try:
                sources = await self._workers.run(self.find_sources)
                needed = [each.facts for each in sources[-1:] if self.is_one and len(sources) > 1]
                facts = [await self._workers.run(each) for each in needed]
            except (OSError, PowerInferError) as error:
                self.tell(f"cannot look for models: {error}")
            else:
                for model in self._list.take(sources, facts):
                    self._spawn(self._remove(model))
            self._looked_at = time.monotonic()

    def put(self, served: ServedModel) -> None:
        """Give the server its only model; called on the running event loop."""
        (model,) = self.models
        model.resident = self._start(model, served)
        model.resident.keep_alive_s = None

    def check_answers(self) -> None:
        """Raise ApiError, 503, if no request can be answered now."""
        if self._is_draining:
            raise shutting_down()
        self.check_loaded()

    def check_loaded(self) -> None:
        """Raise ApiError, 503, if the only model of the server is not loaded yet."""
        if self.is_one and self.models[0].resident is None:
            raise unavailable("the model is loading", "loading")

    @asynccontextmanager
    async def using(self, model: PooledModel) -> AsyncIterator[ModelContext]:
        """Load a model if it is not, and keep it until the block ends.

        Raises:
            ApiError: 503, it is not loaded in time, its file cannot be loaded, or the server is
                shutting down; 400, the memory does not suffice.
        """
        resident = await self._enter(model)
        try:
            yield resident.context
        finally:
            self._leave(model, resident)

    def keep(self, model: PooledModel, seconds: float) -> None:
        """Let a loaded model stay unused for this long, or without end if that is infinite.

        Called while a request uses it.
        """
        if model.resident is not None:
            model.resident.keep_alive_s = None if math.isinf(seconds) else seconds

    async def unload(self, model: PooledModel) -> None:
        """Free a model now, or once its requests have ended; returns then without waiting.

        Raises:
            ApiError: 400, it is the only model and stays.
        """
        self.check_answers()
        if model.source is None:
            raise model_stays(model.name)
        if (resident := model.resident) is None:
            return
        is_used = bool(resident.num_users)
        resident.reason = "a client asked for it"
        leaving = self._spawn(self._end_stay(model))
        if not is_used:
            await asyncio.shield(leaving)

    def measure(self) -> None:
        """Update the metrics that come from engines."""
        for model, resident in self._residents():
            model.metrics.measure(resident.context.model.engine.statistics())

    def drain(self) -> None:
        """Accept no more requests; those that wait for a model end."""
        self._is_draining = True
        for engine in self._thread.engines:
            engine.refusal = shutting_down()
        for model in self.models:
            model.fail_waiters(shutting_down())

    def end_requests(self) -> None:
        """End all open requests with an error."""
        for engine in self._thread.engines:
            engine.fail_all(EndingError("the server is shutting down"))

    def close(self, timeout_s: float) -> None:
        """End the thread that computes."""
        self._thread.close()
        self._thread.join(timeout_s)

    def _residents(self) -> Iterator[tuple[PooledModel, Resident]]:
        models = (*self.models, *self._list.removed)
        return ((each, each.resident) for each in models if each.resident is not None)

    async def _remove(self, model: PooledModel) -> None:
        async with self._turn:
            await self._let_go(model, "it was removed")
        self._list.removed.remove(model)

    def _start(self, model: PooledModel, served: ServedModel) -> Resident:
        """Let the thread step a model that was loaded."""
        self._thread.start()
        running = self._thread.add(served.engine, model.metrics)
        if self._is_draining:
            running.refusal = shutting_down()
        model.metrics.loaded()
        context = ModelContext(
            settings=model.settings, model=served, engine=running, workers=self._workers
        )
        return Resident(context=context, keep_alive_s=self._keep_alive_s)

    async def _enter(self, model: PooledModel) -> Resident:
        """Wait for a model, and count as one of its users."""
        resident = model.resident
        if resident is not None and not self._has_changed(model, resident):
            return resident.use()
        self.check_answers()
        if model.source is None:
            raise unavailable("the model is loading", "loading")
        waiter: asyncio.Future[Resident] = asyncio.get_running_loop().create_future()
        model.waiters[waiter] = None
        if model.loading is None:
            model.loading = self._spawn(self._load(model, model.source))
        try:
            await asyncio.wait([waiter], timeout=self.longest_wait_s)
        except asyncio.CancelledError:
            if waiter.done() and waiter.exception() is None:
                self._leave(model, waiter.result())
            raise
        finally:
            model.waiters.pop(waiter, None)
        if not waiter.done():
            raise unavailable(
                f"the model {model.name!r} is still loading, {100 * model.progress:.0f} % are done",
                "loading",
            )
        return waiter.result()

    def _leave(self, model: PooledModel, resident: Resident) -> None:
        """Count a user less; the last one starts the clock."""
        resident.num_users -= 1
        resident.used_at = time.monotonic()
        if resident.num_users:
            return
        resident.is_idle.set()
        stay_s = resident.keep_alive_s
        if stay_s is None or model.source is None or model.resident is not resident:
            return
        resident.leaving = asyncio.get_running_loop().call_later(stay_s, self._expire, model)

    def _expire(self, model: PooledModel) -> None:
        if model.resident is not None:
            model.resident.reason = f"unused for {model.resident.keep_alive_s:g} s"
            self._spawn(self._end_stay(model))

    async def _end_stay(self, model: PooledModel) -> None:
        """Let a model go, unless it was used since its time was over."""
        async with self._turn:
            if model.resident is not None and model.resident.reason is not None:
                await self._let_go(model, model.resident.reason)

    def _has_changed(self, model: PooledModel, resident: Resident) -> bool:
        """Tell whether an idle model has another file now; one that is missing changes nothing."""
        if model.source is None or resident.num_users:
            return False
        stamp = stamp_of(model.source.path)
        return stamp is not None and stamp != resident.stamp

    async def _load(self, model: PooledModel, source: ModelSource) -> None:
        """Load a model for those who wait for it, or tell them why that failed."""
        model.progress, model.problem = 0.0, None
        try:
            async with self._turn:
                started = time.monotonic()
                resident = await self._loaded(model, source)
        except ApiError as error:
            model.loading, model.problem = None, error.message
            model.fail_waiters(error)
            self.tell(error.message)
            return
        self.tell(f"loaded {model.name} in {time.monotonic() - started:.1f} s")
        model.resident, model.loading = resident, None
        for waiter in model.waiters:
            if not waiter.done():
                waiter.set_result(resident.use())
        model.waiters.clear()
        # Nobody may have waited so long.
        resident.num_users += 1
        self._leave(model, resident)

    async def _loaded(self, model: PooledModel, source: ModelSource) -> Resident:
        def tell(done: int, total: int) -> None:
            model.progress = done / total if total else 1.0

        try:
            if model.resident is not None:
                await self._let_go(model, "its file has changed")
            facts = await self._workers.run(source.facts)
            await self._make_room(model, facts)
            stamp = stamp_of(source.path)
            served = await in_daemon_thread(lambda: source.load(tell), "loading")
        except ApiError:
            raise
        except PowerInferError as error:
            raise model_failed(model.name, error) from None
        except Exception as error:  # noqa: BLE001  requests must hear of it, whatever it is
            _log.exception("loading %s failed", model.name)
            raise model_failed(model.name, PowerInferError(type(error).__name__)) from None
        resident = self._start(model, served)
        resident.needed_bytes, resident.stamp = facts.needed_bytes, stamp
        return resident

    async def _make_room(self, model: PooledModel, facts: ModelFacts) -> None:
        """Let others go, the one used longest ago first, until a model fits.

        Raises:
            ApiError: 400, it would not fit alone.
        """
        while (free := self._free_bytes()) is not None and free < facts.needed_bytes:
            held = sum(each.needed_bytes for _, each in self._residents())
            if facts.needed_bytes > free + held:
                raise model_too_large(model.name, facts.needed_bytes, free + held)
            longest_unused, _ = min(self._residents(), key=_last_use)
            await self._let_go(longest_unused, f"room for {model.name}")

    def _free_bytes(self) -> int | None:
        """Estimate the memory for further models; None if nobody knows.

        The system counts weights that are used where the file is mapped as available.
        """
        available = self.available_bytes()
        if available is None:
            return None
        held = sum(each.needed_bytes for _, each in self._residents())
        if not held or self._room_bytes is None:
            self._room_bytes = available
        self._room_bytes = max(self._room_bytes, available)
        return max(0, min(available, self._room_bytes - held) - WORKING_BYTES)

    async def _let_go(self, model: PooledModel, reason: str) -> None:
        """Free a model once its requests have ended; it takes no more of them."""
        resident, model.resident = model.resident, None
        if resident is None:
            return
        if resident.leaving is not None:
            resident.leaving.cancel()
        if resident.num_users:
            await resident.is_idle.wait()
        context = resident.context
        # From here on only what is freed refers to it.
        del resident
        await self._workers.run(_free, self._thread, context)
        del context
        await self._workers.run(_collect)
        model.metrics.left()
        self.tell(f"unloaded {model.name}: {reason}")

    def _spawn(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _last_use(pair: tuple[PooledModel, Resident]) -> tuple[bool, float]:
    """Order in which models leave: one that is used must end its requests first."""
    _, resident = pair
    return resident.num_users > 0, resident.used_at


def _free(thread: EngineThread, context: ModelContext) -> None:
    thread.remove(context.engine)
    context.model.engine.close()


def _collect() -> None:
    """Give the memory of a model that nothing refers to back to the system."""
    from powerinfer.ops.cpu.machine import release_freed_memory

    gc.collect()
    release_freed_memory()
