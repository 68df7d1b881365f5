"""What a run cost, step by step, and what other ways would have cost."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from powerinfer.orchestra.pool import Cost, Pool
from powerinfer.orchestra.rules import Offers

__all__ = ["POLICY", "Estimate", "Ledger", "Step"]

POLICY = "policy"
"""Stands for a primitive in the steps of the policy itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One action of the policy, or the call of one route.

    Attributes:
        primitive: `POLICY` for an action.
        seconds: measured; of calls side by side each has its own.
        price: by the pool's prices.
    """

    worker: str
    primitive: str
    subtask: int | None = None
    prompt_tokens: int = 0
    tokens: int = 0
    seconds: float = 0.0
    price: float = 0.0
    joules: float = 0.0
    ok: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a way would have cost by the pool's figures; seconds are None if they are unknown."""

    seconds: float | None
    price: float


@dataclass(frozen=True, slots=True)
class Ledger:
    """Steps of a run, in the order in which they ended."""

    steps: tuple[Step, ...] = ()

    @property
    def seconds(self) -> float:
        """Seconds of all steps; less passed where calls ran side by side."""
        return sum(each.seconds for each in self.steps)

    @property
    def price(self) -> float:
        """Price of all steps."""
        return sum(each.price for each in self.steps)

    @property
    def tokens(self) -> int:
        """Tokens that were generated."""
        return sum(each.tokens for each in self.steps)

    @property
    def prompt_tokens(self) -> int:
        """Tokens that were read."""
        return sum(each.prompt_tokens for each in self.steps)

    def other_ways(self, pool: Pool, offers: Offers) -> dict[str, Estimate]:
        """Estimate what other ways would have cost, with the tokens of this run.

        `cheapest` and `strongest` do the same calls with the least and the most expensive worker
        that offers the primitive; `direct` lets the policy's model answer the task at once.
        """
        rates = {each.name: self._rate(each.name, each.cost) for each in pool.workers}
        decisions = [each for each in self.steps if each.primitive == POLICY]
        ways = {
            name: _total(
                (each, rates[_chosen(pool, offers, each, is_dearest=is_dearest)])
                for each in self.steps
            )
            for name, is_dearest in (("cheapest", False), ("strongest", True))
        }
        if decisions:
            asked, answered = decisions[0], decisions[-1]
            step = Step(
                worker=pool.policy,
                primitive=POLICY,
                prompt_tokens=asked.prompt_tokens,
                tokens=answered.tokens,
            )
            ways["direct"] = _total([(step, rates[pool.policy])])
        return ways

    def _rate(self, worker: str, cost: Cost) -> "_Rate":
        """The worker's cost; seconds that nobody measured are those of this run, if it has any."""
        if cost.seconds_per_token or cost.seconds_per_call:
            return _Rate(cost, knows_seconds=True)
        steps = [each for each in self.steps if each.worker == worker]
        seconds, tokens = sum(each.seconds for each in steps), sum(each.tokens for each in steps)
        if tokens:
            cost = replace(cost, seconds_per_token=seconds / tokens)
        elif steps:
            cost = replace(cost, seconds_per_call=seconds / len(steps))
        return _Rate(cost, knows_seconds=bool(steps))


@dataclass(frozen=True, slots=True)
class _Rate:
    cost: Cost
    knows_seconds: bool


def _chosen(pool: Pool, offers: Offers, step: Step, *, is_dearest: bool) -> str:
    """Who would do a step."""
    able = [each for each in pool.workers if step.primitive in offers.get(each.name, ())]
    if step.primitive == POLICY or not able:
        return step.worker
    ranked: Sequence[str] = [each.name for each in sorted(able, key=lambda each: each.cost.rank)]
    return ranked[-1] if is_dearest else ranked[0]


def _total(steps: Iterable[tuple[Step, _Rate]]) -> Estimate:
    calls = list(steps)
    seconds = sum(rate.cost.seconds(step.prompt_tokens, step.tokens) for step, rate in calls)
    price = sum(rate.cost.price(step.prompt_tokens, step.tokens) for step, rate in calls)
    is_known = all(rate.knows_seconds for _, rate in calls)
    return Estimate(seconds=seconds if is_known else None, price=price)
