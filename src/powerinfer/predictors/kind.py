"""What a file in ``kinds/`` exports, and what a name such as ``sign+lowbit:2`` means."""

from collections.abc import Callable
from dataclasses import dataclass

from powerinfer import _plugins
from powerinfer.errors import UnsupportedError
from powerinfer.ops.protocol import ActiveIds, Ops
from powerinfer.predictors.predictor import LayerSource, PredictorInput, Scorer
from powerinfer.values import FloatArray

__all__ = ["KindName", "PredictorKind", "get_kind", "kind_names", "parse_kind"]

_PACKAGE = "powerinfer.predictors.kinds"
_WHAT = "sparsity"


@dataclass(frozen=True, slots=True)
class PredictorKind:
    """One way to tell which neurons fire.

    Exactly one of `scorer` and `active_ids` is given by a kind that predicts; `exact` gives none.

    Attributes:
        name: key of its file.
        summary: one line for users.
        variants: what may follow the name after a colon, the default first ('' for nothing); empty
            where nothing may.
        scorer: ``scorer(ops, source, variant)`` scores neurons; the FFN call runs them by itself.
        active_ids: ``active_ids(ops, source, variant)`` returns a function from f32[num_tokens,
            hidden_size] (of `input`) to the neurons of each token; the FFN is then two calls.
        input: what `active_ids` looks at.
        default_threshold: where nobody calibrated.
    """

    name: str
    summary: str
    variants: tuple[str, ...] = ()
    scorer: Callable[[Ops, LayerSource, str], Scorer] | None = None
    active_ids: Callable[[Ops, LayerSource, str], Callable[[FloatArray], ActiveIds]] | None = None
    input: PredictorInput = PredictorInput.FFN_INPUT
    default_threshold: Callable[[LayerSource], float] = lambda _source: 0.0


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

    Raises:
        UnsupportedError: a name or variant is unknown, or the kinds cannot follow each other.
    """
    parts = tuple(_parse_part(part) for part in text.strip().lower().split("+"))
    if len(parts) > 1:
        for part in parts:
            if part.kind.scorer is None or part.kind.name == "mlp":
                raise UnsupportedError(
                    f"sparsity {text!r}: {part} cannot be part of a cascade; kinds that can are "
                    "sign and lowbit"
                )
    return parts


def _parse_part(text: str) -> KindName:
    name, _, variant = text.partition(":")
    if name not in _plugins.keys(_PACKAGE):
        raise _plugins.unsupported(_WHAT, text, (*kind_names(), "auto", "off"))
    kind = get_kind(name)
    if not variant:
        return KindName(kind, kind.variants[0] if kind.variants else "")
    if variant not in kind.variants:
        supported = tuple(str(KindName(kind, known)) for known in kind.variants) or (name,)
        raise _plugins.unsupported(_WHAT, text, supported)
    return KindName(kind, variant)
