"""Answers of a setting to the items of a task, and their difference to the dense model's."""

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
        chosen: of each item the choice that is likeliest; of a continuation whether it is greedy.
        is_right: of each item, 1.0 or 0.0.
        is_right_normalized: the same for the choice that is likeliest per character; None where a
            task does not count that.
        num_cut: requests that lost their beginning, because the context does not hold them.
    """

    chosen: tuple[int, ...]
    is_right: tuple[float, ...]
    is_right_normalized: tuple[float, ...] | None
    num_cut: int


@dataclass(frozen=True, slots=True)
class TaskRow:
    """The figures of one setting on one task; standard errors are None for a single item.

    Attributes:
        accuracy: share of the items answered right.
        standard_error: of the accuracy, as of a mean of independent items.
        items: how many were asked.
        difference: of the accuracy to the dense model's; None for the dense model itself.
        difference_standard_error: of the difference item by item, which is smaller than that of
            two accuracies, because both answered the same items.
        equal_answers: share of the items to which the dense model gave the same answer.
        normalized_accuracy: accuracy of the choices that are likeliest per character; None where
            a task does not count that.
        normalized_standard_error: of that.
        truncated: requests that lost their beginning, because the context does not hold them.
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
    """The answers of a file, written as the fields of `Answers`.

    Raises:
        PowerInferError: that of the file: anything is not as it must be.
    """
    fields = field.exactly("chosen", "is_right", "is_right_normalized", "num_cut")
    chosen = fields["chosen"].counts(_MOST_CHOICES).tolist()
    right, normalized = (_right(fields[name]) for name in ("is_right", "is_right_normalized"))
    if right is None or any(len(each) != len(chosen) for each in (right, normalized or right)):
        field.fail("has not as many answers as choices")
    return Answers(tuple(chosen), right, normalized, fields["num_cut"].integer(0, _MOST_REQUESTS))


def _right(field: Field) -> tuple[float, ...] | None:
    return None if field.is_null() else tuple(field.numbers(0, 1).tolist())


def compare(answers: Answers, dense: Answers | None) -> TaskRow:
    """The figures of some answers.

    Args:
        answers: of one setting.
        dense: of the dense model to the same items; None if these are they.
    """
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
    """Of the mean of f64[num_items], as lm-eval computes it; a single item has none."""
    if len(values) < 2:
        return None
    return float(np.std(values, ddof=1)) / math.sqrt(len(values))
