"""The reward of correctness and cost."""

import pytest

from powerinfer.orchestra.evaluation.reward import WINDOW, CostScale, Objective


def test_costs_are_scaled_between_percentiles_of_their_roots() -> None:
    scale = CostScale.of([each**2 for each in range(101)])
    assert (scale.low, scale.high) == pytest.approx((5.0, 95.0))
    assert scale.cost_reward(0.0) == 1.0
    assert scale.cost_reward(50.0**2) == pytest.approx(0.5)
    assert scale.cost_reward(100.0**2) == 0.0


def test_without_spread_the_cost_is_worth_half() -> None:
    assert CostScale.of([4.0, 4.0]).cost_reward(100.0) == 0.5


def test_the_last_episodes_count() -> None:
    assert CostScale.of([100.0, *[1.0] * WINDOW]) == CostScale(1.0, 1.0)


def test_a_reward_needs_a_right_and_valid_answer() -> None:
    objective = Objective(scale=CostScale(0.0, 2.0), cost_weight=0.1)
    assert objective.reward(1.0, is_right=True) == pytest.approx(0.95)
    assert objective.reward(0.0, is_right=True) == 1.0
    assert objective.reward(9.0, is_right=True) == pytest.approx(0.9)
    assert objective.reward(1.0, is_right=False) == 0.0
    assert objective.reward(1.0, is_right=True, is_valid=False) == 0.0


def test_seconds_have_a_price() -> None:
    objective = Objective(scale=CostScale(0.0, 2.0), second_price=0.5)
    assert objective.cost(seconds=4.0, price=1.0) == 3.0
