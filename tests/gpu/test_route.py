"""Routers on a device: choice, ties, weights and damage, against numpy."""

import numpy as np
import numpy.typing as npt
import pytest

from torch_device import skip_module_without

skip_module_without("torch", "triton")

import torch

from powerinfer.ops.gpu.kernels.route import choose_experts
from powerinfer.ops.gpu.selection import Routing
from powerinfer.values import FloatArray

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def choose(
    logits: FloatArray, num_used: int, *, is_sigmoid: bool = False, is_normalized: bool = True
) -> tuple[FloatArray, FloatArray]:
    weights, chosen = choose_experts(
        torch.from_numpy(np.asarray(logits, np.float32)).to(DEVICE),
        num_used,
        is_sigmoid=is_sigmoid,
        is_normalized=is_normalized,
    )
    return weights.cpu().numpy(), chosen.cpu().numpy()


def expected(
    logits: FloatArray, num_used: int, *, is_sigmoid: bool, is_normalized: bool
) -> tuple[FloatArray, npt.NDArray[np.uint8]]:
    """One token after the other, in f64."""
    weights, chosen = np.zeros(logits.shape), np.zeros(logits.shape, np.uint8)
    for token, row in enumerate(logits.astype(np.float64)):
        ids = np.argsort(-row, kind="stable")[:num_used]
        if is_sigmoid:
            shares = 1.0 / (1.0 + np.exp(-row))
        else:
            shares = np.exp(row - row.max())
            shares /= shares.sum()
        picked = shares[ids]
        if is_normalized:
            picked = picked / max(picked.sum(), 6.103515625e-5 if is_sigmoid else 0.0)
        weights[token, ids], chosen[token, ids] = picked, 1
    return weights.astype(np.float32), chosen


@pytest.mark.parametrize("is_sigmoid", [False, True])
@pytest.mark.parametrize("is_normalized", [False, True])
@pytest.mark.parametrize(("num_experts", "num_used"), [(1, 1), (8, 2), (60, 4), (128, 8), (7, 7)])
def test_choice_and_weights(
    num_experts: int, num_used: int, *, is_normalized: bool, is_sigmoid: bool
) -> None:
    logits = np.random.default_rng(num_experts).normal(0, 3, (5, num_experts)).astype(np.float32)
    rule = {"is_sigmoid": is_sigmoid, "is_normalized": is_normalized}
    weights, chosen = choose(logits, num_used, **rule)
    wanted, picked = expected(logits, num_used, **rule)
    np.testing.assert_array_equal(chosen, picked)
    np.testing.assert_allclose(weights, wanted, rtol=2e-6, atol=1e-9)


def test_of_equal_logits_the_lower_ids_are_chosen() -> None:
    _, chosen = choose(np.array([[1.0, 2.0, 2.0, 2.0, 0.0], [0.0] * 5], np.float32), 2)
    np.testing.assert_array_equal(chosen, [[0, 1, 1, 0, 0], [1, 1, 0, 0, 0]])


def test_small_sigmoids_are_divided_by_no_less_than_the_floor() -> None:
    logits = np.full((1, 4), -30.0, np.float32)
    weights, _ = choose(logits, 2, is_sigmoid=True)
    share = 1.0 / (1.0 + np.exp(30.0))
    np.testing.assert_allclose(weights[0, :2], share / 6.103515625e-5, rtol=1e-5)


def test_nan_is_chosen_last_and_reaches_the_weights() -> None:
    logits = np.array([[np.nan, 1.0, 2.0], [np.nan] * 3, [1.0, 2.0, 3.0]], np.float32)
    weights, chosen = choose(logits, 2)
    np.testing.assert_array_equal(chosen, [[0, 1, 1], [1, 1, 0], [0, 1, 1]])
    assert np.isnan(weights[0, 1:]).all()
    assert np.isnan(weights[1, :2]).all()
    assert np.isfinite(weights[2]).all()


def test_the_mask_names_the_neurons_of_chosen_experts() -> None:
    chosen = torch.tensor([[0, 1, 0], [1, 0, 1]], dtype=torch.uint8)
    mask = Routing(chosen.float(), chosen).mask(6)
    np.testing.assert_array_equal(mask.numpy(), [[0, 0, 1, 1, 0, 0], [1, 1, 0, 0, 1, 1]])
