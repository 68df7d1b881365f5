"""Primitives: the kinds of work that a worker can do. Each file is one, and its name is the key.

``primitive.py`` has the types they share; files that begin with an underscore are helpers.
"""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import cast

from powerinfer import _plugins
from powerinfer.orchestra.primitives.primitive import Primitive

__all__ = ["load", "names"]

_TYPES = "primitive"


def names() -> tuple[str, ...]:
    """Keys of all primitives, sorted, without importing them."""
    return tuple(key for key in _plugins.keys(__name__) if key != _TYPES)


@cache
def load() -> Mapping[str, Primitive]:
    """Import all primitives.

    Returns:
        The primitives by their names, in the order of `names`.
    """
    found = {
        key: cast("Primitive", _plugins.load(__name__, key, "PRIMITIVE", what="primitive"))
        for key in names()
    }
    return MappingProxyType(found)
