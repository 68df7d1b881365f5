"""Training: an interrupted run ends with the weights of one that was not."""

import dataclasses
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("zstandard", reason="zstandard is not installed")

import torch
from torch import Tensor

from corpus_folder import tiny_stories, write_corpus
from powerinfer.errors import PowerInferError
from powerinfer.train.density import DensityPenalty
from recipes.stories.card import measure, write_card
from recipes.stories.recipe import Recipe
from recipes.stories.train import Pace, train
from recipes.stories.training_run import CHECKPOINT_FILE, TrainingRun
from story_corpus import TINY_RECIPE

PACE = Pace(save_seconds=1e9, save_steps=3, score_steps=0)


class Killed(BaseException):
    """Stands in for a kill: nothing is saved as it ends."""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    stories = tiny_stories()
    write_corpus(tmp_path, "first", stories[::2])
    write_corpus(tmp_path, "second", stories[1::2])
    write_corpus(tmp_path, "tinystories", stories[:6], part="valid")
    return tmp_path


def _weights(run: TrainingRun) -> dict[str, Tensor]:
    return dict(run.model.state_dict())


def test_a_killed_run_ends_with_the_same_weights(data: Path, tmp_path: Path) -> None:
    whole = TrainingRun(TINY_RECIPE, data, tmp_path / "whole")
    train(whole, PACE)

    def kill_at_five(step: int) -> None:
        if step == 5:
            raise Killed

    with pytest.raises(Killed):
        train(TrainingRun(TINY_RECIPE, data, tmp_path / "cut"), PACE, kill_at_five)
    torch.manual_seed(99)  # another process has another random state
    continued = TrainingRun(TINY_RECIPE, data, tmp_path / "cut")
    assert continued.step == 3
    train(continued, PACE)
    assert continued.step == whole.step == 8
    ours, theirs = _weights(continued), _weights(whole)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_training_lowers_the_loss(data: Path, tmp_path: Path) -> None:
    recipe = dataclasses.replace(TINY_RECIPE, steps=30)
    run = TrainingRun(recipe, data, tmp_path / "run")
    before = run.score()
    train(run, PACE)
    assert run.score() < 0.8 * before


def test_a_checkpoint_of_another_recipe_is_refused(data: Path, tmp_path: Path) -> None:
    run = TrainingRun(TINY_RECIPE, data, tmp_path / "run")
    run.save()
    other = dataclasses.replace(TINY_RECIPE, steps=9)
    with pytest.raises(PowerInferError, match=f"{CHECKPOINT_FILE} belongs to a run with another"):
        TrainingRun(other, data, tmp_path / "run")


def test_the_card_states_what_was_measured(data: Path, tmp_path: Path) -> None:
    run = TrainingRun(TINY_RECIPE, data, tmp_path / "run")
    figures = measure(run, data, max_tokens=4)
    path = tmp_path / "MODEL_CARD.md"
    write_card(path, run, figures)
    card = path.read_text(encoding="utf-8")
    assert "{{" not in card
    assert f"{figures.score.bits_per_byte:.4f}, against" in card
    assert all(
        f"| {layer} | {share:.1%} |" in card for layer, share in enumerate(figures.score.inactive)
    )
    assert len(figures.samples) == 10


def test_density_is_the_share_of_equal_active_neurons() -> None:
    neurons = torch.zeros(2, 5, 8)
    neurons[..., :2] = 3.0
    density = DensityPenalty()
    density(0, neurons)
    assert float(density.mean()) == pytest.approx(2 / 8, rel=1e-4)
    density(1, neurons.add(1e3))
    assert float(density.mean()) == pytest.approx((2 / 8 + 1) / 2, rel=1e-2)


def test_descending_the_density_silences_neurons() -> None:
    torch.manual_seed(3)
    inputs = torch.randn(1, 40, 64, requires_grad=True)
    before = int((inputs > 0).sum())
    for _ in range(100):
        density = DensityPenalty()
        density(0, torch.relu(inputs))
        (gradient,) = torch.autograd.grad(density.mean(), inputs)
        inputs = (inputs - 100 * gradient).detach().requires_grad_()
    assert int((inputs > 0).sum()) < 0.7 * before


@pytest.mark.parametrize(
    ("step", "rate"), [(0, 0.01), (99, 1.0), (1000, 1.0), (1559, 1.0), (2599, 0.02)]
)
def test_the_learning_rate_rises_stays_and_falls(step: int, rate: float) -> None:
    recipe = Recipe(steps=2600, warmup_steps=100, decay_from=0.6, final_rate=0.02)
    assert recipe.rate(step) == pytest.approx(rate, abs=1e-3)


def test_stages_cover_every_step() -> None:
    recipe = Recipe(steps=100)
    lengths = [recipe.stage(step).seq_len for step in range(100)]
    assert lengths == sorted(lengths)
    assert [recipe.density_weight(step) > 0 for step in (0, 49, 50, 99)] == [
        False,
        False,
        True,
        True,
    ]
    assert set(lengths) == {256, 512}
