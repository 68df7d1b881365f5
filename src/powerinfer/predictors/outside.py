"""Kinds from outside the package: registered by a program, or announced by a distribution.

A distribution announces a kind by an entry point with the name of the kind::

    [project.entry-points."powerinfer.predictors"]
    eight = "my_package.kinds:KIND"

Entry points are only searched for a name that the package does not have.
"""

import logging
import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from powerinfer import _plugins
from powerinfer.errors import UnsupportedError
from powerinfer.predictors.kind import THRESHOLD, PredictorKind

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = [
    "GROUP",
    "PACKAGE",
    "announced_names",
    "find_outside",
    "is_name",
    "kinds_outside",
    "register",
    "registered_kinds",
]

PACKAGE = "powerinfer.predictors.kinds"
GROUP = "powerinfer.predictors"

# Like file names in the plug-in folder: without the characters that join kinds.
_NAME = re.compile(r"[a-z][a-z0-9_]{0,29}")
_VARIANT = re.compile(r"[a-z0-9_]{0,29}")
_LONGEST_REASON = 300
_RESERVED = ("auto", "calibrated", "off", THRESHOLD)

_log = logging.getLogger(__name__)

_registered: dict[str, PredictorKind] = {}


def register(kind: PredictorKind, *, replace: bool = False) -> None:
    """Register a kind in this process, under its name.

    Args:
        kind: a kind whose name no kind of the package has.
        replace: replace a registered kind of the same name, for notebook cells that run again.
            Loaded models keep the old one.

    Raises:
        UnsupportedError: `kind` is not a valid `PredictorKind`, or its name is invalid or taken.
    """
    if not isinstance(kind, PredictorKind):
        raise UnsupportedError(f"register: got a {type(kind).__name__}, expected a PredictorKind")
    _check(kind, kind.name, "register")
    if not replace and _registered.get(kind.name, kind) is not kind:
        raise UnsupportedError(
            f"register: a predictor kind {kind.name!r} is registered already; choose another name, "
            "or pass replace=True"
        )
    _registered[kind.name] = kind


def find_outside(name: str) -> PredictorKind | None:
    """Return the registered kind of this name, or else the announced one.

    Raises:
        UnsupportedError: it cannot be used; names the distribution.
    """
    if name in _registered:
        return _registered[name]
    if not _NAME.fullmatch(name) or name not in _announced():
        return None
    return _load(name)


def is_name(text: str) -> bool:
    """Return whether a kind from outside may have this name."""
    return bool(_NAME.fullmatch(text)) and not _is_taken(text)


def kinds_outside() -> tuple[PredictorKind, ...]:
    """Return all kinds from outside; warns about announced ones that cannot be used."""
    found = dict(_registered)
    for name in _announced():
        try:
            found.setdefault(name, _load(name))
        except UnsupportedError as error:
            _log.warning("%s", error)
    return tuple(found.values())


def registered_kinds() -> tuple[PredictorKind, ...]:
    """Return all kinds registered in this process."""
    return tuple(_registered.values())


def announced_names() -> tuple[str, ...]:
    """Return the names of announced kinds without importing them; some may not be usable."""
    return tuple(name for name in _announced() if is_name(name) and name not in _registered)


@cache
def _announced() -> Mapping[str, tuple["EntryPoint", ...]]:
    # Slow: reads the metadata of all installed distributions.
    from importlib.metadata import entry_points

    found: dict[str, tuple[EntryPoint, ...]] = {}
    for announced in entry_points(group=GROUP):
        found[announced.name] = (*found.get(announced.name, ()), announced)
    return found


@cache
def _load(name: str) -> PredictorKind:
    """Import an announced kind and check it."""
    announced = _announced()[name]
    if len(announced) > 1:
        owners = " and ".join(sorted(_distribution(one) for one in announced))
        raise UnsupportedError(
            f"predictor kind {name!r} is announced by {owners}: uninstall all but one"
        )
    (one,) = announced
    owner = _distribution(one)
    try:
        kind = one.load()
    except Exception as error:
        raise UnsupportedError(
            f"predictor kind {name!r} of {owner}: {one.value} cannot be imported: "
            f"{type(error).__name__}: {' '.join(str(error).split())[:_LONGEST_REASON]}"
        ) from error
    if not isinstance(kind, PredictorKind):
        raise UnsupportedError(
            f"predictor kind {name!r} of {owner}: {one.value} is a {type(kind).__name__}, "
            "expected a PredictorKind"
        )
    _check(kind, name, f"predictor kind {name!r} of {owner}")
    return kind


def _distribution(announced: "EntryPoint") -> str:
    """Return name and version of the distribution that announces a kind."""
    dist = announced.dist
    return "an unknown distribution" if dist is None else f"{dist.name} {dist.version}"


def _check(kind: PredictorKind, name: str, who: str) -> None:
    """Raise UnsupportedError, naming the origin of the kind, if it is not valid."""
    problem = _problem(kind, name)
    if problem is not None:
        raise UnsupportedError(f"{who}: {problem}")


def _is_taken(name: str) -> bool:
    return name in (*_plugins.keys(PACKAGE), *_RESERVED)


def _problem(kind: PredictorKind, name: str) -> str | None:
    if kind.name != name:
        return f"the kind calls itself {kind.name!r}; both names must be the same"
    if not _NAME.fullmatch(name):
        return (
            f"{name!r} is not a valid name for a predictor kind; use a lower-case letter, then at "
            "most 29 lower-case letters, digits and underscores"
        )
    if _is_taken(name):
        return f"the name {name!r} is taken by the package; choose another one"
    if (kind.scorer is None) == (kind.active_ids is None):
        return f"kind {name!r} must have either a scorer or active_ids"
    wrong = [variant for variant in kind.variants if not _VARIANT.fullmatch(variant)]
    if wrong:
        return f"{wrong[0]!r} is not a valid variant; use lower-case letters, digits, underscores"
    if not set(kind.cascade_bits) <= set(kind.variants or ("",)):
        return f"cascade_bits of kind {name!r} names unknown variants"
    if kind.cascade_bits and kind.scorer is None:
        return f"kind {name!r} has no scorer, so it cannot be part of a cascade"
    return None
