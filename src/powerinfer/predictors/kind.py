"""What a file in ``kinds/`` exports, and what a name such as ``sign+lowbit:2`` means."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from powerinfer import _plugins
from powerinfer.errors import UnsupportedError
from powerinfer.ops.some_backend import SomeOps
from powerinfer.predictors.predictor import AsksNeurons, LayerSource, PredictorInput, Scorer

__all__ = ["KindName", "PredictorKind", "get_kind", "kind_names", "parse_kind"]

_PACKAGE = "powerinfer.predictors.kinds"
_WHAT = "sparsity"
_OTHERS = ("auto", "off")

# As many as the native predictor has stages for, where each part has two (dReLU).
MAX_PARTS = 3
_LONGEST_NAME = 60


@dataclass(frozen=True, slots=True)
class PredictorKind:
    """A method that predicts which neurons fire.

    Exactly one of `scorer` and `active_ids` is given by a kind that predicts; `exact` gives none.

    Attributes:
        name: key of its file.
        summary: one line for users.
        variants: what may follow the name after a colon, the default first ('' for nothing); empty
            where nothing may.
        scorer: ``scorer(ops, source, variant)`` scores neurons; the FFN call runs it itself.
        active_ids: ``active_ids(ops, source, variant)`` returns a function from f32[num_tokens,
            hidden_size] (of `input`) to the neurons of each token; the FFN is then two calls.
        input: what `active_ids` looks at.
        default_threshold: for models without a calibration.
        cascade_bits: bits per weight that each variant reads, which orders the parts of a cascade;
            empty for a kind that cannot be one.
    """

    name: str
    summary: str
    variants: tuple[str, ...] = ()
    scorer: Callable[[SomeOps, LayerSource, str], Scorer] | None = None
    active_ids: Callable[[SomeOps, LayerSource, str], AsksNeurons] | None = None
    input: PredictorInput = PredictorInput.FFN_INPUT
    default_threshold: Callable[[LayerSource], float] = lambda _source: 0.0
    cascade_bits: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KindName:
    """One part of a name: a kind and its variant ('' where it has none)."""

    kind: PredictorKind
    variant: str

    def __str__(self) -> str:
        return f"{self.kind.name}:{self.variant}" if self.variant else self.kind.name


def kind_names() -> tuple[str, ...]:
    """Every kind with each of its variants, for messages and for calibration."""
    names = []
    for key in _plugins.keys(_PACKAGE):
        kind = get_kind(key)
        names += [str(KindName(kind, variant)) for variant in kind.variants or ("",)]
    return tuple(names)


def get_kind(name: str) -> PredictorKind:
    """Return the kind of this name.

    Raises:
        UnsupportedError: there is none; the message lists those there are.
    """
    found = _plugins.load(_PACKAGE, name, "KIND", what=_WHAT)
    if not isinstance(found, PredictorKind):
        raise TypeError(f"{_PACKAGE}.{name}.KIND is a {type(found).__name__}")
    return found


def parse_kind(text: str) -> tuple[KindName, ...]:
    """Parse ``lowbit:2`` or a cascade ``sign+lowbit:2``.

    A cascade has at most three parts, each with more bits per weight than the one before.

    Raises:
        UnsupportedError: a name or variant is unknown, or the kinds cannot follow each other.
    """
    name = text.strip().lower()
    # Names come from files too, so nothing here may take longer than the name is worth.
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
                f"sparsity {name!r}: {part} cannot be part of a cascade; kinds that can are "
                "sign and lowbit"
            )
    bits = [part.kind.cascade_bits[part.variant] for part in parts]
    for before, after, part in zip(bits, bits[1:], parts[1:], strict=False):
        if after <= before:
            raise UnsupportedError(
                f"sparsity {name!r}: {part} cannot come behind what is as precise; a cascade goes "
                "from cheap to precise: sign, lowbit:2, lowbit:3, lowbit:4"
            )


def _parse_part(text: str, whole: str) -> KindName:
    name, _, variant = text.partition(":")
    if name in _OTHERS:
        raise UnsupportedError(
            f"sparsity {whole!r}: {name} is no predictor kind; kinds are {', '.join(kind_names())}"
        )
    if name not in _plugins.keys(_PACKAGE):
        raise _unsupported(text or whole, (*kind_names(), *_OTHERS))
    kind = get_kind(name)
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
