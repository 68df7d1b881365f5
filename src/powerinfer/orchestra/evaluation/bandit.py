"""The learned baseline: a contextual bandit over (worker, primitive), no language model.

Linear Thompson sampling: the reward of each arm is a linear function of the question's features,
with a Gaussian belief about its weights. The belief is learned from a ledger of trials.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powerinfer.orchestra.evaluation.features import NUM_FEATURES, features
from powerinfer.orchestra.evaluation.truth import Arm

__all__ = ["Bandit", "Trial"]

_PRIOR_PRECISION = 0.3
_NOISE = 0.3
"""Standard deviation of rewards around the linear function, for sampling."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One line of the ledger that baselines learn from: an arm that did a task alone.

    Attributes:
        kind: what the table by kind knows; a bandit does not read it.
    """

    question: str
    kind: str
    arm: Arm
    is_right: bool
    reward: float


class _Belief:
    """Gaussian belief about the weights of an arm, with the noise of rewards as the unit."""

    def __init__(self) -> None:
        self._covariance = np.eye(NUM_FEATURES) / _PRIOR_PRECISION
        self._weighted = np.zeros(NUM_FEATURES)

    def add(self, x: npt.NDArray[np.float64], reward: float) -> None:
        # Sherman-Morrison: the inverse of the precision after x is added to it.
        moved = self._covariance @ x
        self._covariance -= np.outer(moved, moved) / (1.0 + x @ moved)
        self._weighted += reward * x

    def expected(self, x: npt.NDArray[np.float64]) -> tuple[float, float]:
        """Mean and spread of the reward."""
        moved = self._covariance @ x
        return float(self._weighted @ moved), math.sqrt(max(float(x @ moved), 0.0))


class Bandit:
    """Chooses an arm by the text of a question.

    With a seed it explores (`choose` samples from the belief); without, it takes the best mean.
    """

    def __init__(self, arms: Sequence[Arm], *, seed: int | None = None) -> None:
        """Know nothing yet."""
        self._beliefs = {arm: _Belief() for arm in arms}
        self._choice = None if seed is None else np.random.default_rng(seed)

    @classmethod
    def learned(cls, arms: Sequence[Arm], trials: Iterable[Trial]) -> "Bandit":
        """Learn from a ledger."""
        bandit = cls(arms)
        for trial in trials:
            bandit.learn(trial.question, trial.arm, trial.reward)
        return bandit

    def learn(self, question: str, arm: Arm, reward: float) -> None:
        """Learn from one more trial."""
        self._beliefs[arm].add(features(question), reward)

    def choose(self, question: str) -> Arm:
        """Choose the arm of the largest mean or, exploring, of the largest sampled reward."""
        x = features(question)
        expected = {}
        for arm, belief in self._beliefs.items():
            expected[arm], spread = belief.expected(x)
            if self._choice is not None:
                expected[arm] += _NOISE * spread * float(self._choice.standard_normal())
        return max(expected, key=expected.__getitem__)
