"""Calls of a predictor kind, with checks of its results.

Kinds may come from outside the package: their mistakes are reported here, with the name of the
kind, rather than by a crash inside a backend.
"""

import numpy as np

from powerinfer.errors import UnsupportedError
from powerinfer.ops.backend import Backend
from powerinfer.predictors.names import KindName
from powerinfer.predictors.predictor import AsksNeurons, LayerSource, ScorePart, Scorer

__all__ = ["neurons_of", "scorer_of"]

_HOW = "a matrix of the backend is expected, such as ops.recode returns"


def scorer_of(ops: Backend, source: LayerSource, part: KindName) -> Scorer:
    """Get the scorer of a kind for one layer."""
    if part.kind.scorer is None:
        raise UnsupportedError(f"sparsity '{part}' cannot be part of a cascade")
    scorer: object = part.kind.scorer(ops, source, part.variant)
    if not isinstance(scorer, Scorer):
        raise _wrong(part, "scorer", f"returned {_type(scorer)}, expected a Scorer")
    if not isinstance(scorer.parts, tuple) or not scorer.parts:
        raise _wrong(part, "scorer", "returned a Scorer whose parts are not a tuple of ScorePart")
    num_neurons = ops.matrix_shape(source.ffn.up.matrix)[0]
    for number, found in enumerate(scorer.parts):
        problem = _problem(ops, found, num_neurons)
        if problem is not None:
            raise _wrong(part, "scorer", f"returned a Scorer whose parts[{number}] {problem}")
    if scorer.fc1 is not None and _shape(ops, scorer.fc1) is None:
        raise _wrong(part, "scorer", f"returned a Scorer whose fc1 is {_type(scorer.fc1)}; {_HOW}")
    if scorer.num_experts not in (1, source.ffn.num_experts):
        raise _wrong(
            part,
            "scorer",
            f"returned a Scorer of {scorer.num_experts} experts; the layer has "
            f"{source.ffn.num_experts}",
        )
    return scorer


def neurons_of(ops: Backend, source: LayerSource, part: KindName) -> AsksNeurons:
    """Get the function of a kind that lists the active neurons of one layer."""
    if part.kind.active_ids is None:
        raise UnsupportedError(f"sparsity '{part}' lists no neurons")
    asked = part.kind.active_ids(ops, source, part.variant)
    if not callable(asked):
        raise _wrong(part, "active_ids", f"returned {_type(asked)}, expected a function")
    return asked


def _problem(ops: Backend, part: object, num_neurons: int) -> str | None:
    if not isinstance(part, ScorePart):
        return f"is {_type(part)}, expected a ScorePart"
    shape = _shape(ops, part.matrix)
    if shape is None:
        return f"has {_type(part.matrix)} as its matrix; {_HOW}"
    if shape[0] != num_neurons:
        return f"has a matrix of {shape[0]} rows; the layer has {num_neurons} neurons"
    for name, values in (("offset", part.offset), ("noise", part.noise)):
        if values is not None and np.shape(values) != (num_neurons,):
            return f"has {name} of shape {np.shape(values)}; expected ({num_neurons},)"
    return None


def _shape(ops: Backend, matrix: object) -> tuple[int, int] | None:
    """Return rows and columns; None for an object that is not a matrix of the backend."""
    try:
        return ops.matrix_shape(matrix)  # type: ignore[arg-type]
    except (AttributeError, TypeError, ValueError):
        return None


def _type(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _wrong(part: KindName, function: str, what: str) -> UnsupportedError:
    return UnsupportedError(f"predictor kind '{part}': its {function} {what}")
