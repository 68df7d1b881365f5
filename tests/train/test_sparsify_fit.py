"""Solving for `down`: what numpy finds, nearer to the old model, resumed to the same bits."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

import torch
from torch import Tensor

from powerinfer.errors import NumericsError, PowerInferError
from powerinfer.train.sparsify import fit
from powerinfer.train.sparsify.fit import fit_layers
from powerinfer.train.sparsify.model import SparseModel, random_model, set_activation
from powerinfer.train.sparsify.recipe import Recipe
from sparsify_cases import LLAMA, random_tokens

RECIPE = Recipe(tokens=1024, seq_len=16, batch_tokens=16, pass_tokens=256)
TOKENS = random_tokens()
INPUTS = torch.from_numpy(TOKENS[-96:].astype("i8"))[None]


def _model(activation: str = "drelu") -> SparseModel:
    model = random_model(LLAMA, 1)
    with torch.no_grad():
        for ffn in model.ffns:
            for parameter in ffn.parameters():
                parameter.mul_(8.0)
    set_activation(model, activation)  # type: ignore[arg-type]
    return model


def _fitted(folder: Path, activation: str = "drelu", recipe: Recipe = RECIPE) -> SparseModel:
    model = _model(activation)
    fit_layers(model, _model("silu"), TOKENS, recipe, folder, lambda _done, _all: None)
    return model


def _streams(model: SparseModel) -> list[Tensor]:
    """The residual stream after each layer, on tokens that no fit has read."""
    with torch.no_grad():
        found = model.network.model(input_ids=INPUTS, use_cache=False, output_hidden_states=True)
    return list(found.hidden_states[1:])


def _errors(model: SparseModel) -> list[float]:
    pairs = zip(_streams(model), _streams(_model("silu")), strict=True)
    return [float((ours - wanted).norm() / wanted.norm()) for ours, wanted in pairs]


def _weights(model: SparseModel) -> dict[str, Tensor]:
    return dict(model.network.state_dict())


@pytest.mark.parametrize("activation", ["relu", "drelu"])
def test_every_layer_comes_nearer_to_the_old_one(activation: str, tmp_path: Path) -> None:
    before, after = _errors(_model(activation)), _errors(_fitted(tmp_path, activation))
    assert all(new < 0.8 * old for new, old in zip(after, before, strict=True))


def test_down_is_what_least_squares_in_numpy_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit, "_PULL", 0.001)
    model, teacher = _fitted(tmp_path, "relu"), _model("silu")
    rows = TOKENS[: len(TOKENS) // 17 * 17].reshape(-1, 17)
    numbers = np.random.default_rng([RECIPE.seed, 0]).permutation(len(rows))[:64]
    ids = torch.from_numpy(rows[numbers, :-1].astype("i8"))
    x, neurons, wanted = _first_layer(teacher, ids)
    rest = wanted - x
    power = (rest**2).sum(-1).reshape(4, -1)  # of each pass
    typical = np.exp(np.log(power).mean(1, keepdims=True))
    weights = 1 / (power + typical)
    weights = np.sqrt(weights / weights.mean(1, keepdims=True)).reshape(-1, 1)
    old = teacher.ffns[0].down_proj.weight.detach().double().numpy().T
    pull = np.sqrt(0.001 * ((weights * neurons) ** 2).sum(0).mean())
    left = np.concatenate([weights * neurons, pull * np.eye(len(old))])
    right = np.concatenate([weights * rest, pull * old])
    expected = np.linalg.lstsq(left, right, rcond=None)[0]
    found = model.ffns[0].down_proj.weight.detach().numpy().T
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-4 * np.abs(expected).max())


def _first_layer(teacher: SparseModel, ids: Tensor) -> tuple[NDArray[np.float64], ...]:
    """Of the first layer: stream after the attention, ReGLU neurons, stream after the FFN."""
    seen: list[Tensor] = []
    hook = teacher.ffns[0].register_forward_hook(lambda _ffn, x, y: seen.extend((*x, y)))
    with torch.no_grad():
        after = teacher.network.model(input_ids=ids, output_hidden_states=True).hidden_states[1]
        ffn = teacher.ffns[0]
        neurons = torch.relu(ffn.gate_proj(seen[0])) * ffn.up_proj(seen[0])
    hook.remove()
    tensors = after - seen[1], neurons, after
    return tuple(tensor.flatten(0, -2).double().numpy() for tensor in tensors)


def test_nothing_but_down_and_signs_of_up_changes(tmp_path: Path) -> None:
    before, after = _weights(_model()), _weights(_fitted(tmp_path))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if "down_proj" in name or "up_proj" in name}
    for name in (name for name in changed if "up_proj" in name):
        assert torch.equal(before[name].abs(), after[name].abs())
        signs = (before[name] * after[name]).sign()
        assert torch.equal(signs, signs[:, :1].expand_as(signs))
        assert 0 < int((signs[:, 0] < 0).sum()) < len(signs)


def test_an_interrupted_fit_ends_with_the_same_bits(tmp_path: Path) -> None:
    def stop(done: int, _all: int) -> None:
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_layers(_model(), _model("silu"), TOKENS, RECIPE, tmp_path / "cut", stop)
    whole, continued = _fitted(tmp_path / "whole"), _fitted(tmp_path / "cut")
    known = _fitted(tmp_path / "whole")
    for other in (continued, known):
        ours, theirs = _weights(other), _weights(whole)
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_fit_that_is_done_computes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fitted(tmp_path)
    monkeypatch.setattr(fit, "_run_layer", lambda *_: pytest.fail("a layer was run"))
    _fitted(tmp_path)


def test_neurons_that_never_fire_keep_their_weights(tmp_path: Path) -> None:
    model = _model("relu")
    with torch.no_grad():
        model.ffns[0].gate_proj.weight[5] = 0.0
    before = model.ffns[0].down_proj.weight.detach().clone()
    fit_layers(model, _model("silu"), TOKENS, RECIPE, tmp_path, lambda _done, _all: None)
    after = model.ffns[0].down_proj.weight.detach()
    torch.testing.assert_close(after[:, 5], before[:, 5])
    assert not torch.allclose(after[:, 6], before[:, 6])


def test_a_short_text_is_read_once(tmp_path: Path) -> None:
    recipe = dataclasses.replace(RECIPE, tokens=10**6)
    num_tokens = fit_layers(
        _model(), _model("silu"), TOKENS, recipe, tmp_path, lambda _done, _all: None
    )
    assert num_tokens == len(TOKENS) // 17 * 16


def test_the_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    _fitted(tmp_path)
    with pytest.raises(PowerInferError, match=r"layer-0\.pt belongs to a run with another"):
        _fitted(tmp_path, recipe=dataclasses.replace(RECIPE, seed=7))


def test_numbers_that_are_not_finite_are_one_line(tmp_path: Path) -> None:
    model = _model()
    with torch.no_grad():
        model.ffns[1].gate_proj.weight[0, 0] = float("nan")
    with pytest.raises(NumericsError, match="layer 1: its neurons or outputs are not finite"):
        fit_layers(model, _model("silu"), TOKENS, RECIPE, tmp_path, lambda _done, _all: None)
    assert not (tmp_path / "layer-1.pt").exists()
