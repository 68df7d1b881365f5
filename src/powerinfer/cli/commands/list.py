"""List the models in the caches with sizes, architectures and sparsity, or the catalogue."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerinfer.cli.flags.options import json_option, option, print_json
from powerinfer.cli.report.tables import percent, print_table

if TYPE_CHECKING:
    from powerinfer.gguf import GGUFFile
    from powerinfer.hub.held import HeldModel

__all__ = ["COMMAND"]

_LARGEST_CONFIG = 1 << 20

_EPILOG = """\b
Examples:
  powerinfer list
  powerinfer list --json
  powerinfer list --catalogue                        names for -m and pull
  powerinfer run -m hf:ORG/NAME:Q4_K_M -p 'Hello'    a name from the list
  powerinfer rm hf:ORG/NAME:Q4_K_M

Lists models that `powerinfer pull` and -m NAME fetched, GGUF files in the cache of
huggingface_hub, checkpoints that were fetched for a conversion, and interrupted
downloads, which resume when the model is pulled again.

Sparsity is the activation of the FFN, the share of the neurons that are skipped if the
model was calibrated, and whether the file has predictors. A dense model skips no
neurons.

Entries of the catalogue that are unverified were never fetched by the developers; their
sources may have moved. Zeros is the share of neurons that do not fire, as the authors of
a model publish it.
"""


@dataclass
class ModelRow:
    """A model in `list --json`; facts that cannot be read are None."""

    name: str
    path: str
    kind: str
    cache: str
    repository: str
    commit: str
    bytes: int
    architecture: str | None = None
    activation: str | None = None
    is_sparse: bool | None = None
    has_predictors: bool | None = None
    skipped_share: float | None = None


@click.command("list", epilog=_EPILOG)
@option("--catalogue", "List the models that have short names instead.")
@json_option
def list_models(catalogue: bool, as_json: bool) -> None:
    """List the models in the caches, or those of the catalogue."""
    if catalogue:
        _print_catalogue(as_json=as_json)
        return
    from powerinfer.hub.caches import library_cache, our_cache, package_cache
    from powerinfer.hub.sources import all_held_models

    rows = [_row(model) for model in all_held_models()]
    if as_json:
        print_json(
            {
                "folders": [str(our_cache()), str(library_cache()), str(package_cache())],
                "bytes": sum(row.bytes for row in rows),
                "models": [asdict(row) for row in rows],
            }
        )
    elif rows:
        _print(rows)
    else:
        click.echo(
            "no models yet; `powerinfer pull smollm2` fetches one that chats, `powerinfer list "
            "--catalogue` shows others",
            err=True,
        )


def _print_catalogue(*, as_json: bool) -> None:
    from powerinfer.hub.catalogue import catalogue
    from powerinfer.store.memory import format_bytes

    entries = catalogue().values()
    if as_json:
        print_json({"models": [asdict(entry) for entry in entries]})
        return
    rows = [("name", "size", "weights", "activation", "zeros", "licence", "verified", "good for")]
    for entry in entries:
        size = format_bytes(entry.size) if entry.size else "-"
        facts = (entry.quantization, entry.activation, entry.zeros, entry.licence)
        weights, activation, zeros, licence = (fact or "-" for fact in facts)
        state = "yes" if entry.is_verified else "unverified"
        rows.append((entry.name, size, weights, activation, zeros, licence, state, entry.good_for))
    print_table(rows, left=(0, 2, 3, 4, 5, 6, 7))


def _print(rows: list[ModelRow]) -> None:
    from powerinfer.hub.catalogue import short_name
    from powerinfer.store.memory import format_bytes

    cells = [("name", "size", "architecture", "sparsity", "cache")]
    for row in rows:
        sparsity = _sparsity(row) if row.kind == "model" else row.kind
        size, architecture = format_bytes(row.bytes), row.architecture or "-"
        cells.append((short_name(row.name), size, architecture, sparsity, row.cache))
    print_table(cells, left=(0, 2, 3, 4))


def _sparsity(row: ModelRow) -> str:
    """The sparsity column of a model."""
    if row.is_sparse is None:
        return "-"
    if not row.is_sparse:
        return f"dense ({row.activation})"
    facts = [str(row.activation)]
    if row.skipped_share is not None:
        facts.append(f"{percent(row.skipped_share, 0)} skipped")
    if row.has_predictors:
        facts.append("predictors")
    return ", ".join(facts)


def _row(model: "HeldModel") -> ModelRow:
    from powerinfer.hub.held import HeldKind

    row = ModelRow(
        name=str(model.reference),
        path=str(model.path),
        kind=model.kind.value,
        cache="powerinfer" if model.is_ours else "huggingface_hub",
        repository=model.reference.repository,
        commit=model.commit,
        bytes=model.num_bytes,
    )
    if model.kind is HeldKind.MODEL:
        _describe_model(row, model.path)
    elif model.kind is HeldKind.CHECKPOINT:
        row.architecture = _model_type(model.path / "config.json")
    return row


def _describe_model(row: ModelRow, path: Path) -> None:
    """Add facts from the header, as far as it can be read."""
    from powerinfer.errors import PowerInferError
    from powerinfer.gguf import keys, open_gguf
    from powerinfer.models import architecture_of, read_config

    try:
        file = open_gguf(path)
        architecture = file.metadata.get(keys.ARCHITECTURE)
        row.architecture = architecture if isinstance(architecture, str) else None
        config = read_config(file, architecture_of(file))
    except PowerInferError:
        return  # `powerinfer inspect` says why
    row.activation = str(config.activation)
    row.is_sparse = config.activation.is_sparse
    row.has_predictors = any(name.endswith(".fc1.weight") for name in file.tensors)
    row.skipped_share = _skipped_share(file)


def _skipped_share(file: "GGUFFile") -> float | None:
    """Share of the neurons that do not fire; None without a calibration."""
    from powerinfer.calibration.files import find_calibration
    from powerinfer.errors import PowerInferError

    try:
        found = find_calibration(file)
    except PowerInferError:
        return None
    if found is None or not found.layers:
        return None
    shares = [found.active_share(layer) for layer in range(len(found.layers))]
    return 1 - sum(shares) / len(shares)


def _model_type(path: Path) -> str | None:
    """The model type in a checkpoint's config, if it can be read."""
    from powerinfer._files import read_small_file
    from powerinfer.errors import PowerInferError

    try:
        config = json.loads(
            read_small_file(path, _LARGEST_CONFIG, noun="config", error=PowerInferError)
        )
    except (PowerInferError, ValueError, RecursionError):
        return None
    found = config.get("model_type") if isinstance(config, dict) else None
    return found if isinstance(found, str) and found.isprintable() else None


COMMAND = list_models
