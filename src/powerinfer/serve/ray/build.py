"""Builds the application for Ray Serve."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from powerinfer._extras import how_to_install
from powerinfer.errors import UnsupportedError
from powerinfer.options.llm_options import LLMOptions
from powerinfer.serve.served_model import ServedModel
from powerinfer.serve.settings import ServerSettings

__all__ = ["RayOptions", "application", "build"]

# Some requests wait in a replica, so that a free place is filled at once.
_ONGOING_PER_PLACE = 2


class RayOptions(BaseModel):
    """Options of `serve run powerinfer.serve.ray:build NAME=VALUE ...`.

    Attributes:
        model: file, or name on the Hub; None for the model in the package.
        alias: name of the model for clients.
        parallel: most texts that a replica computes at once.
        max_queue: most requests that wait for a replica.
        context_length: most tokens of a prompt and its answer.
        min_replicas: number of replicas that always run.
        max_replicas: number of replicas under load.
        num_cpus: CPUs of a replica, which are its threads, too.
        num_gpus: GPUs of a replica.
        api_key: key that requests must have.
        options: further options of `LLM`.
    """

    model_config = ConfigDict(extra="forbid")

    model: str | None = None
    alias: str | None = None
    parallel: Annotated[int, Field(ge=1)] = 8
    max_queue: Annotated[int, Field(ge=0)] = 64
    context_length: int | None = None
    min_replicas: Annotated[int, Field(ge=1)] = 1
    max_replicas: Annotated[int, Field(ge=1)] = 4
    num_cpus: int = Field(default_factory=lambda: min(4, os.cpu_count() or 1), ge=1)
    num_gpus: Annotated[float, Field(ge=0)] = 0
    api_key: str | None = None
    options: dict[str, object] = Field(default_factory=dict)


def build(options: RayOptions) -> object:
    """Build the application of a model, for `serve run` and `ray.serve.run`.

    Raises:
        UnsupportedError: Ray is not installed.
    """
    name = options.alias or Path(options.model or "powerinfer-story").name.removesuffix(".gguf")
    settings = ServerSettings(
        model_name=name,
        # Ray's proxy listens and decides about host names.
        host="0.0.0.0",
        parallel=options.parallel,
        # The ingress counts waiting requests.
        max_queue=max(options.max_queue, _ONGOING_PER_PLACE * options.parallel),
        api_keys=() if options.api_key is None else (options.api_key,),
        is_story_model=options.model is None,
    )
    engine = LLMOptions(**{"threads": options.num_cpus, **options.options})  # type: ignore[typeddict-item]
    engine["parallel"] = options.parallel
    if options.context_length is not None:
        engine["context_length"] = options.context_length
    model = None if options.model is None else Path(options.model)
    return application(options, settings, partial(_load, model, engine))


def application(
    options: RayOptions, settings: ServerSettings, load: Callable[[], ServedModel]
) -> object:
    """Build the application from any settings and loader; raises like `build`."""
    try:
        from ray import serve
        from ray.serve.config import AutoscalingConfig, RequestRouterConfig
    except ImportError:
        raise UnsupportedError(f"Ray Serve is not installed: {how_to_install('ray')}") from None
    from powerinfer.serve.ray.ingress import Ingress
    from powerinfer.serve.ray.replica import ModelReplica
    from powerinfer.serve.ray.router import PrefixRouter

    replicas = serve.deployment(
        name="model",
        max_ongoing_requests=_ONGOING_PER_PLACE * options.parallel,
        max_queued_requests=options.max_queue,
        autoscaling_config=AutoscalingConfig(
            min_replicas=options.min_replicas,
            max_replicas=max(options.min_replicas, options.max_replicas),
            # Further requests wait.
            target_ongoing_requests=options.parallel,
        ),
        request_router_config=RequestRouterConfig(request_router_class=PrefixRouter),
        ray_actor_options={"num_cpus": options.num_cpus, "num_gpus": options.num_gpus},
    )(ModelReplica)
    ingress = serve.deployment(
        name="ingress", max_ongoing_requests=1 << 14, ray_actor_options={"num_cpus": 0}
    )(Ingress)
    return ingress.bind(replicas.bind(settings, load))


def _load(model: Path | None, options: LLMOptions) -> ServedModel:
    from powerinfer.serve.loading import load_served

    return load_served(model, options)
