"""Names of predictor kinds, such as ``sign+lowbit:2``."""

from collections.abc import Iterable
from dataclasses import dataclass

from powerinfer import _plugins
from powerinfer.errors import UnsupportedError
from powerinfer.predictors.kind import PredictorKind
from powerinfer.predictors.outside import (
    PACKAGE,
    announced_names,
    find_outside,
    kinds_outside,
    registered_kinds,
)

__all__ = ["MAX_PARTS", "KindName", "get_kind", "kind_names", "packaged_kind_names", "parse_kind"]

_WHAT = "sparsity"
_OTHERS = ("auto", "off")

# The native predictor has stages for this many parts of two matrices each (dReLU).
MAX_PARTS = 3
_LONGEST_NAME = 60


@dataclass(frozen=True, slots=True)
class KindName:
    """One part of a name: a kind and its variant ('' for none)."""

    kind: PredictorKind
    variant: str

    def __str__(self) -> str:
        return f"{self.kind.name}:{self.variant}" if self.variant else self.kind.name


def kind_names() -> tuple[str, ...]:
    """List every kind with each of its variants; imports those from outside, which come last."""
    return (*packaged_kind_names(), *_with_variants(kinds_outside()))


def packaged_kind_names() -> tuple[str, ...]:
    """List every kind of the package with each of its variants."""
    return _with_variants(_packaged_kinds())


def get_kind(name: str) -> PredictorKind:
    """Return the kind of this name, from the package or from outside.

    Raises:
        UnsupportedError: the name is unknown, or the kind comes from outside and cannot be used.
    """
    found = _find(name)
    if found is None:
        raise _plugins.unsupported(_WHAT, name, _known_names())
    return found


def _find(name: str) -> PredictorKind | None:
    if name not in _plugins.keys(PACKAGE):
        return find_outside(name)
    return _packaged_kind(name)


def _packaged_kind(name: str) -> PredictorKind:
    found = _plugins.load(PACKAGE, name, "KIND", what=_WHAT)
    if not isinstance(found, PredictorKind):
        raise TypeError(f"{PACKAGE}.{name}.KIND is a {type(found).__name__}")
    return found


def _packaged_kinds() -> Iterable[PredictorKind]:
    return map(_packaged_kind, _plugins.keys(PACKAGE))


def _known_names() -> tuple[str, ...]:
    """List names for messages without importing packages from outside."""
    ours = _with_variants((*_packaged_kinds(), *registered_kinds()))
    return (*ours, *announced_names())


def _with_variants(kinds: Iterable[PredictorKind]) -> tuple[str, ...]:
    return tuple(
        str(KindName(kind, variant)) for kind in kinds for variant in kind.variants or ("",)
    )


def parse_kind(text: str) -> tuple[KindName, ...]:
    """Parse ``lowbit:2`` or a cascade ``sign+lowbit:2``.

    A cascade has at most three parts, each with more bits per weight than the one before.

    Raises:
        UnsupportedError: a name or variant is unknown, or the kinds cannot follow each other.
    """
    name = text.strip().lower()
    # Names come from untrusted files too, so their length is bounded first.
    texts = name.split("+", MAX_PARTS)
    if len(texts) > MAX_PARTS or len(name) > _LONGEST_NAME:
        raise UnsupportedError(
            f"sparsity {_short(name)!r} is too long: a cascade has at most {MAX_PARTS} parts, such "
            "as sign+lowbit:2"
        )
    parts = tuple(_parse_part(part, name) for part in texts)
    if len(parts) > 1:
        _check_cascade(name, parts)
    return parts


def _check_cascade(name: str, parts: tuple[KindName, ...]) -> None:
    for part in parts:
        if part.variant not in part.kind.cascade_bits:
            raise UnsupportedError(
                f"sparsity {name!r}: {part} cannot be part of a cascade; from cheap to precise, "
                f"these can: {_cascade_names(parts)}"
            )
    bits = [part.kind.cascade_bits[part.variant] for part in parts]
    for before, after, part in zip(bits, bits[1:], parts[1:], strict=False):
        if after <= before:
            raise UnsupportedError(
                f"sparsity {name!r}: {part} must be more precise than the part before it; from "
                f"cheap to precise: {_cascade_names(parts)}"
            )


def _cascade_names(parts: Iterable[KindName]) -> str:
    """List kinds that can be part of a cascade by precision, without importing packages."""
    known = (*_packaged_kinds(), *registered_kinds(), *(part.kind for part in parts))
    bits = {
        str(KindName(kind, variant)): number
        for kind in known
        for variant, number in kind.cascade_bits.items()
    }
    return ", ".join(sorted(bits, key=lambda each: bits[each]))


def _parse_part(text: str, whole: str) -> KindName:
    name, _, variant = text.partition(":")
    if name in _OTHERS:
        raise UnsupportedError(
            f"sparsity {whole!r}: {name} is not a predictor kind; choose from "
            f"{', '.join(_known_names())}"
        )
    kind = _find(name)
    if kind is None:
        raise _unsupported(text or whole, (*_known_names(), *_OTHERS))
    if not variant:
        return KindName(kind, kind.variants[0] if kind.variants else "")
    if variant not in kind.variants:
        raise _unsupported(
            text, tuple(str(KindName(kind, known)) for known in kind.variants) or (name,)
        )
    return KindName(kind, variant)


def _unsupported(got: str, supported: tuple[str, ...]) -> UnsupportedError:
    error = _plugins.unsupported(_WHAT, got, supported)
    return UnsupportedError(f"{error} Cascades are joined by '+', such as sign+lowbit:2.")


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..."
