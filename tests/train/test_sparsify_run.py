"""Training towards sparsity: learns, resumes to the same bits, stops at NaN."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

import numpy as np
import torch
from torch import Tensor

from powerinfer.errors import NumericsError, PowerInferError, UnsupportedError
from powerinfer.train.sparsify.log import LOG_FILE
from powerinfer.train.sparsify.model import SparseModel, random_model, set_activation
from powerinfer.train.sparsify.recipe import Recipe
from powerinfer.train.sparsify.run import CHECKPOINT_FILE, SparsifyRun
from sparsify_cases import LLAMA, random_tokens

RECIPE = Recipe(
    tokens=24 * 64,
    seq_len=16,
    batch_tokens=64,
    pass_tokens=32,
    learning_rate=1e-2,
    min_rate=1e-3,
    warmup_share=0.1,
)
TOKENS = random_tokens()


def _model(seed: int = 1, activation: str = "drelu") -> SparseModel:
    model = random_model(LLAMA, seed)
    set_activation(model, activation)  # type: ignore[arg-type]
    return model


def _weights(run: SparsifyRun) -> dict[str, Tensor]:
    return dict(run.model.network.state_dict())


def _finish(run: SparsifyRun) -> list[float]:
    losses = []
    while not run.is_done:
        losses.append(run.advance().loss)
    return losses


def _lines(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / LOG_FILE).read_text().splitlines()]
    return [{key: line[key] for key in ("step", "loss", "zeros")} for line in lines]


@pytest.mark.parametrize("activation", ["silu", "relu", "drelu"])
def test_training_lowers_the_loss(activation: str, tmp_path: Path) -> None:
    losses = _finish(SparsifyRun(_model(1, activation), TOKENS, RECIPE, tmp_path))
    assert len(losses) == RECIPE.steps == 24
    assert losses[-1] < losses[0] - 0.5


def test_an_interrupted_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    recipe = dataclasses.replace(RECIPE, distill=0.5, density_penalty=0.1)
    whole = SparsifyRun(_model(), TOKENS, recipe, tmp_path / "whole", _model(1, "silu"))
    _finish(whole)
    cut = SparsifyRun(_model(), TOKENS, recipe, tmp_path / "cut", _model(1, "silu"))
    for step in range(21):
        cut.advance()
        if step == 12:
            cut.save()
    torch.manual_seed(99)  # another process has another random state
    continued = SparsifyRun(_model(), TOKENS, recipe, tmp_path / "cut", _model(1, "silu"))
    assert continued.step == 13
    _finish(continued)
    ours, theirs = _weights(continued), _weights(whole)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert _lines(tmp_path / "cut") == _lines(tmp_path / "whole")
    assert [line["step"] for line in _lines(tmp_path / "cut")] == [10, 20, 24]


def test_a_large_vocabulary_makes_more_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _model()
    ordinary = SparsifyRun(model, TOKENS, RECIPE, tmp_path / "ordinary").advance()
    per_row = RECIPE.seq_len * model.network.config.vocab_size
    monkeypatch.setattr("powerinfer.train.sparsify.run._MAX_LOGITS", 2 * per_row - 1)
    sizes: list[int] = []
    small = SparsifyRun(_model(), TOKENS, RECIPE, tmp_path / "small")
    logits = small.model.logits

    def counted(token_ids: Tensor) -> Tensor:
        sizes.append(len(token_ids))
        return logits(token_ids)

    monkeypatch.setattr(small.model, "logits", counted)
    assert small.advance().loss == pytest.approx(ordinary.loss, rel=1e-5)
    assert sizes == [1] * RECIPE.rows


def test_the_log_survives_a_line_that_was_cut_off(tmp_path: Path) -> None:
    run = SparsifyRun(_model(), TOKENS, RECIPE, tmp_path)
    for _ in range(10):
        run.advance()
    run.save()
    with (tmp_path / LOG_FILE).open("a") as file:
        file.write('{"step": 1')
    _finish(SparsifyRun(_model(), TOKENS, RECIPE, tmp_path))
    assert [line["step"] for line in _lines(tmp_path)] == [10, 20, 24]


@pytest.mark.parametrize("changed", ["model", "activation", "text", "recipe"])
def test_the_folder_of_another_run_is_refused(changed: str, tmp_path: Path) -> None:
    run = SparsifyRun(_model(), TOKENS, RECIPE, tmp_path)
    run.save()
    model = _model(2 if changed == "model" else 1, "relu" if changed == "activation" else "drelu")
    tokens = TOKENS[1:] if changed == "text" else TOKENS
    recipe = dataclasses.replace(RECIPE, seed=7) if changed == "recipe" else RECIPE
    with pytest.raises(PowerInferError, match=f"{CHECKPOINT_FILE} belongs to a run with another"):
        SparsifyRun(model, tokens, recipe, tmp_path)


def test_a_loss_that_is_nan_keeps_the_last_good_state(tmp_path: Path) -> None:
    run = SparsifyRun(_model(), TOKENS, RECIPE, tmp_path)
    run.advance()
    good = {name: tensor.clone() for name, tensor in _weights(run).items()}
    # One row of the next step reads a token whose embedding is broken.
    with torch.no_grad():
        run.model.network.lm_head.weight[0, 0] = float("nan")
    with pytest.raises(NumericsError, match="step 2 of 24: the loss is nan; the weights of step 1"):
        run.advance()
    with torch.no_grad():
        run.model.network.lm_head.weight[0, 0] = good["lm_head.weight"][0, 0]
    assert all(torch.equal(good[name], tensor) for name, tensor in _weights(run).items())
    assert (tmp_path / CHECKPOINT_FILE).exists()


def test_a_short_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PowerInferError, match="has 16 tokens; one row of training takes 17"):
        SparsifyRun(_model(), TOKENS[:16], RECIPE, tmp_path)


def test_distillation_brings_the_predictions_near_the_teacher(tmp_path: Path) -> None:
    teacher = _model(1, "silu")
    inputs = torch.from_numpy(TOKENS[:64].astype("i8"))[None]

    def distance(model: SparseModel) -> float:
        with torch.no_grad():
            found, wanted = (each.logits(inputs).log_softmax(-1) for each in (model, teacher))
        return float((wanted.exp() * (wanted - found)).sum(-1).mean())

    far, near = _model(3), _model(3)
    _finish(SparsifyRun(far, TOKENS, RECIPE, tmp_path / "far"))
    recipe = dataclasses.replace(RECIPE, distill=20.0)
    _finish(SparsifyRun(near, TOKENS, recipe, tmp_path / "near", teacher))
    assert distance(near) < 0.5 * distance(far)


def test_the_penalty_silences_neurons(tmp_path: Path) -> None:
    def zeros(weight: float) -> float:
        recipe = dataclasses.replace(RECIPE, density_penalty=weight)
        run = SparsifyRun(_model(), TOKENS, recipe, tmp_path / str(weight))
        _finish(run)
        return float(np.sum(_lines(tmp_path / str(weight))[-1]["zeros"]))

    assert zeros(5.0) > zeros(0.0) + 0.1


def test_every_epoch_reads_every_row_once(tmp_path: Path) -> None:
    from powerinfer.train.sparsify.rows import row_numbers

    steps = [row_numbers(step, 12, RECIPE) for step in range(6)]
    epochs = [[number for step in steps[first : first + 3] for number in step] for first in (0, 3)]
    assert all(sorted(epoch) == list(range(12)) for epoch in epochs)
    assert epochs[0] != epochs[1]
    # Asked out of order, as after a resume.
    assert row_numbers(4, 12, RECIPE) == epochs[1][4:8]


def test_the_rate_rises_and_falls_as_a_cosine() -> None:
    recipe = Recipe(tokens=1000 * 512, seq_len=512, batch_tokens=512, learning_rate=1.0)
    recipe = dataclasses.replace(recipe, min_rate=0.1, warmup_share=0.1)
    assert recipe.steps == 1000
    assert recipe.rate(0) == pytest.approx(0.01)
    assert recipe.rate(99) == pytest.approx(1.0)
    assert recipe.rate(549) == pytest.approx(0.55)
    assert recipe.rate(999) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("name", "value"), [("tokens", 0), ("learning_rate", float("nan")), ("distill", -1.0)]
)
def test_impossible_recipes_are_refused(name: str, value: float) -> None:
    with pytest.raises(UnsupportedError, match=f"{name} is"):
        dataclasses.replace(RECIPE, **{name: value})  # type: ignore[arg-type]
