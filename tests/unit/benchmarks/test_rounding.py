"""benchmarks/rounding.py: distances from exact arithmetic."""

import math
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.rounding import distance, measure
from powerinfer.store.default_model import find_model


def test_kl_divergence_and_perplexity_of_known_distributions() -> None:
    exact = np.log(np.array([[0.5, 0.5], [0.25, 0.75]], np.float32))
    found = np.log(np.array([[0.5, 0.5], [0.5, 0.5]], np.float32)) + 3  # softmax removes the 3
    row = distance([exact], iter([found]), np.array([[0, 0, 1]], np.int32))
    second = 0.25 * math.log(0.5) + 0.75 * math.log(1.5)
    assert row["kl"] == pytest.approx(second / 2)
    assert row["kl_error"] == pytest.approx(second / 2)
    assert row["perplexity"] == pytest.approx(2)


def test_every_side_is_measured(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Once there was a girl who had a red ball and a small dog. " * 3, "utf8")
    options = Namespace(
        text=text, bytes=200, window=16, kernels="portable", threads=1, peer_python=None
    )
    result = measure(find_model(None), options)
    sides = result["sides"]
    assert list(sides) == ["exact", "portable prompt", "portable decode"]
    assert result["windows"] >= 2
    assert sides["exact"]["kl"] == 0
    for side in sides.values():
        assert 0 <= side["kl"] < 1e-6
        assert side["perplexity"] == pytest.approx(sides["exact"]["perplexity"], rel=1e-3)
