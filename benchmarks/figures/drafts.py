"""Tables of docs/drafts.md, measured by `scripts/bench drafts`.

Files of step_rows.py are `drafts/steps-MODEL-KERNELS.json`; of `powerinfer bench --draft`
`drafts/tasks.json` and `drafts/accepted-MODEL-SHARE.json`; of draft_servers.py
`drafts/servers.json`.
"""

import json
import statistics
from collections.abc import Iterator

from figures.parts import RESULTS, Json, Row, load_all, ratio_text, table

_FOLDER = "*/drafts"
_ROWS = ("2", "3", "4", "6", "8")


def _bench(pattern: str) -> Iterator[Json]:
    """What `powerinfer bench` printed, one result to a file."""
    for path in sorted(RESULTS.glob(f"{_FOLDER}/{pattern}")):
        yield json.loads(path.read_text(encoding="utf-8"))


@table("draft_steps", f"model | kernels | one row, ms | {' | '.join(_ROWS)}")
def _steps() -> Iterator[Row]:
    for name, result in load_all(f"{_FOLDER}/steps-*.json"):
        steps, kernels = result["steps"], result["kernels"]
        model = name.removeprefix("steps-").removesuffix(f"-{kernels}")
        of_one = (f"{steps[rows]['of_one']:.2f}" for rows in _ROWS)
        yield model, kernels, f"{steps['1']['ms']:.1f}", *of_one


@table(
    "draft_tasks", "kind | task | `off`, tokens/s | `auto` | ratio (range) | accepted | per step"
)
def _tasks() -> Iterator[Row]:
    for result in _bench("tasks.json"):
        for row in result["tasks"]:
            speeds = f"{row['tokens_per_s']:.1f}", f"{row['drafts_tokens_per_s']:.1f}"
            share = row["draft_accepted_share"]
            accepted = "" if share is None else f"{share:.1%}"
            yield (
                row["kind"],
                row["task"],
                *speeds,
                ratio_text(row),
                accepted,
                f"{row['tokens_per_step']:.2f}",
            )


@table("draft_accepted", "model | kernels | right | faster (tasks) | possible | share of it")
def _accepted() -> Iterator[Row]:
    steps = {
        name.removeprefix("steps-"): each for name, each in load_all(f"{_FOLDER}/steps-*.json")
    }
    for result in _bench("accepted-*.json"):
        model, kernels = result["model"].removesuffix(".gguf"), result["kernels"]
        acceptance, ratios = result["draft_acceptance"], [row["ratio"] for row in result["tasks"]]
        gain, best = statistics.mean(ratios), _best(steps[f"{model}-{kernels}"], acceptance)
        tasks = f"{gain:.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
        yield model, kernels, f"{acceptance:.0%}", tasks, f"{best:.2f}", f"{gain / best:.2f}"


def _best(result: Json, acceptance: float) -> float:
    """Most tokens per step over what it costs, of steps that all have as many rows."""
    gains = [1.0]
    for rows in _ROWS:
        expected = sum(acceptance**number for number in range(int(rows)))
        gains.append(expected / result["steps"][rows]["of_one"])
    return max(gains)


@table(
    "draft_servers",
    "tasks | clients | `off`, tokens/s | `auto` | gain | llama.cpp | `ngram-mod` | gain "
    "| ours over it",
)
def _servers() -> Iterator[Row]:
    for _, row in load_all(f"{_FOLDER}/servers.json"):
        off, auto, *peer = (
            f"{statistics.median(each):.1f}" for each in row["tokens_per_s"].values()
        )
        ours, *others = (ratio_text(each) for each in row["gains"].values())
        cells = (*peer, *others) if peer else ("", "", "", "")
        yield row["kind"], f"{row['clients']}", off, auto, ours, *cells
