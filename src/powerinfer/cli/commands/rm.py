"""Remove models from the cache, and say how much space that frees."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerinfer.cli.flags.options import json_option, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from powerinfer.hub.held import HeldModel

__all__ = ["COMMAND"]

_EPILOG = """\b
Examples:
  powerinfer rm hf:ORG/NAME:Q4_K_M
  powerinfer rm hf:ORG/NAME@v1.0 hf:ORG/OTHER
  powerinfer rm smollm2
  powerinfer list

MODEL is a name that `powerinfer list` shows, one of the catalogue, or the path of a file
there. There is no confirmation. Calibrations and plans next to the model are removed
too; files that `powerinfer cache` shows stay.

Only models that `powerinfer pull` and -m NAME fetched are removed. Files in the cache
of huggingface_hub are removed by its own command, `hf cache rm`; other files are yours.
"""


@click.command(epilog=_EPILOG)
@click.argument("models", metavar="MODEL...", nargs=-1, required=True)
@json_option
def rm(models: tuple[str, ...], as_json: bool) -> None:
    """Remove each MODEL from the cache."""
    from powerinfer.hub.held import remove
    from powerinfer.hub.sources import all_held_models
    from powerinfer.store.memory import format_bytes

    held = all_held_models()
    # Find all of them first, so that a mistake in one name removes nothing.
    found = list(dict.fromkeys(_find(name, held) for name in models))
    removed = []
    for model in found:
        freed = remove(model)
        removed.append({"name": str(model.reference), "path": str(model.path), "bytes": freed})
        if not as_json:
            click.echo(f"removed {model.reference}, {format_bytes(freed)} freed")
    if as_json:
        print_json({"bytes": sum(int(str(each["bytes"])) for each in removed), "removed": removed})


def _find(name: str, held: "Sequence[HeldModel]") -> "HeldModel":
    """Find the one model that a name or a path refers to."""
    from powerinfer.errors import HubError
    from powerinfer.hub.held import fitting_models
    from powerinfer.hub.package_names import parse_model_name
    from powerinfer.store.default_model import reference_of

    reference = reference_of(name)
    if reference is not None:
        found = fitting_models(parse_model_name(reference), held)
    else:
        path = Path(name).absolute()
        found = [model for model in held if path in (model.path, *model.files)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise HubError(f"{name[:200]}: no such model in the caches; `powerinfer list` shows them")
    names = [str(model.reference) for model in found]
    if len(set(names)) < len(names):
        names = [str(model.path) for model in found]
    raise HubError(f"{name[:200]}: {len(found)} models fit: {', '.join(names)}; name one")


COMMAND = rm
