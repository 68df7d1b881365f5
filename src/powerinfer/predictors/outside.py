"""Kinds from outside the package: registered by a program, or announced by a distribution.

A distribution announces a kind as an entry point, whose name is the kind's::

    [project.entry-points."powerinfer.predictors"]
    eight = "my_package.kinds:KIND"

Nobody looks for them before a name is asked for that the package does not have.
"""

import logging
import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from powerinfer import _plugins
from powerinfer.errors import UnsupportedError
from powerinfer.predictors.kind import PredictorKind

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

# As file names in the plug-in folder are: what names join kinds by may not be part of one.
_NAME = re.compile(r"[a-z][a-z0-9_]{0,29}")
_VARIANT = re.compile(r"[a-z0-9_]{0,29}")
_LONGEST_REASON = 300
_RESERVED = ("auto", "calibrated", "off")

_log = logging.getLogger(__name__)

_registered: dict[str, PredictorKind] = {}


def register(kind: PredictorKind, *, replace: bool = False) -> None:
    """Make a kind known in this process, under its name.

    Args:
        kind: of a name that no kind of the package has.
        replace: take the place of a registered kind of the same name, as a cell of a notebook that
            is run again does. Models that are loaded keep the old one.

    Raises:
        UnsupportedError: it is no `PredictorKind`, the name is taken or is no name, or the kind
            contradicts itself.
    """
    if not isinstance(kind, PredictorKind):
        raise UnsupportedError(f"register: got a {type(kind).__name__}, expected a PredictorKind")
    _check(kind, kind.name, "register")
    if not replace and _registered.get(kind.name, kind) is not kind:
        raise UnsupportedError(
            f"register: a predictor kind {kind.name!r} is registered already; choose another name, "
            "or register it with replace=True"
        )
    _registered[kind.name] = kind


def find_outside(name: str) -> PredictorKind | None:
    """The kind of this name that was registered, or else the one that a distribution announces.

    Raises:
        UnsupportedError: there is one, but it cannot be used; names the distribution.
    """
    if name in _registered:
        return _registered[name]
    if not _NAME.fullmatch(name) or name not in _announced():
        return None
    return _load(name)


def is_name(text: str) -> bool:
    """Whether a kind from outside may have this name."""
    return bool(_NAME.fullmatch(text)) and text not in (*_plugins.keys(PACKAGE), *_RESERVED)


def kinds_outside() -> tuple[PredictorKind, ...]:
    """All kinds from outside; a warning names each that is announced and cannot be used."""
    found = dict(_registered)
    for name in _announced():
        try:
            found.setdefault(name, _load(name))
        except UnsupportedError as error:
            _log.warning("%s", error)
    return tuple(found.values())


def registered_kinds() -> tuple[PredictorKind, ...]:
    """All kinds that were registered in this process."""
    return tuple(_registered.values())


def announced_names() -> tuple[str, ...]:
    """Names of the kinds that distributions announce, none of which is imported; usable or not."""
    return tuple(
        name
        for name in _announced()
        if _NAME.fullmatch(name) and not _is_taken(name) and name not in _registered
    )


@cache
def _announced() -> Mapping[str, tuple["EntryPoint", ...]]:
    """What installed distributions announce, by name."""
    # Heavy: it reads the metadata of everything that is installed.
    from importlib.metadata import entry_points

    found: dict[str, tuple[EntryPoint, ...]] = {}
    for announced in entry_points(group=GROUP):
        found[announced.name] = (*found.get(announced.name, ()), announced)
    return found


@cache
def _load(name: str) -> PredictorKind:
    """Import an announced kind and check it.

    Raises:
        UnsupportedError: it cannot be used; names the distribution.
    """
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
    """Name and version of what announces a kind."""
    dist = announced.dist
    return "an unknown distribution" if dist is None else f"{dist.name} {dist.version}"


def _check(kind: PredictorKind, name: str, who: str) -> None:
    """Check what every file in the plug-in folder keeps to.

    Raises:
        UnsupportedError: names who brought the kind and what is wrong.
    """
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
            f"{name!r} is no name for a predictor kind: a lower-case letter, then at most 29 "
            "lower-case letters, digits and underscores"
        )
    if _is_taken(name):
        return f"the name {name!r} is taken by the package; choose another one"
    if (kind.scorer is None) == (kind.active_ids is None):
        return f"kind {name!r} must have either a scorer or active_ids"
    wrong = [variant for variant in kind.variants if not _VARIANT.fullmatch(variant)]
    if wrong:
        return f"{wrong[0]!r} is no variant: lower-case letters, digits and underscores"
    if not set(kind.cascade_bits) <= set(kind.variants or ("",)):
        return f"cascade_bits of kind {name!r} names variants that the kind does not have"
    if kind.cascade_bits and kind.scorer is None:
        return f"kind {name!r} has no scorer, so it cannot be part of a cascade"
    return None
