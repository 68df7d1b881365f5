"""Answers of a setting to the items of a task, compared with the dense model's."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powerinfer.sidecar import Field

__all__ = ["Answers", "TaskRow", "compare", "read_answers"]

_MOST_CHOICES = 1 << 16
_MOST_REQUESTS = 1 << 32


@dataclass(frozen=True, slots=True)
class Answers:
    """One setting's answers to one task.

    Attributes:
        chosen: likeliest choice of each item; for a continuation, whether it is greedy.
        is_right: 1.0 or 0.0 for each item.
        is_right_normalized: the same for the choice that is likeliest per character; None if the
            task does not count that.
    """

    chosen: tuple[int, ...]
    is_right: tuple[float, ...]
    is_right_normalized: tuple[float, ...] | None
    num_cut: int


@dataclass(frozen=True, slots=True)
class TaskRow:
    """Results of one setting on one task; standard errors are None for a single item.

    Attributes:
        difference: difference to the dense model's accuracy; None for the dense model itself.
        difference_standard_error: standard error of the item-by-item difference, smaller than that
            of two accuracies, because both answered the same items.
        equal_answers: share of the items that the dense model answered alike.
        normalized_accuracy: accuracy of the choices that are likeliest per character; None if the
            task does not count that.
    """

    accuracy: float
    standard_error: float | None
    items: int
    difference: float | None
    difference_standard_error: float | None
    equal_answers: float | None
    normalized_accuracy: float | None
    normalized_standard_error: float | None
    truncated: int


def read_answers(field: Field) -> Answers:
    """Read answers that a file holds as the fields of `Answers`."""
    fields = field.exactly("chosen", "is_right", "is_right_normalized", "num_cut")
    chosen = fields["chosen"].counts(_MOST_CHOICES).tolist()
    right, normalized = (_right(fields[name]) for name in ("is_right", "is_right_normalized"))
    if right is None or any(len(each) != len(chosen) for each in (right, normalized or right)):
        field.fail("has not as many answers as choices")
    return Answers(tuple(chosen), right, normalized, fields["num_cut"].integer(0, _MOST_REQUESTS))


def _right(field: Field) -> tuple[float, ...] | None:
    return None if field.is_null() else tuple(field.numbers(0, 1).tolist())


def compare(answers: Answers, dense: Answers | None) -> TaskRow:
    """Compare answers with those of the dense model to the same items, if there are any."""
    right = np.array(answers.is_right)
    normalized = answers.is_right_normalized
    pairs = None if dense is None else right - np.array(dense.is_right)
    equal = None if dense is None else np.array(answers.chosen) == np.array(dense.chosen)
    return TaskRow(
        accuracy=float(right.mean()),
        standard_error=_standard_error(right),
        items=len(right),
        difference=None if pairs is None else float(pairs.mean()),
        difference_standard_error=None if pairs is None else _standard_error(pairs),
        equal_answers=None if equal is None else float(equal.mean()),
        normalized_accuracy=None if normalized is None else float(np.mean(normalized)),
        normalized_standard_error=None if normalized is None else _standard_error(normalized),
        truncated=answers.num_cut,
    )


def _standard_error(values: Sequence[float] | npt.NDArray[np.float64]) -> float | None:
    """Return the standard error of the mean as lm-eval computes it; None for a single item."""
    if len(values) < 2:
        return None
    return float(np.std(values, ddof=1)) / math.sqrt(len(values))
