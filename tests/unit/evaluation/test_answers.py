"""Accuracy, its standard error, and the paired difference to the dense model."""

import dataclasses

import numpy as np
import pytest

from powerinfer.evaluation.answers import Answers, compare

RIGHT = (1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0)
OTHER = (1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0)
DENSE = Answers((0, 1, 2, 0, 1, 2, 0, 1), RIGHT, None, 0)
SPARSE = Answers((0, 2, 1, 0, 2, 2, 0, 0), OTHER, OTHER, 3)


def test_the_dense_model_is_compared_with_nothing() -> None:
    row = compare(DENSE, None)
    assert row.accuracy == 5 / 8
    # Of n answers of which a share p is right: sqrt(p (1 - p) / (n - 1)).
    assert row.standard_error == pytest.approx(np.sqrt(5 / 8 * 3 / 8 / 7))
    assert row.items == 8
    assert row.difference is row.difference_standard_error is row.equal_answers is None
    assert row.normalized_accuracy is row.normalized_standard_error is None


def test_differences_are_paired() -> None:
    row = compare(SPARSE, DENSE)
    assert (row.accuracy, row.normalized_accuracy) == (4 / 8, 4 / 8)
    assert row.difference == -1 / 8
    # Item by item: 0, 1, -1, 0, 0, 0, 0, -1.
    deviations = np.array([0, 1, -1, 0, 0, 0, 0, -1]) + 1 / 8
    assert row.difference_standard_error == pytest.approx(np.sqrt((deviations**2).sum() / 7 / 8))
    # Wrong answers may differ too.
    assert row.equal_answers == 4 / 8
    assert row.normalized_standard_error == row.standard_error
    assert row.truncated == 3


def test_equal_answers_differ_by_nothing() -> None:
    row = compare(DENSE, DENSE)
    assert (row.difference, row.difference_standard_error, row.equal_answers) == (0, 0, 1)


def test_a_single_item_has_no_standard_error() -> None:
    row = compare(Answers((0,), (1.0,), (0.0,), 0), Answers((1,), (0.0,), (0.0,), 0))
    assert (row.accuracy, row.difference, row.items) == (1, 1, 1)
    errors = [value for key, value in dataclasses.asdict(row).items() if "error" in key]
    assert errors == [None, None, None]


def test_standard_errors_are_those_of_lm_eval() -> None:
    pytest.importorskip("lm_eval", reason="lm_eval is not installed")
    from lm_eval.api.metrics import mean_stderr

    assert compare(DENSE, None).standard_error == pytest.approx(mean_stderr(list(RIGHT)))
