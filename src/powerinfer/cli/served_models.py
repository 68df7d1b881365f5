"""The models that `powerinfer serve` serves: their names, files, and how long they stay."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from powerinfer.loading.loader import Progress
    from powerinfer.options.llm_options import LLMOptions
    from powerinfer.serve.model_source import ModelSource
    from powerinfer.serve.served_model import ServedModel

__all__ = [
    "KeepAlive",
    "NamedModel",
    "check_options_for_several",
    "find_served_models",
    "model_source",
    "names_of",
    "pulled_sources",
]

STORY_NAME = "powerinfer-story"

_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smh]?)")
# Options that name one model, or what only one can have.
_OF_ONE = {
    "alias": "names one model",
    "draft_model": "drafts for one model",
    "gpu_index": "is the plan of one model",
    "vram_budget": "is for one model on a GPU",
    "solver": "is for one model on a GPU",
    "online": "is for one model on a GPU",
    "reset_gpu_index": "is for one model on a GPU",
    "disable_gpu_index": "is for one model on a GPU",
}


class KeepAlive(click.ParamType[float]):
    """A time such as `300`, `90s`, `5m` or `1h`, as seconds; a negative one as infinity."""

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Convert one value."""
        if isinstance(value, float):
            return value
        text = str(value).strip().lower()
        found = _DURATION.fullmatch(text.removeprefix("-"))
        if found is None:
            self.fail(f"{text!r:.40} is not a time such as 300, 90s, 5m, 1h, 0 or -1", param, ctx)
        return float("inf") if text.startswith("-") else float(found[1]) * _SECONDS[found[2]]


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model to serve: `path` as it is loaded; None for the model of the package."""

    names: tuple[str, ...]
    path: Path | None


def names_of(model: Path | None, alias: str | None = None) -> list[str]:
    """Names that clients may use for a model; the first is shown to them."""
    aliases = [each.strip() for each in (alias or "").split(",") if each.strip()]
    if model is None:
        return list(dict.fromkeys([*aliases, STORY_NAME]))
    return list(dict.fromkeys([*aliases, model.name.removesuffix(".gguf"), model.name, str(model)]))


def find_served_models(given: Sequence[Path], alias: str | None) -> list[NamedModel]:
    """Find the models to serve: those given, or else what is pulled and the one of the package."""
    if len(given) == 1:
        return [NamedModel(tuple(names_of(given[0], alias)), given[0])]
    models = _given(given) if given else _pulled()
    found: list[NamedModel] = []
    taken: set[str] = set()
    for own, names, path in models:
        free = tuple(name for name in names if name not in taken)
        # Otherwise it is there already, given twice or in another cache.
        if own in free:
            found.append(NamedModel(free, path))
            taken.update(names)
    if not given:
        found.append(NamedModel(tuple(names_of(None, alias)), None))
    return found


def _given(paths: Sequence[Path]) -> Iterator[tuple[str, list[str], Path]]:
    """List the name that no other model has, all names, and the path of each."""
    return ((str(path), names_of(path), path) for path in paths)


def _pulled() -> Iterator[tuple[str, list[str], Path]]:
    """List the same of the models in the caches, in the order of `powerinfer list`."""
    from powerinfer.hub.catalogue import short_name
    from powerinfer.hub.held import HeldKind
    from powerinfer.hub.sources import all_held_models

    for held in all_held_models():
        if held.kind is HeldKind.MODEL:
            reference = str(held.reference)
            names = [short_name(reference), *names_of(held.path), reference]
            yield reference, list(dict.fromkeys(names)), held.path


def check_options_for_several(flags: Mapping[str, Any], num_models: int) -> None:
    """Refuse options that mean one model that stays.

    Raises:
        click.UsageError: one is given.
    """
    for name, reason in _OF_ONE.items():
        if flags[name] not in (None, False) and (name != "alias" or num_models > 1):
            raise click.UsageError(
                f"--{name.replace('_', '-')} {reason}; serve one alone: name it with -m, without "
                "--keep-alive"
            )
    if flags["device"] not in ("auto", "cpu"):
        raise click.UsageError(
            f"--device {flags['device']}: models that come and go run on the CPU; serve one alone: "
            "name it with -m, without --keep-alive"
        )


def model_source(model: NamedModel, options: "LLMOptions", *, checks: bool) -> "ModelSource":
    """Describe a model to a server that loads it later.

    Args:
        checks: fetch it if it is elsewhere, and read its file now.

    Raises:
        PowerInferError: it `checks`, and the model cannot be had or read.
    """
    from powerinfer.serve.loading import facts_reader
    from powerinfer.serve.model_source import ModelSource
    from powerinfer.store.default_model import default_model_path

    path = default_model_path() if model.path is None else model.path
    if checks:
        path = _fetched(path)

    def load(progress: "Progress") -> "ServedModel":
        from powerinfer.cli.model import announce, load_for_serving

        click.echo(f"loading {model.names[0]}", err=True)
        served = load_for_serving(path, options, progress)
        if served.loaded is not None:
            announce(served.loaded)
        return served

    source = ModelSource(
        names=model.names,
        path=path,
        load=load,
        read_facts=facts_reader(path, options),
        is_story_model=model.path is None,
    )
    if checks:
        source.facts()
    return source


def pulled_sources(options: "LLMOptions", alias: str | None) -> "list[ModelSource]":
    """Describe what is pulled now, and the model of the package, which comes last."""
    return [model_source(each, options, checks=False) for each in find_served_models((), alias)]


def _fetched(path: Path) -> Path:
    """Find the file of a model, downloaded if it is elsewhere."""
    from powerinfer.cli.model import loading_bars
    from powerinfer.gguf import open_gguf
    from powerinfer.store.default_model import find_model

    with loading_bars() as bars:
        return open_gguf(find_model(path, bars["downloading"])).path
