"""Serve models over HTTP: OpenAI's API and a chat page.

The port opens at once. One model is loaded then, and until that is done, /health answers 503;
several are loaded when requests ask for them.
"""

import math
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from powerinfer.cli.files import PathType, read_text
from powerinfer.cli.flags.flags import flag, flags, llm_options, sampling_params
from powerinfer.cli.flags.llama_server_flags import llama_server_flags, take_llama_server_flags
from powerinfer.cli.flags.options import (
    DRAFT_FLAGS,
    STATE_FLAGS,
    models_option,
    option,
    other_engine_options,
    parallel_options,
    sampling_options,
)
from powerinfer.cli.flags.sections import SectionedCommand
from powerinfer.cli.orchestra import ServedOrchestra, permissions_options, pool_option
from powerinfer.cli.served_models import (
    KeepAlive,
    NamedModel,
    check_options_for_several,
    find_served_models,
    model_source,
    pulled_sources,
)

if TYPE_CHECKING:
    import socket

    from powerinfer.options.llm_options import LLMOptions
    from powerinfer.serve.context import ServerContext
    from powerinfer.serve.model_source import ModelSource
    from powerinfer.serve.served_model import ServedModel
    from powerinfer.serve.settings import ServerSettings

__all__ = ["COMMAND"]

_EXIT_INTERRUPTED = 130
_KEEP_ALIVE_S = 300.0
_EPILOG = """\b
Examples:
  powerinfer serve -m model.gguf                      on http://127.0.0.1:8080
  powerinfer serve                                    what is pulled, by name
  powerinfer serve -m a.gguf -m b.gguf                two models, by name
  powerinfer serve -m model.gguf --port 9000 -np 16   up to 16 answers at once
  powerinfer serve -m model.gguf -c 8192 --alias me   a name for clients
  powerinfer serve -m model.gguf --host 0.0.0.0 --api-key-file keys.txt

\b
  curl http://127.0.0.1:8080/v1/chat/completions \\
    -d '{"messages": [{"role": "user", "content": "Hello"}]}'

Sampling flags are the defaults for requests. Ctrl-C or SIGTERM lets running requests
finish; a second Ctrl-C stops at once. Flags of llama-server that mean nothing here are
accepted and listed.
"""


# What people need, first in the help.
_FIRST = (
    *("models", "host", "port", "alias", "api_keys", "api_key_file", "parallel"),
    *("context_length", "max_tokens", "threads"),
)


@click.command(cls=SectionedCommand, first=_FIRST, rest="Server", epilog=_EPILOG)
@option("--host TEXT", "Address to listen on.", default="127.0.0.1")
@option(
    "--port",
    "Port to listen on; 0 takes a free one, which is printed.",
    click.IntRange(0, 65535),
    default=8080,
)
@parallel_options
@option(
    "--max-queue",
    "Most requests that wait; further ones are refused with 429.",
    click.IntRange(0),
    default=64,
)
@option("-a --alias NAME", "Model name for clients.")
@option(
    "--api-key KEY",
    "Key that requests must carry; repeatable.",
    name="api_keys",
    multiple=True,
    envvar="POWERINFER_API_KEY",
    show_envvar=True,
)
@option("--api-key-file FILE", "File with keys, one per line.", PathType())
@option(
    "--drain-timeout S",
    "Seconds that running requests have to finish when the server stops.",
    click.FloatRange(0),
    default=30.0,
)
@option(
    "--request-timeout S",
    "Most seconds a request may take. [default: no limit]",
    click.FloatRange(0, min_open=True),
)
@option(
    "-to --timeout S",
    "Seconds for a request to arrive, and for its client to read on.",
    click.FloatRange(0, min_open=True),
    default=60.0,
)
@option(
    "--cors-origin ORIGIN",
    "Let pages of another origin, such as https://example.org, use the API; repeatable.",
    name="cors_origins",
    multiple=True,
)
@option(
    "--reuse-answers",
    "Reuse earlier answers when they come back in a prompt, without computing them again. "
    "The last bits of a text then depend on what was computed before.",
)
@flag("max_tokens", help="Most tokens in a chat answer; -1 for no limit.", default=-1)
@option(
    "--keep-alive TIME",
    "How long a model stays without requests: seconds, or 90s, 5m, 1h; 0 lets it go at once, -1 "
    "never. [default: 5m with several models, -1 with one]",
    KeepAlive(),
)
@models_option
@pool_option
@permissions_options
@option("--allow-over-http", "With --pool, let clients use what --allow names.")
@flag("context_length")
@other_engine_options
@sampling_options
@flags("context_shift", "keep_tokens", *STATE_FLAGS, *DRAFT_FLAGS)
@llama_server_flags
def serve(models: tuple[Path, ...], keep_alive: float | None, **flags: object) -> int:
    """Serve models to many clients at once."""
    meaningless, without_effect = take_llama_server_flags(flags)
    for names, what in (
        (meaningless, "that mean nothing here and are ignored"),
        (without_effect, "that change answers there, but have no effect here"),
    ):
        if names:
            click.echo(f"flags of llama-server {what}: {', '.join(names)}", err=True)
    if flags["pool"] is not None:
        return _run_orchestra(models, keep_alive, flags)
    alias = cast("str | None", flags["alias"])
    found = find_served_models(models, alias)
    options: LLMOptions = {**llm_options(flags), "device": "cpu"}
    find = None if models else partial(pulled_sources, options, alias)
    if len(found) == 1 and keep_alive is None:
        if _mean_one_model(flags):
            find = None
        return _run(found[0].path, llm_options(flags), _settings(found[0], flags), find)
    check_options_for_several(flags, len(found))
    stay_s = _KEEP_ALIVE_S if keep_alive is None else keep_alive
    sources = [model_source(each, options, checks=bool(models)) for each in found]
    return _run_several(sources, _settings(found[0], flags), stay_s, find)


def _run_orchestra(
    models: Sequence[Path], keep_alive: float | None, flags: Mapping[str, Any]
) -> int:
    """Serve the models of a pool, those of -m, and all of the pool together as one model."""
    options: LLMOptions = {**llm_options(flags), "device": "cpu"}
    orchestra = ServedOrchestra.read(flags, options)
    found = [each for each in find_served_models(models, None) if models]
    check_options_for_several(flags, len(found) + len(orchestra.sources))
    sources = [*orchestra.sources, *(model_source(each, options, checks=True) for each in found)]
    first = NamedModel(sources[0].names, None if sources[0].is_story_model else sources[0].path)
    stay_s = _KEEP_ALIVE_S if keep_alive is None else keep_alive
    return _run_several(sources, _settings(first, flags), stay_s, None, orchestra)


def _mean_one_model(flags: Mapping[str, Any]) -> bool:
    """Tell whether others cannot come later, as these options are for one model."""
    try:
        check_options_for_several(flags, 1)
    except click.UsageError:
        return True
    return False


def _settings(model: NamedModel, flags: Mapping[str, Any]) -> "ServerSettings":
    from powerinfer.serve.settings import ServerSettings

    return ServerSettings(
        model_name=model.names[0],
        other_names=model.names[1:],
        host=flags["host"],
        port=flags["port"],
        parallel=flags["parallel"],
        max_queue=flags["max_queue"],
        api_keys=_keys(flags["api_keys"], flags["api_key_file"]),
        drain_timeout_s=flags["drain_timeout"],
        request_timeout_s=flags["request_timeout"],
        read_timeout_s=flags["timeout"],
        cors_origins=tuple(flags["cors_origins"]),
        reuses_answers=flags["reuse_answers"],
        # The limit of tokens is a setting of its own.
        sampling=sampling_params({**flags, "max_tokens": None}),
        max_tokens=flags["max_tokens"],
        is_story_model=model.path is None,
    )


def _keys(given: tuple[str, ...], file: Path | None) -> tuple[str, ...]:
    keys = list(given)
    if file is not None:
        lines = read_text(file).decode().splitlines()
        found = [line.strip() for line in lines if line.strip()]
        if not found:
            raise click.ClickException(f"{file}: has no key; write one per line")
        keys += found
    if not all(each.strip() for each in keys):
        raise click.UsageError("--api-key is empty; leave it out for a server without keys")
    return tuple(keys)


def _run(
    model: Path | None,
    options: "LLMOptions",
    settings: "ServerSettings",
    find: "Callable[[], Sequence[ModelSource]] | None",
) -> int:
    """Serve one model, and others that `find` finds later; returns the exit code."""
    from powerinfer.serve.context import ServerContext
    from powerinfer.serve.lifecycle import run_server

    listener, settings, address = _open(settings)

    def load() -> "ServedModel":
        click.echo(f"loading the model; {address} is open", err=True)
        return load_for_serving(model, options)

    def announce_ready(served: "ServedModel") -> None:
        if served.loaded is not None:
            announce(served.loaded)
            offer_screened_head(served.loaded, settings.sampling)
        click.echo(f"serving {settings.model_name} on {address}", err=True)

    from powerinfer.cli.model import announce, load_for_serving
    from powerinfer.cli.report.head import offer_screened_head

    context = ServerContext(settings, keep_alive_s=_KEEP_ALIVE_S)
    _follow(context, find)
    number = run_server(context, listener, load, announce_ready)
    return _EXIT_INTERRUPTED if number == signal.SIGINT else 0


def _run_several(
    sources: "Sequence[ModelSource]",
    settings: "ServerSettings",
    keep_alive_s: float,
    find: "Callable[[], Sequence[ModelSource]] | None",
    orchestra: ServedOrchestra | None = None,
) -> int:
    """Serve models that load when they are asked for; returns the exit code."""
    from powerinfer.serve.context import ServerContext
    from powerinfer.serve.lifecycle import run_server

    listener, settings, address = _open(settings)
    names = ", ".join(source.names[0] for source in sources)
    click.echo(f"{address} is open; a model loads when a request names it: {names}", err=True)
    context = ServerContext(settings, sources, None if math.isinf(keep_alive_s) else keep_alive_s)
    if orchestra is not None:
        orchestra.join(context)
    _follow(context, find)
    number = run_server(context, listener)
    return _EXIT_INTERRUPTED if number == signal.SIGINT else 0


def _follow(context: "ServerContext", find: "Callable[[], Sequence[ModelSource]] | None") -> None:
    """Log what becomes of models, and look for others by `find`."""
    context.models.find_sources = find
    context.models.tell = partial(click.echo, err=True)


def _open(settings: "ServerSettings") -> "tuple[socket.socket, ServerSettings, str]":
    """Open the port; returns it, the settings with its number, and the server's address."""
    from powerinfer.serve.lifecycle import bind

    listener = bind(settings.host, settings.port)
    port = int(listener.getsockname()[1])
    shown = f"[{settings.host}]" if ":" in settings.host else settings.host
    _warn_if_open(settings)
    return listener, replace(settings, port=port), f"http://{shown}:{port}"


def _warn_if_open(settings: "ServerSettings") -> None:
    from powerinfer.serve.security import is_loopback

    if not settings.api_keys and not is_loopback(settings.host):
        click.echo(
            f"warning: anyone who reaches {settings.host} can use this server: set a key with "
            "--api-key or --api-key-file",
            err=True,
        )


COMMAND = serve
