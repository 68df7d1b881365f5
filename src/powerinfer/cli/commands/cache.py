"""Show or empty the cache: calibrations, plans, profiles and speeds of this machine.

Files next to a model are not part of it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerinfer.cli.files import ModelPath
from powerinfer.cli.flags.options import json_option, option, print_json
from powerinfer.cli.report.tables import print_paragraph, print_table

if TYPE_CHECKING:
    from powerinfer.cli.cached_files import CachedFile

__all__ = ["COMMAND"]

_EPILOG = """\b
Examples:
  powerinfer cache
  powerinfer cache --clear
  powerinfer cache --clear -m model.gguf

Everything in the cache is made again when it is needed. It holds calibrations
and plans of models whose own folder is not writable, and of the bundled model;
the short calibrations of --sparsity auto; profiles, which count how often each
neuron fires; the measured speeds of this machine; and leftovers of processes
that were killed.

Calibrations and plans next to a model, such as MODEL.calibration.json,
MODEL.plan.json and MODEL.generated.gpuidx, are not in the cache: delete these
files yourself.
"""


@click.command(epilog=_EPILOG)
@option("-m --model PATH", "Only files of this model. [default: files of all models]", ModelPath())
@option("--clear", "Delete the files.")
@json_option
def cache(model: Path | None, clear: bool, as_json: bool) -> None:
    """Show what the cache holds and for which models, or empty it."""
    from powerinfer._files import cache_root
    from powerinfer.cli.cached_files import cached_files, ignored_setting

    if ignored := ignored_setting():
        print_paragraph(
            f"warning: XDG_CACHE_HOME is ignored: {ignored!r} is not an absolute path",
            err=True,
        )
    files = cached_files()
    if model is not None:
        identity = _identity(model)
        files = [each for each in files if each.model_identity == identity]
    report = _as_json(cache_root(), files, is_cleared=clear)
    if clear:
        _remove(files)
    if as_json:
        print_json(report)
    elif clear:
        click.echo(f"removed {_amount(files)} from {cache_root()}")
    else:
        click.echo(f"{cache_root()}: {_amount(files)}")
        _print_table(files)


def _identity(model: Path) -> str:
    from powerinfer.gguf import model_identity, open_gguf
    from powerinfer.store.default_model import reference_of

    reference = reference_of(str(model))
    if reference is not None:
        from powerinfer.hub.sources import fetch_named

        # A model that must be fetched first has nothing in the cache.
        model = fetch_named(reference, fetches=False).path
    return model_identity(open_gguf(model))


def _remove(files: "Sequence[CachedFile]") -> None:
    for each in files:
        try:
            each.path.unlink(missing_ok=True)
        except OSError as error:
            raise click.ClickException(
                f"{each.path}: cannot be removed: {error.strerror or error}"
            ) from None


def _print_table(files: "Sequence[CachedFile]") -> None:
    from powerinfer.store.memory import format_bytes

    groups: dict[tuple[str, str | None], list[CachedFile]] = {}
    for each in files:
        groups.setdefault((each.kind, each.model_identity), []).append(each)
    rows = [("kind", "files", "size", "model")]
    for (kind, identity), members in groups.items():
        size = format_bytes(sum(each.num_bytes for each in members))
        rows.append((kind, str(len(members)), size, _model_name(identity)))
    if files:
        click.echo()
        print_table(rows, left=(0, 3))


def _model_name(identity: str | None) -> str:
    """A model's file name and the first digits of its identity."""
    if identity is None:
        return "-"
    from powerinfer.store.cached_models import model_path

    path = model_path(identity)
    return f"{path.name if path is not None else 'unknown'} ({identity[:12]}...)"


def _amount(files: "Sequence[CachedFile]") -> str:
    from powerinfer.store.memory import format_bytes

    noun = "file" if len(files) == 1 else "files"
    return f"{len(files)} {noun}, {format_bytes(sum(each.num_bytes for each in files))}"


def _as_json(folder: Path, files: "Sequence[CachedFile]", *, is_cleared: bool) -> dict[str, object]:
    """The object of `cache --json`; with --clear it lists the removed files."""
    from powerinfer.store.cached_models import model_path

    identities = {each.model_identity for each in files if each.model_identity is not None}
    paths = {identity: model_path(identity) for identity in identities}
    return {
        "folder": str(folder),
        "bytes": sum(each.num_bytes for each in files),
        "is_cleared": is_cleared,
        "files": [
            {
                "path": str(each.path),
                "kind": each.kind,
                "bytes": each.num_bytes,
                "model": each.model_identity,
                "model_path": str(path) if (path := paths.get(each.model_identity or "")) else None,
            }
            for each in files
        ],
    }


COMMAND = cache
