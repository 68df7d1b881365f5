"""Fitting a layer's predictor: what holds for the matrices as stored, and what goes wrong."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

from planted_layer import HIDDEN, NEURONS, TRAIN, Fires, planted_layer, with_fires
from powerinfer.errors import NumericsError, PowerInferError, ShapeError
from powerinfer.train.predictors import fitting
from powerinfer.train.predictors.fitting import FitStep, FittedLayer, LayerFigures, fit_layer
from powerinfer.train.predictors.goal import THRESHOLD, Goal
from powerinfer.train.predictors.layer_data import HalfArray, LayerData

GOAL = Goal()


class Killed(BaseException):
    """Stands in for a kill: nothing is saved as it ends."""


def passes(data: LayerData, fitted: FittedLayer, first: int = TRAIN) -> Fires:
    """What the stored matrices let pass, worked out in f64."""
    x = data.inputs[first:].astype(np.float64) * data.scale
    hidden = np.maximum(x @ fitted.fc1.astype(np.float64).T, 0)
    result: Fires = hidden @ fitted.fc2.astype(np.float64).T >= THRESHOLD
    return result


def fires(data: LayerData, first: int = TRAIN) -> Fires:
    bits = np.unpackbits(data.fired[first:], axis=1, count=data.num_neurons, bitorder="little")
    return bits.astype(bool)


def recall(data: LayerData, fitted: FittedLayer) -> float:
    passing, firing = passes(data, fitted), fires(data)
    return float((passing & firing).sum() / firing.sum())


def is_same(one: FittedLayer, other: FittedLayer) -> bool:
    matrices = ((one.fc1, other.fc1), (one.fc2, other.fc2))
    equal = all(a.tobytes() == b.tobytes() and a.shape == b.shape for a, b in matrices)
    return equal and one.figures == other.figures and one.warning == other.warning


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings that end long before they are good."""
    monkeypatch.setattr("powerinfer.train.predictors.training._LEAST_STEPS", 6)


@pytest.fixture(scope="module")
def planted() -> tuple[LayerData, FittedLayer]:
    data = planted_layer()
    return data, fit_layer(data, GOAL, rank_limit=96)


def test_the_recall_holds_at_the_files_threshold(planted: tuple[LayerData, FittedLayer]) -> None:
    data, fitted = planted
    assert not fitted.warning
    assert recall(data, fitted) >= GOAL.recall
    assert passes(data, fitted).mean() <= GOAL.max_density * fires(data).mean()


def test_figures_are_those_of_the_stored_matrices(planted: tuple[LayerData, FittedLayer]) -> None:
    data, fitted = planted
    passing, firing = passes(data, fitted), fires(data)
    figures = fitted.figures
    # Sums in f32 and in f64 may differ on either side of the threshold, in a few pairs.
    assert figures.active == pytest.approx(firing.mean(), abs=1e-12)
    assert figures.density == pytest.approx(passing.mean(), abs=1e-4)
    assert figures.recall == pytest.approx((passing & firing).sum() / firing.sum(), abs=1e-3)
    assert figures.precision == pytest.approx((passing & firing).sum() / passing.sum(), abs=1e-3)
    missed = (firing & ~passing).sum(0) @ data.weights
    expected = np.sqrt(missed / (firing.sum(0) @ data.weights))
    assert figures.ffn_error == pytest.approx(expected, rel=0.02)


def test_the_matrices_are_as_files_hold_them(planted: tuple[LayerData, FittedLayer]) -> None:
    _, fitted = planted
    assert fitted.fc1.dtype == fitted.fc2.dtype == np.float16
    assert fitted.fc1.shape == (fitted.rank, HIDDEN)
    assert fitted.fc2.shape == (NEURONS, fitted.rank)
    for matrix in (fitted.fc1, fitted.fc2):
        assert np.isfinite(matrix).all()
        assert not np.signbit(matrix[matrix == 0]).any()


def test_the_scale_of_the_inputs_is_part_of_the_matrices() -> None:
    data = planted_layer(scale=2.0**14)
    fitted = fit_layer(data, GOAL, rank_limit=32)
    assert recall(data, fitted) >= GOAL.recall
    # Far from the smallest numbers of F16, where weights lose digits.
    assert np.median(np.abs(fitted.fc1)) > 2.0**-14


def test_the_limit_of_the_rank_wins_over_the_recall_with_a_warning() -> None:
    data = planted_layer(density=0.02)

    def scramble(firing: Fires) -> None:
        np.random.default_rng(1).shuffle(firing)

    hopeless = with_fires(data, scramble)
    fitted = fit_layer(hopeless, GOAL, rank_limit=32)
    assert fitted.rank == 32
    assert fitted.figures.recall < GOAL.recall
    assert "instead of 0.95" in fitted.warning
    assert "may not exceed 32" in fitted.warning
    assert passes(hopeless, fitted).mean() <= 2.01 * fires(hopeless).mean()


@pytest.mark.usefixtures("few_steps")
def test_an_error_that_a_small_rank_leaves_asks_for_a_larger_one() -> None:
    def error(fc1: HalfArray, fc2: HalfArray) -> float:
        assert fc1.dtype == fc2.dtype == np.float16
        return 0.5 if len(fc1) < 64 else 0.001

    data = dataclasses.replace(planted_layer(), ffn_error=error)
    # Everything but the error is good enough after any training.
    goal = Goal(recall=0.1, max_density=9)
    fitted = fit_layer(data, goal, rank_limit=128)
    assert fitted.rank == 64
    assert not fitted.warning
    assert fitted.figures.ffn_error == 0.001
    assert fit_layer(data, goal, rank_limit=32).warning.startswith(
        "FFN error 0.500 instead of 0.015"
    )


def test_an_error_is_lowered_by_a_higher_recall() -> None:
    data = planted_layer()

    def error(fc1: HalfArray, fc2: HalfArray) -> float:
        measured = FittedLayer(fc1, fc2, LayerFigures(0, 0, 0, 0, 0))
        return 1 - recall(data, measured)

    measuring = dataclasses.replace(data, ffn_error=error)
    goal = Goal(max_density=4, max_ffn_error=0.02)
    assert recall(data, fit_layer(data, goal, rank_limit=32)) < 0.98
    fitted = fit_layer(measuring, goal, rank_limit=32)
    assert recall(data, fitted) >= 0.98
    assert not fitted.warning


def test_a_larger_rank_is_tried_only_where_a_small_one_fails(
    planted: tuple[LayerData, FittedLayer],
) -> None:
    ranks: list[int] = []
    fit_layer(planted[0], GOAL, rank_limit=96, progress=lambda step: ranks.append(step.rank))
    assert set(ranks) == {planted[1].rank}


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize("kill_at", [1, 7, 12, 13, 20])
def test_a_killed_run_ends_with_the_same_bits(
    kill_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A layer that no rank reaches: several trainings one after the other.
    monkeypatch.setattr(fitting, "SAVE_SECONDS", 0.0)
    data, goal = planted_layer(), Goal(recall=0.999, max_density=1.0001)
    whole = fit_layer(data, goal, rank_limit=64)
    seen: list[FitStep] = []

    def kill(step: FitStep) -> None:
        seen.append(step)
        if len(seen) == kill_at:
            raise Killed

    path = tmp_path / "layer.fit"
    try:
        fit_layer(data, goal, rank_limit=64, checkpoint=path, progress=kill)
    except Killed:
        assert len(seen) == kill_at
    resumed: list[FitStep] = []
    again = fit_layer(data, goal, rank_limit=64, checkpoint=path, progress=resumed.append)
    assert is_same(again, whole)
    # Nothing is done twice, and what is finished is not done again.
    assert not {(s.rank, s.step) for s in resumed} & {(s.rank, s.step) for s in seen}
    assert is_same(fit_layer(data, goal, rank_limit=64, checkpoint=path), whole)


@pytest.mark.usefixtures("few_steps")
def test_seeds_matter() -> None:
    one, other = (fit_layer(planted_layer(), GOAL, rank_limit=32, seed=seed) for seed in (0, 1))
    assert not is_same(one, other)


@pytest.mark.usefixtures("few_steps")
def test_a_checkpoint_of_other_data_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "layer.fit"
    fit_layer(planted_layer(), GOAL, rank_limit=32, checkpoint=path)
    with pytest.raises(PowerInferError, match="another recipe"):
        fit_layer(planted_layer(1), GOAL, rank_limit=32, checkpoint=path)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_bad_input_names_layer_and_step_and_keeps_what_was_saved(
    value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "SAVE_SECONDS", 0.0)
    data = planted_layer()
    path = tmp_path / "layer.fit"

    def kill(step: FitStep) -> None:
        raise Killed

    with pytest.raises(Killed):
        fit_layer(data, GOAL, rank_limit=32, checkpoint=path, progress=kill)
    saved = path.read_bytes()
    data.inputs[2000, 5] = value
    with pytest.raises(NumericsError, match=r"layer 3, step \d+: the input of token 2000"):
        fit_layer(data, GOAL, rank_limit=32, checkpoint=path)
    assert path.read_bytes() == saved


@pytest.mark.usefixtures("few_steps")
def test_a_bad_held_out_input_is_an_error() -> None:
    data = planted_layer()
    data.inputs[TRAIN + 100, 0] = np.nan
    with pytest.raises(
        NumericsError, match=f"layer 3, measuring: the input of token {TRAIN + 100}"
    ):
        fit_layer(data, GOAL, rank_limit=32)


def test_a_loss_that_is_no_number_names_layer_and_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("powerinfer.train.predictors.training._RATE", float("inf"))
    with pytest.raises(NumericsError, match=r"layer 3, rank 32, step 2: loss nan"):
        fit_layer(planted_layer(), GOAL, rank_limit=32)


def test_a_layer_that_never_fires() -> None:
    def silence(firing: Fires) -> None:
        firing[:] = False

    fitted = fit_layer(with_fires(planted_layer(), silence), GOAL, rank_limit=96)
    assert fitted.rank == 32
    assert fitted.figures.active == 0
    assert fitted.figures.recall == 1
    assert fitted.figures.density < 0.01


def test_a_layer_that_always_fires() -> None:
    def fire(firing: Fires) -> None:
        firing[:] = True

    data = with_fires(planted_layer(), fire)
    fitted = fit_layer(data, GOAL, rank_limit=96)
    assert fitted.rank == 32
    assert not fitted.warning
    assert recall(data, fitted) >= GOAL.recall


def test_a_neuron_that_fires_only_in_held_out_text() -> None:
    def surprise(firing: Fires) -> None:
        firing[:TRAIN, 11] = False
        firing[TRAIN:, 11] = True

    data = planted_layer()
    weights = data.weights.copy()
    weights[11] = 0
    data = dataclasses.replace(with_fires(data, surprise), weights=weights)
    fitted = fit_layer(data, Goal(recall=0.8), rank_limit=32)
    assert recall(data, fitted) >= 0.8


def test_the_number_of_neurons_need_not_fill_bytes() -> None:
    data = planted_layer()
    data = dataclasses.replace(
        data, num_neurons=NEURONS - 5, weights=data.weights[:-5], fired=data.fired
    )
    fitted = fit_layer(data, GOAL, rank_limit=32)
    assert fitted.fc2.shape == (NEURONS - 5, 32)
    assert recall(data, fitted) >= GOAL.recall


@pytest.mark.usefixtures("few_steps")
def test_memory_maps_are_read(tmp_path: Path) -> None:
    data = planted_layer()
    fitted = fit_layer(data, GOAL, rank_limit=32)
    np.save(tmp_path / "inputs.npy", data.inputs)
    np.save(tmp_path / "fired.npy", data.fired)
    maps = dataclasses.replace(
        data,
        inputs=np.load(tmp_path / "inputs.npy", mmap_mode="r"),
        fired=np.load(tmp_path / "fired.npy", mmap_mode="r"),
    )
    assert is_same(fit_layer(maps, GOAL, rank_limit=32), fitted)


@pytest.mark.parametrize("num_train", [0, 6000])
def test_both_kinds_of_tokens_are_needed(num_train: int) -> None:
    with pytest.raises(ShapeError, match="some to train on and some held out"):
        fit_layer(dataclasses.replace(planted_layer(), num_train=num_train), GOAL, rank_limit=32)


@pytest.mark.parametrize("limit", [0, 31, 33])
def test_the_limit_must_be_a_rank(limit: int) -> None:
    with pytest.raises(ShapeError, match="must be a multiple of 32"):
        fit_layer(planted_layer(), GOAL, rank_limit=limit)
