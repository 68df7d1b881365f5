"""The catalogue: short names of models, with their sources and what is known of them."""

import importlib.resources
import tomllib
from dataclasses import dataclass
from functools import cache

from powerinfer.errors import HubError
from powerinfer.hub.names import is_reference

__all__ = ["Entry", "catalogue", "entry_of", "short_name", "source_of"]

_FILE = "catalogue.toml"


@dataclass(frozen=True, slots=True)
class Entry:
    """A model of the catalogue; what is not known is None.

    Attributes:
        source: `hf:...` or `pypi:...`.
        good_for: in a few words.
        size: of the GGUF file in bytes.
        activation: of the FFN.
        zeros: share of neurons that do not fire, as the authors of the model publish it.
        flags: that commands need with this model, such as an activation that the file lacks.
        wheel_sha256: of the package; `sha256` is that of the GGUF file.
        is_verified: the developers fetched it, and size and hashes are those of that file.
    """

    name: str
    source: str
    good_for: str
    licence: str | None = None
    quantization: str | None = None
    size: int | None = None
    activation: str | None = None
    zeros: str | None = None
    flags: str | None = None
    wheel_sha256: str | None = None
    sha256: str | None = None
    is_verified: bool = False


@cache
def catalogue() -> dict[str, Entry]:
    """Read the catalogue; entries by name, in the order of the file."""
    file = importlib.resources.files("powerinfer").joinpath("hub").joinpath(_FILE)
    tables = tomllib.loads(file.read_text(encoding="utf-8"))
    return {name: Entry(name=name, **fields) for name, fields in tables.items()}


def entry_of(source: str) -> Entry | None:
    """Entry that the catalogue has for a source."""
    return next((each for each in catalogue().values() if each.source == source), None)


def short_name(source: str) -> str:
    """Name that the catalogue has for a source; the source itself if it has none."""
    entry = entry_of(source)
    return source if entry is None else entry.name


def source_of(name: str) -> str:
    """Source that a name of the catalogue stands for; a source is returned as it is.

    Raises:
        HubError: it is neither.
    """
    if is_reference(name):
        return name
    if name in catalogue():
        return catalogue()[name].source
    raise HubError(
        f"{name:.200}: not in the catalogue; expected a name that is, such as smollm2, or "
        "hf:ORG/NAME[:QUANT][@REVISION] or pypi:NAME==VERSION/FILE"
    )
