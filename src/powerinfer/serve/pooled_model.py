"""A model of a server by its names, and its stay in memory."""

import asyncio
import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from powerinfer.serve.errors import ApiError
from powerinfer.serve.metrics import ModelMetrics
from powerinfer.serve.model_source import FileStamp, ModelSource
from powerinfer.serve.served_model import ModelContext
from powerinfer.serve.settings import ServerSettings

__all__ = ["ModelState", "PooledModel", "Resident"]


class ModelState(StrEnum):
    """State of a model, as clients see it."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    FAILED = "failed"


@dataclass(slots=True, eq=False, kw_only=True)
class Resident:
    """A model in memory.

    Attributes:
        needed_bytes: memory that it takes, by estimate.
        stamp: of its file when it was loaded.
        keep_alive_s: seconds that it stays unused; None: until memory is needed.
        num_users: requests that use it.
        used_at: when the last one ended, on the clock of the event loop.
        is_idle: set while no request uses it.
        leaving: ends its stay, unless a request comes before.
        has_expired: it was unused for as long as it may be, and still is.
    """

    context: ModelContext
    needed_bytes: int = 0
    stamp: FileStamp | None = None
    keep_alive_s: float | None = None
    num_users: int = 0
    used_at: float = field(default_factory=time.monotonic)
    is_idle: asyncio.Event = field(default_factory=asyncio.Event)
    leaving: asyncio.TimerHandle | None = None
    has_expired: bool = False

    def use(self) -> Self:
        """Count one more user."""
        self.num_users += 1
        self.is_idle.clear()
        self.has_expired = False
        if self.leaving is not None:
            self.leaving.cancel()
            self.leaving = None
        return self


@dataclass(slots=True, eq=False, kw_only=True)
class PooledModel:
    """A model by its names, in memory or not.

    Attributes:
        settings: of the server, with the names of this model.
        source: how to load it; None if it was given to the server and stays.
        resident: the model in memory, for further requests.
        progress: share of its weights that are prepared, while it loads.
        problem: why the last load failed.
        waiters: requests that wait for it.
    """

    settings: ServerSettings
    metrics: ModelMetrics
    source: ModelSource | None = None
    resident: Resident | None = None
    loading: "asyncio.Task[None] | None" = None
    progress: float = 0.0
    problem: str | None = None
    waiters: "dict[asyncio.Future[Resident], None]" = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name that clients see."""
        return self.settings.model_name

    @property
    def state(self) -> ModelState:
        """State of the model."""
        if self.resident is not None:
            return ModelState.LOADED
        if self.loading is not None:
            return ModelState.LOADING
        return ModelState.UNLOADED if self.problem is None else ModelState.FAILED

    def fail_waiters(self, error: ApiError) -> None:
        """End the waiting of all who wait for the model."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_exception(error)
        self.waiters.clear()
