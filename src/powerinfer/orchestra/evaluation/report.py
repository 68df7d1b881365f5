"""The report of an evaluation: a row for each policy, as values, as JSON and as a table."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from powerinfer.orchestra.evaluation.episodes import Episode
from powerinfer.orchestra.evaluation.intervals import Interval, mean_interval, share_interval
from powerinfer.orchestra.evaluation.reward import Objective

__all__ = ["Row", "report_json", "summarize", "table"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """How a policy did; means are per task.

    Attributes:
        invalid: share of tasks without answer or with a broken rule.
        regret: best expected reward minus its own, the expected one where it is known; None where
            the truth is not known.
        accuracy_by_kind: share of right answers.
    """

    policy: str
    tasks: int
    accuracy: Interval
    seconds: Interval
    price: Interval
    reward: Interval
    regret: Interval | None
    prompt_tokens: float
    tokens: float
    routes: float
    escalations: float
    protocol_errors: int
    invalid: float
    accuracy_by_kind: dict[str, float]


def summarize(episodes: Iterable[Episode], objective: Objective) -> list[Row]:
    """Summarize the episodes of each policy, in the order in which these appear."""
    by_policy: defaultdict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        by_policy[episode.policy].append(episode)
    return [_row(name, each, objective) for name, each in by_policy.items()]


def _row(name: str, episodes: Sequence[Episode], objective: Objective) -> Row:
    rewards = [each.reward(objective) for each in episodes]
    regrets = [
        each.best - (reward if each.expected is None else each.expected)
        for each, reward in zip(episodes, rewards, strict=True)
        if each.best is not None
    ]
    return Row(
        policy=name,
        tasks=len(episodes),
        accuracy=share_interval(sum(each.is_right for each in episodes), len(episodes)),
        seconds=mean_interval([each.seconds for each in episodes]),
        price=mean_interval([each.price for each in episodes]),
        reward=mean_interval(rewards),
        regret=mean_interval(regrets) if regrets else None,
        prompt_tokens=_mean(each.prompt_tokens for each in episodes),
        tokens=_mean(each.tokens for each in episodes),
        routes=_mean(each.routes for each in episodes),
        escalations=_mean(each.escalations for each in episodes),
        protocol_errors=sum(each.protocol_errors for each in episodes),
        invalid=_mean(not each.is_valid for each in episodes),
        accuracy_by_kind=_by_kind(episodes),
    )


def _by_kind(episodes: Iterable[Episode]) -> dict[str, float]:
    by_kind: defaultdict[str, list[bool]] = defaultdict(list)
    for each in episodes:
        by_kind[each.kind].append(each.is_right)
    return {kind: _mean(right) for kind, right in sorted(by_kind.items())}


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def report_json(rows: Iterable[Row], objective: Objective) -> dict[str, object]:
    """Write a report as an object for JSON."""
    return {"objective": asdict(objective), "policies": [asdict(each) for each in rows]}


_HEADINGS = (
    *("policy", "accuracy", "95 %", "reward", "95 %", "regret", "95 %", "seconds", "price"),
    *("tokens", "routes", "escalated", "invalid", "errors"),
)


def table(rows: Iterable[Row]) -> list[tuple[str, ...]]:
    """Write a report as the cells of a table, headings first; regret only where it is known."""
    cells = [_HEADINGS, *map(_cells, rows)]
    if any(row[5] != "-" for row in cells[1:]):
        return cells
    return [(*row[:5], *row[7:]) for row in cells]


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.policy,
        *_with_interval(row.accuracy),
        *_with_interval(row.reward),
        *(("-", "-") if row.regret is None else _with_interval(row.regret)),
        f"{row.seconds.value:.3g}",
        f"{row.price.value:.3g}",
        f"{row.tokens:.4g}",
        f"{row.routes:.2f}",
        f"{row.escalations:.2f}",
        f"{100 * row.invalid:.1f} %",
        str(row.protocol_errors),
    )


def _with_interval(found: Interval) -> tuple[str, str]:
    return f"{found.value:.3f}", f"{found.low:.3f}-{found.high:.3f}"
