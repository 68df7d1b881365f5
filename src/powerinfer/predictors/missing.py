"""Kinds from outside that a file names but that cannot be used here."""

from powerinfer import _plugins
from powerinfer.errors import UnsupportedError
from powerinfer.predictors.names import MAX_PARTS, parse_kind
from powerinfer.predictors.outside import PACKAGE, find_outside, is_name

__all__ = ["missing_kind"]

_LONGEST_NAME = 60


def missing_kind(name: str) -> str | None:
    """Explain why a kind from outside, or a cascade with one, cannot be used here.

    Returns:
        The reason; None if it can be used, and for names that no kind from outside can have.
    """
    if len(name) > _LONGEST_NAME:
        return None
    bases = [part.partition(":")[0] for part in name.split("+", MAX_PARTS)]
    strange = [base for base in bases if base not in _plugins.keys(PACKAGE)]
    if not strange or not all(map(is_name, strange)):
        return None
    try:
        for base in strange:
            if find_outside(base) is None:
                return f"no installed package provides the kind {base!r}"
        parts = parse_kind(name)
    except UnsupportedError as error:
        return str(error).rstrip(".")
    return None if parts[0].kind.scorer else f"kind {bases[0]!r} no longer has a threshold"
