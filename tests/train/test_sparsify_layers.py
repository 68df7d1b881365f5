"""Training FFNs alone: nearer to the old ones, nothing else moved, resumed to the same bits."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

import torch
from torch import Tensor

from powerinfer.errors import NumericsError, PowerInferError
from powerinfer.train.sparsify import layers
from powerinfer.train.sparsify.layers import LAYERS_FILE, LAYERS_LOG, LayerRun
from powerinfer.train.sparsify.model import SparseModel, random_model, set_activation
from powerinfer.train.sparsify.recipe import Recipe
from sparsify_cases import LLAMA, random_tokens

RECIPE = Recipe(
    tokens=24 * 64,
    seq_len=16,
    batch_tokens=64,
    pass_tokens=32,
    learning_rate=1e-2,
    min_rate=1e-3,
    warmup_share=0.1,
    weight_decay=0.0,
)
TOKENS = random_tokens()
INPUTS = torch.from_numpy(TOKENS[:96].astype("i8"))[None]


def _model(activation: str = "drelu", seed: int = 1) -> SparseModel:
    model = random_model(LLAMA, seed)
    with torch.no_grad():
        for ffn in model.ffns:
            for parameter in ffn.parameters():
                parameter.mul_(8.0)
    set_activation(model, activation)  # type: ignore[arg-type]
    return model


def _run(folder: Path, recipe: Recipe = RECIPE, activation: str = "drelu") -> LayerRun:
    return LayerRun(_model(activation), TOKENS, recipe, folder, _model("silu"))


def _finish(run: LayerRun) -> list[float]:
    losses = []
    while not run.is_done:
        losses.append(run.advance().loss)
    return losses


def _weights(run: LayerRun) -> dict[str, Tensor]:
    return dict(run.model.network.state_dict())


def _lines(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / LAYERS_LOG).read_text().splitlines()]
    return [{key: line[key] for key in ("step", "loss", "zeros")} for line in lines]


def _errors(model: SparseModel) -> list[float]:
    """Of each layer: its FFN's error on the inputs of the unchanged model, by the old output."""
    found: list[float] = []

    def compare(layer: int, x: Tensor, wanted: Tensor) -> None:
        error = model.ffns[layer](x) - wanted
        found.append(float(error.norm() / wanted.norm()))

    layers._run_through(_model("silu"), INPUTS, compare)
    return found


@pytest.mark.parametrize("activation", ["relu", "drelu"])
def test_every_layer_comes_nearer_to_the_old_one(activation: str, tmp_path: Path) -> None:
    before = _errors(_model(activation))
    run = _run(tmp_path, activation=activation)
    losses = _finish(run)
    assert len(losses) == RECIPE.steps == 24
    assert losses[-1] < 0.7 * losses[0]
    after = _errors(run.model)
    assert len(after) == 2
    assert all(new < 0.8 * old for new, old in zip(after, before, strict=True))


def test_nothing_but_the_ffns_changes(tmp_path: Path) -> None:
    run = _run(tmp_path)
    run.advance()
    before = dict(_model().network.state_dict())
    changed = {
        name for name, tensor in _weights(run).items() if not torch.equal(tensor, before[name])
    }
    assert changed == {name for name in before if ".mlp." in name}


def test_an_interrupted_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    recipe = dataclasses.replace(RECIPE, density_penalty=0.1)
    whole = _run(tmp_path / "whole", recipe)
    _finish(whole)
    cut = _run(tmp_path / "cut", recipe)
    for step in range(21):
        cut.advance()
        if step == 12:
            cut.save()
    torch.manual_seed(99)  # another process has another random state
    continued = _run(tmp_path / "cut", recipe)
    assert continued.step == 13
    _finish(continued)
    ours, theirs = _weights(continued), _weights(whole)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert _lines(tmp_path / "cut") == _lines(tmp_path / "whole")
    assert [line["step"] for line in _lines(tmp_path / "cut")] == [10, 20, 24]


def test_a_run_resumes_before_its_first_step(tmp_path: Path) -> None:
    run = _run(tmp_path)
    run.save()
    again = _weights(_run(tmp_path))
    assert all(torch.equal(again[name], tensor) for name, tensor in _weights(run).items())


def test_a_layer_does_not_see_what_became_of_the_others(tmp_path: Path) -> None:
    run, other = _run(tmp_path / "run"), _run(tmp_path / "other")
    with torch.no_grad():
        other.model.ffns[0].down_proj.weight.zero_()
    for each in (run, other):
        each.advance()
    first, second = (each.model.ffns[1].state_dict() for each in (run, other))
    assert all(torch.equal(second[name], tensor) for name, tensor in first.items())


def test_signs_keep_the_old_neurons_and_more_of_their_values(tmp_path: Path) -> None:
    plain, chosen = _model(), _run(tmp_path).model
    assert sum(_errors(chosen)) < sum(_errors(plain))
    for ffn in (*plain.ffns, *chosen.ffns):
        ffn.activation = "silu"
    with torch.no_grad():
        old, new = (model.logits(INPUTS) for model in (plain, chosen))
    assert torch.equal(old, new)
    up, down = (
        (chosen.ffns[0].get_parameter(name) / plain.ffns[0].get_parameter(name)).sign()
        for name in ("up_proj.weight", "down_proj.weight")
    )
    assert torch.equal(up[:, 0], down[0])
    assert 0 < int((up[:, 0] < 0).sum()) < len(up)


def test_the_error_is_relative_to_each_token() -> None:
    generator = np.random.default_rng(1)
    found, wanted = generator.standard_normal((2, 3, 5, 8)).astype("f4")
    wanted[0, 0] *= 1e4
    power = (wanted**2).sum(-1)
    expected = (((found - wanted) ** 2).sum(-1) / (power + np.exp(np.log(power).mean()))).mean()
    got = layers._relative_error(torch.from_numpy(found), torch.from_numpy(wanted))
    np.testing.assert_allclose(float(got), expected, rtol=1e-5)
    zero = torch.zeros(1, 2, 8)
    assert float(layers._relative_error(zero, zero)) == 0.0


@pytest.mark.parametrize("changed", ["activation", "recipe"])
def test_the_folder_of_another_run_is_refused(changed: str, tmp_path: Path) -> None:
    _run(tmp_path).save()
    recipe = dataclasses.replace(RECIPE, seed=7) if changed == "recipe" else RECIPE
    with pytest.raises(PowerInferError, match=f"{LAYERS_FILE} belongs to a run with another"):
        _run(tmp_path, recipe, "relu" if changed == "activation" else "drelu")


def test_a_loss_that_is_nan_keeps_the_last_good_state(tmp_path: Path) -> None:
    run = _run(tmp_path)
    run.advance()
    with torch.no_grad():
        run.model.ffns[1].down_proj.weight[0, 0] = float("nan")
    with pytest.raises(NumericsError, match="step 2 of 24: the loss is nan") as caught:
        run.advance()
    assert "{layer_rate}" in caught.value.remedy
    assert (tmp_path / LAYERS_FILE).exists()


def test_the_penalty_silences_neurons(tmp_path: Path) -> None:
    def zeros(weight: float) -> float:
        _finish(_run(tmp_path / str(weight), dataclasses.replace(RECIPE, density_penalty=weight)))
        return float(np.sum(_lines(tmp_path / str(weight))[-1]["zeros"]))

    assert zeros(5.0) > zeros(0.0) + 0.1
