"""Tables and picture of docs/sparsify/experiment.md, from what benchmarks/sparsify.py reported.

`benchmarks/results/sparsify/small.json` is the report of its preset `small`.
"""

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, TypedDict

from figures.amd import NOT_MEASURED, Row, table_of
from figures.svg import Picture

__all__ = ["SPARSIFY_PARTS", "draw_budgets"]

_FILE = Path(__file__).resolve().parent.parent / "results" / "sparsify" / "small.json"
# Key of the report, name, colour.
_VARIANTS = (
    ("swiglu", "SwiGLU", "ink"),
    ("reglu", "ReGLU", "cpu"),
    ("drelu", "dReLU", "gpu"),
    ("drelu-distilled", "dReLU, distilled", "other"),
)
_TARGET = 3.0
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 820, 400, 74, 780, 96, 336


class Run(TypedDict):
    """What is read of one run."""

    variant: str
    is_trial: bool
    tokens: int
    recipe: dict[str, float]
    start: dict[str, Any]
    perplexity: float
    zeros: list[float]
    top: dict[str, float] | None


def _report() -> dict[str, Any] | None:
    if not _FILE.exists():
        return None
    found: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    return found


def _by_budget() -> dict[int, dict[str, Run]]:
    """Budget in tokens, rising, to variant to run; budgets at which SwiGLU was trained."""
    report = _report()
    found: dict[int, dict[str, Run]] = {}
    for run in report["runs"] if report else ():
        if not run["is_trial"]:
            found.setdefault(int(run["recipe"]["tokens"]), {})[run["variant"]] = run
    return {tokens: runs for tokens, runs in sorted(found.items()) if "swiglu" in runs}


def _above(run: Run, reference: Run) -> float:
    """Perplexity above that of another run, in per cent."""
    return 100 * (run["perplexity"] / reference["perplexity"] - 1)


def _mean_zeros(run: Run) -> float:
    return 100 * sum(run["zeros"]) / len(run["zeros"])


def _tokens(count: float) -> str:
    return f"{count / 1e6:g} M"


def _budgets() -> str:
    def rows() -> Iterator[Row]:
        for tokens, runs in _by_budget().items():
            swiglu = runs["swiglu"]
            for key, title, _ in _VARIANTS:
                if key in runs:
                    run = runs[key]
                    yield (
                        _tokens(tokens),
                        title,
                        f"{run['perplexity']:.3f}",
                        "" if run is swiglu else f"{_above(run, swiglu):+.2f} %",
                        f"{_mean_zeros(run):.1f} %",
                    )

    return table_of("tokens | activation | perplexity | against SwiGLU | zeros", rows())


def _top() -> str:
    """The paper's Table 3: the largest budget, only the neurons with the largest values."""
    runs = next(reversed(_by_budget().values()), {})
    shares = sorted(
        {share for run in runs.values() for share in run["top"] or ()}, key=float, reverse=True
    )

    def rows() -> Iterator[Row]:
        for key, title, _ in _VARIANTS:
            if key in runs and (top := runs[key]["top"]):
                cells = (f"{top[share]:.2f}" for share in shares)
                yield title, f"{runs[key]['perplexity']:.2f}", *cells

    kept = " | ".join(f"{100 * float(share):.0f} %" for share in shares)
    return table_of(f"activation | all neurons | {kept}", rows())


def _layers() -> str:
    """Zeros of each layer at the largest budget."""
    runs = next(reversed(_by_budget().values()), {})
    count = len(runs["swiglu"]["zeros"]) if runs else 0

    def rows() -> Iterator[Row]:
        for key, title, _ in _VARIANTS[1:]:
            if key in runs:
                yield title, *(f"{100 * share:.1f} %" for share in runs[key]["zeros"])

    numbers = " | ".join(f"layer {number}" for number in range(count))
    return table_of(f"activation | {numbers}", rows())


def _penalties() -> str:
    """Perplexity and zeros of dReLU with several weights of the penalty."""
    report, budgets = _report(), _by_budget()
    found = [run for run in (report["runs"] if report else ()) if run["variant"] == "drelu"]
    tried = {run["recipe"]["tokens"] for run in found if run["is_trial"]}

    def rows() -> Iterator[Row]:
        for run in sorted(found, key=_tokens_and_penalty):
            tokens, penalty = _tokens_and_penalty(run)
            if tokens in tried and tokens in budgets:
                yield (
                    _tokens(tokens),
                    f"{penalty:g}",
                    f"{run['perplexity']:.3f}",
                    f"{_above(run, budgets[int(tokens)]['swiglu']):+.2f} %",
                    f"{_mean_zeros(run):.1f} %",
                )

    return table_of(
        "tokens | `--density-penalty` | perplexity | against SwiGLU | zeros",
        rows(),
    )


def _tokens_and_penalty(run: Run) -> tuple[float, float]:
    return run["recipe"]["tokens"], run["recipe"]["density_penalty"]


def _setting() -> str:
    """Model, machine and cost in a few sentences."""
    report = _report()
    if report is None or report["base"] is None:
        return NOT_MEASURED
    config, base, machine = report["config"], report["base"], report["machine"]
    starts = {run["variant"]: run["start"] for run in report["runs"]}
    start = starts.get("drelu")
    swapped = (
        f" With dReLU in place of its SwiGLU it has {start['perplexity']:.2f} before any training, "
        f"at {100 * sum(start['zeros']) / len(start['zeros']):.1f} % zeros."
        if start
        else ""
    )
    return (
        f"The model: hidden size {config['hidden_size']}, {config['num_hidden_layers']} layers of "
        f"{config['intermediate_size']} neurons, {config['vocab_size']} tokens; trained as SwiGLU "
        f"on {_tokens(base['recipe']['tokens'])} tokens to a held-out perplexity of "
        f"{base['perplexity']:.2f}.{swapped}\n"
        f"{machine['cpu']}, torch {machine['torch']}: {report['cpu_seconds'] / 60:.0f} CPU minutes "
        f"for the {len(report['runs']) + 1} runs, scoring among them.\n"
    )


def draw_budgets() -> str:
    """The picture: perplexity above SwiGLU's, by budget."""
    budgets = _by_budget()
    points = {
        key: [
            (number, _above(runs[key], runs["swiglu"]), _mean_zeros(runs[key]))
            for number, runs in enumerate(budgets.values())
            if key in runs
        ]
        for key, _, _ in _VARIANTS[1:]
    }
    values = [value for found in points.values() for _, value, _ in found]
    scale = _Scale(len(budgets), min(0.0, *values, 0.0), max(_TARGET, *values, _TARGET))
    title = "Held-out perplexity above SwiGLU's after equal tokens"
    facts = " ".join(
        f"{name}: {', '.join(f'{value:+.2f} %' for _, value, _ in points[key])}."
        for key, name, _ in _VARIANTS[1:]
    )
    picture = Picture(_WIDTH, _HEIGHT, title=title, description=facts)
    picture.text(24, 32, title, size=16, bold=True)
    picture.text(24, 54, "Beside a point: share of neurons that are zero.", "soft", size=12)
    _draw_axes(picture, scale, list(budgets))
    for place, (key, name, look) in enumerate(_VARIANTS[1:]):
        picture.circle(_LEFT + 8 + 170 * place, 76, 5, look)
        picture.text(_LEFT + 20 + 170 * place, 80, name, size=12)
        _draw_series(picture, scale, points[key], look)
    return str(picture)


class _Scale:
    """From budgets and per cent to places in the picture."""

    def __init__(self, count: int, low: float, high: float) -> None:
        self._count = count
        self.low, self.high = int(low) - (low < int(low)), int(high) + (high > int(high))

    def x(self, number: int) -> float:
        return _LEFT + 40 + (_RIGHT - _LEFT - 120) * number / max(1, self._count - 1)

    def y(self, value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * (value - self.low) / (self.high - self.low)


def _draw_axes(picture: Picture, scale: _Scale, budgets: list[int]) -> None:
    step = max(1, (scale.high - scale.low) // 8)
    for value in range(scale.low, scale.high + 1, step):
        look = "range" if value == 0 else "grid"
        picture.line(_LEFT, scale.y(value), _RIGHT, scale.y(value), look)
        words = "SwiGLU" if value == 0 else f"{value:+d} %"
        picture.text(_LEFT - 8, scale.y(value) + 4, words, "soft", size=12, anchor="end")
    for number, tokens in enumerate(budgets):
        words = f"{_tokens(tokens)} tokens"
        picture.text(scale.x(number), _BOTTOM + 28, words, "soft", size=12, anchor="middle")


def _draw_series(
    picture: Picture, scale: _Scale, points: list[tuple[int, float, float]], look: str
) -> None:
    places = [(scale.x(number), scale.y(value), zeros) for number, value, zeros in points]
    for (x1, y1, _), (x2, y2, _) in pairwise(places):
        picture.line(x1, y1, x2, y2)
    for x, y, zeros in places:
        picture.circle(x, y, 5, look)
        # The two kinds of dReLU lie close together.
        side, anchor = (-10, "end") if look == "other" else (10, "start")
        picture.text(x + side, y - 6, f"{zeros:.0f} %", look, size=11, anchor=anchor)


SPARSIFY_PARTS: dict[str, Callable[[], str]] = {
    "sparsify_setting": _setting,
    "sparsify_budgets": _budgets,
    "sparsify_top": _top,
    "sparsify_layers": _layers,
    "sparsify_penalties": _penalties,
}
