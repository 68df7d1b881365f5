"""Plug-in folders: every module in a package folder is a plug-in, keyed by its file name.

Listing keys reads the folder and imports nothing, so help texts stay cheap; a plug-in is imported
on first use. There is no table to keep in sync with the files.
"""

import difflib
import importlib
import importlib.util
import pkgutil
from functools import cache

from powerinfer.errors import UnsupportedError

__all__ = ["keys", "load", "unsupported"]


@cache
def keys(package: str) -> tuple[str, ...]:
    """List the plug-ins of a package, sorted, without importing them.

    Modules whose name starts with an underscore are not plug-ins.

    Args:
        package: dotted name of the folder, for example ``powerinfer.quant.formats``.

    Raises:
        ImportError: there is no such package.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError(f"{package} is not a package folder")
    found = pkgutil.iter_modules(spec.submodule_search_locations)
    return tuple(sorted(module.name for module in found if not module.name.startswith("_")))


def load(package: str, key: str, attribute: str, *, what: str) -> object:
    """Import one plug-in and return the object it exports.

    Args:
        package: dotted name of the folder.
        key: file name of the plug-in without ``.py``.
        attribute: name of the exported object.
        what: kind of plug-in for messages, for example ``quantization format``.

    Raises:
        UnsupportedError: unknown key; lists the known ones.
        ImportError: the plug-in itself failed to import. Passed on unchanged, because "not
            supported" would hide a missing library or a broken file.
        AttributeError: the plug-in does not export `attribute`.
    """
    if key not in keys(package):
        raise unsupported(what, key, keys(package))
    return getattr(importlib.import_module(f"{package}.{key}"), attribute)


def unsupported(what: str, got: object, supported: tuple[str, ...]) -> UnsupportedError:
    """Build the error for an unknown name, with the closest match and all supported names."""
    near = difflib.get_close_matches(str(got), supported, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    listed = ", ".join(supported) or "none"
    return UnsupportedError(f"{what} {got!r} is not supported.{hint} Supported: {listed}.")
