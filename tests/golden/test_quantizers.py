"""Encoders against llama.cpp's reference quantizers, stored by scripts/make-goldens-quantizers."""

import json
from pathlib import Path

import numpy as np
import pytest

from encoder_cases import KINDS, STORED_COLUMNS, importance, numbers_of_kind
from powerinfer.quant import get_format
from powerinfer.values import FloatArray

FOLDER = Path(__file__).parent / "quantizers"
ERRORS = json.loads((FOLDER / "errors.json").read_text())
SAME_BYTES = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0")
SEARCHED = ("q4_k", "q5_k", "q6_k")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SAME_BYTES)
def test_formats_without_a_search_have_the_same_bytes(kind: str, name: str) -> None:
    with np.load(FOLDER / "blocks.npz") as stored:
        wanted = stored[f"{kind}/{name}"]
    values = numbers_of_kind(kind)[:, :STORED_COLUMNS]
    assert np.array_equal(get_format(name).encode(values), wanted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SEARCHED)
def test_searched_formats_have_smaller_errors(kind: str, name: str) -> None:
    assert squared_error(kind, name, None) < ERRORS[kind][name]["none"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*SAME_BYTES, *SEARCHED])
@pytest.mark.parametrize("spread", [10, 1000])
def test_weighted_errors_are_smaller(kind: str, name: str, spread: int) -> None:
    stored = ERRORS[kind][name][str(spread)]
    assert squared_error(kind, name, importance(spread)) < stored


def squared_error(kind: str, name: str, weights: FloatArray | None) -> float:
    """Sum of squared errors of our encoder, weighted by the importance it is given."""
    values, fmt = numbers_of_kind(kind), get_format(name)
    off = fmt.decode(fmt.encode(values, weights)).astype(np.float64) - values
    return float(((1.0 if weights is None else weights) * off**2).sum())
