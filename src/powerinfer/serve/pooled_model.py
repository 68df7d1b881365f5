"""The models of a server by their names, and their stay in memory."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Self

from powerinfer.serve.errors import ApiError, unknown_model
from powerinfer.serve.metrics import ModelMetrics, ServerMetrics
from powerinfer.serve.model_source import FileStamp, ModelFacts, ModelSource, stamp_of
from powerinfer.serve.served_model import ModelContext
from powerinfer.serve.settings import ServerSettings

__all__ = ["ModelList", "ModelState", "PooledModel", "Resident"]


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
        reason: why it shall leave, unless a request uses it before.
    """

    context: ModelContext
    needed_bytes: int = 0
    stamp: FileStamp | None = None
    keep_alive_s: float | None = None
    num_users: int = 0
    used_at: float = field(default_factory=time.monotonic)
    is_idle: asyncio.Event = field(default_factory=asyncio.Event)
    leaving: asyncio.TimerHandle | None = None
    reason: str | None = None

    def use(self) -> Self:
        """Count one more user."""
        self.num_users += 1
        self.is_idle.clear()
        self.reason = None
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

    def rename(self, settings: ServerSettings) -> None:
        """Change the names for clients."""
        if settings == self.settings:
            return
        self.settings = settings
        if self.resident is not None:
            self.resident.context = replace(self.resident.context, settings=settings)

    def fail_waiters(self, error: ApiError) -> None:
        """End the waiting of all who wait for the model."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_exception(error)
        self.waiters.clear()


class ModelList:
    """The models of a server.

    Attributes:
        models: all of them; a request that names none gets the first.
        removed: those that are gone from the list and still in memory.
    """

    def __init__(
        self, settings: ServerSettings, metrics: ServerMetrics, sources: Sequence[ModelSource]
    ) -> None:
        """List `sources`, or, without any, a model that is given to the server and stays."""
        self._settings = settings
        self._metrics = metrics
        self.models = [self._model(source) for source in sources or (None,)]
        self.removed: list[PooledModel] = []

    @property
    def is_one(self) -> bool:
        """The server has one model, which was given to it and stays."""
        return self.models[0].source is None

    def find(self, name: str | None, param: str | None = None) -> PooledModel:
        """Find a model by one of its names; None and an empty name stand for the first one.

        Raises:
            ApiError: 404, there is none.
        """
        if not name:
            return self.models[0]
        for model in self.models:
            if name in model.settings.model_names:
                return model
        raise unknown_model(name, [model.name for model in self.models], param)

    def is_loaded(self, name: str | None) -> bool:
        """Tell whether a model is loaded and its file there; before the only one is, all count."""
        if self.is_one and self.models[0].resident is None:
            return True
        named = (each for each in self.models if name in each.settings.model_names)
        return any(
            each.resident is not None and (each.source is None or each.source.path.exists())
            for each in named
        )

    def take(
        self, sources: Sequence[ModelSource], facts: Sequence[ModelFacts]
    ) -> list[PooledModel]:
        """List these from now on, and return those that are to leave the memory.

        Args:
            facts: of the last source if it is the only model so far, and others have come.
        """
        if self.is_one:
            if not facts:
                return []
            self._divide(sources[-1], facts[0])
        known = {each.source.path: each for each in self.models if each.source is not None}
        models = []
        for source in sources:
            model = known.pop(source.path, None) or self._model(source)
            model.rename(_settings_of(source, self._settings))
            models.append(model)
        # Loads end first.
        loading = [each for each in known.values() if each.loading is not None]
        leaving = [each for each in known.values() if each.resident is not None]
        self.models = [*models, *loading]
        self.removed += leaving
        return leaving

    def _divide(self, source: ModelSource, facts: ModelFacts) -> None:
        """Let the only model come and go, as there are others now."""
        (model,) = self.models
        model.source = source
        self._metrics.divide()
        if (resident := model.resident) is not None:
            resident.needed_bytes, resident.stamp = facts.needed_bytes, stamp_of(source.path)
            model.metrics.loaded()

    def _model(self, source: ModelSource | None) -> PooledModel:
        settings = self._settings if source is None else _settings_of(source, self._settings)
        metrics = self._metrics.of(settings.model_name)
        return PooledModel(settings=settings, metrics=metrics, source=source)


def _settings_of(source: ModelSource, settings: ServerSettings) -> ServerSettings:
    return replace(
        settings,
        model_name=source.names[0],
        other_names=source.names[1:],
        is_story_model=source.is_story_model,
    )
