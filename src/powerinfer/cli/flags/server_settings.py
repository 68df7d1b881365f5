"""Server settings from the flags of `powerinfer serve`."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from powerinfer.cli.files import read_text
from powerinfer.sampling.sampling_params import SamplingParams

if TYPE_CHECKING:
    from powerinfer.serve.settings import ServerSettings

__all__ = ["server_settings"]

_EMBEDDED = "powerinfer-story"


def server_settings(
    model: Path | None, flags: Mapping[str, Any], params: SamplingParams
) -> "ServerSettings":
    """Create the settings; `params` are the defaults for requests.

    Raises:
        click.ClickException: a key is empty, or the file of keys is empty or cannot be read.
    """
    from powerinfer.serve.settings import ServerSettings

    names = _names(model, flags["alias"])
    return ServerSettings(
        model_name=names[0],
        other_names=tuple(names[1:]),
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
        sampling=params,
        max_tokens=flags["max_tokens"],
        is_story_model=model is None,
    )


def _names(model: Path | None, alias: str | None) -> list[str]:
    """Names that clients may use for the model; the first is shown to them."""
    aliases = [each.strip() for each in (alias or "").split(",") if each.strip()]
    if model is None:
        return list(dict.fromkeys([*aliases, _EMBEDDED]))
    return list(dict.fromkeys([*aliases, model.name.removesuffix(".gguf"), model.name, str(model)]))


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
