"""What a kind returns by mistake: one error that names the kind and what is expected."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from command_line import assert_error, invoke
from powerinfer import LLM, UnsupportedError
from powerinfer.ops.backend import Backend
from powerinfer.predictors import (
    LayerSource,
    PredictorInput,
    PredictorKind,
    ScorePart,
    Scorer,
    outside,
    register,
)
from tiny_models import TINY_MODELS, write_model

INPUT = PredictorInput.FFN_INPUT
Answer = Callable[[Backend, LayerSource], object]


def _part(ops: Backend, source: LayerSource, **changes: object) -> ScorePart:
    return ScorePart(ops.recode(source.ffn.up.matrix, "q8_0"), **changes)  # type: ignore[arg-type]


MISTAKES: tuple[tuple[Answer, str], ...] = (
    (lambda _ops, _source: None, "returned None, expected a Scorer"),
    (lambda ops, source: _part(ops, source), "returned a ScorePart, expected a Scorer"),
    (lambda _ops, _source: Scorer(INPUT, ()), "whose parts are not a tuple of ScorePart"),
    (
        lambda ops, source: Scorer(INPUT, _part(ops, source)),  # type: ignore[arg-type]
        "whose parts are not a tuple of ScorePart",
    ),
    (
        lambda _ops, _source: Scorer(
            INPUT,
            (ScorePart(np.ones((48, 32), np.float32)),),  # type: ignore[arg-type]
        ),
        r"parts\[0\] has a ndarray as its matrix; a matrix of the backend is expected",
    ),
    (
        lambda ops, source: Scorer(INPUT, (_part(ops, source), None)),  # type: ignore[arg-type]
        r"parts\[1\] is None, expected a ScorePart",
    ),
    (
        lambda ops, source: Scorer(INPUT, (_part(ops, source, noise=np.ones(3, np.float32)),)),
        r"has noise of shape \(3,\); expected \(48,\)",
    ),
)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(outside, "_registered", {})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return write_model(tmp_path / "relu.gguf", TINY_MODELS["llama-relu"])


@pytest.mark.parametrize("kernels", [None, "reference"])
@pytest.mark.parametrize(("answer", "said"), MISTAKES)
def test_a_scorer_that_returns_something_else(
    model: Path, kernels: str | None, answer: Answer, said: str
) -> None:
    kind = PredictorKind(
        "mine",
        "a test",
        scorer=lambda ops, source, _variant: answer(ops, source),  # type: ignore[arg-type,return-value]
    )
    register(kind)
    with pytest.raises(UnsupportedError, match=f"^predictor kind 'mine': its scorer .*{said}"):
        LLM(model, sparsity="mine", kernels=kernels)


def test_a_calibration_says_the_same(model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the old fox saw a red hen run over the hill and sat down to think. " * 10)
    register(PredictorKind("mine", "a test", scorer=lambda *_: None))  # type: ignore[arg-type]
    result = invoke("calibrate", "-m", model, "-f", text, "--kinds", "mine")
    assert_error(result, "predictor kind 'mine': its scorer returned None, expected a Scorer")


def test_a_kind_that_lists_neurons_returns_a_function(model: Path) -> None:
    register(PredictorKind("mine", "a test", active_ids=lambda *_: [1]))  # type: ignore[arg-type]
    with pytest.raises(
        UnsupportedError, match="'mine': its active_ids returned a list, expected a function"
    ):
        LLM(model, sparsity="mine")
