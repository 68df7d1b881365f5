"""The tables of docs/sparsify/quality.md, from what `powerinfer bench --quality -o` wrote.

Files of `benchmarks/results/quality`:

    stories.json         all settings, with tasks
    stories-speed.json   the same settings on a machine where nothing else ran, without tasks
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypedDict

from figures.amd import NOT_MEASURED, Row, table_of

__all__ = ["QUALITY_PARTS"]

FOLDER = Path(__file__).resolve().parent.parent / "results" / "quality"
_KIB = 1024
_DIALS = {"0.005": "0.005", "0.01": "0.01", "0.02": "0.02", "default": "its own threshold"}


class TaskRow(TypedDict):
    """What is read of a setting's figures on a task."""

    accuracy: float
    standard_error: float
    items: int
    difference: float | None
    difference_standard_error: float | None
    equal_answers: float | None


class SettingRow(TypedDict):
    """What is read of a row."""

    setting: str
    sparsity: str
    decode_tokens_per_s: float
    speedup: float
    speedup_range: list[float]
    bytes_per_token: float
    predictor_bytes_per_token: float | None
    predicted_share: float | None
    active_share: float
    recall: list[float | None]
    ffn_error: list[float | None]
    perplexity: float
    standard_error: float
    perplexity_ratio: float
    agreement: float
    tasks: dict[str, TaskRow]


def _rows(name: str) -> list[SettingRow]:
    path = FOLDER / name
    if not path.exists():
        return []
    rows: list[SettingRow] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return rows


def _shown(row: SettingRow) -> str:
    """`mlp`, 0.01 for the setting `mlp @ 0.01`."""
    kind, _, dial = row["setting"].partition(" @ ")
    if kind == "default":
        return "calibrated, 0.01" if row["sparsity"] == "calibrated" else "default"
    return f"`{kind}`{', ' if dial else ''}{_DIALS.get(dial, dial)}"


def _share(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{100 * value:.{digits}f} %"


def _worst(values: list[float | None], choose: Callable[[list[float]], float]) -> float:
    return choose([value for value in values if value is not None])


def _text_table() -> str:
    speeds = {row["setting"]: row for row in _rows("stories-speed.json")}

    def rows() -> Iterator[Row]:
        for row in _rows("stories.json"):
            own = row["predictor_bytes_per_token"]
            yield (
                _shown(row),
                "-" if own is None else f"{own / _KIB:.0f}",
                f"{row['bytes_per_token'] / _KIB**2:.2f}",
                _share(row["predicted_share"]),
                _share(_worst(row["recall"], min)),
                f"{_worst(row['ffn_error'], max):.4f}",
                f"{row['perplexity']:.4f}",
                f"{100 * (row['perplexity_ratio'] - 1):+.2f} %",
                _share(row["agreement"], 2),
                *_speed(speeds.get(row["setting"])),
            )

    return table_of(
        "setting | predictor, KiB/token | all, MiB/token | density | recall | FFN error "
        "| perplexity | change | agreement | tokens/s | / dense (range)",
        rows(),
    )


def _speed(row: SettingRow | None) -> Row:
    """Tokens per second, and the ratio to the dense model; nothing where it was not measured."""
    if row is None:
        return "", ""
    low, high = row["speedup_range"]
    spread = "" if low == high else f" ({low:.2f}-{high:.2f})"
    return f"{row['decode_tokens_per_s']:.0f}", f"{row['speedup']:.2f}{spread}"


def _task_table() -> str:
    found = _rows("stories.json")
    if not found:
        return NOT_MEASURED
    names = list(found[0]["tasks"])

    def rows() -> Iterator[Row]:
        for row in found:
            cells: list[str] = []
            for name in names:
                task = row["tasks"][name]
                error = task["difference_standard_error"]
                difference = task["difference"]
                cells.append(_share(task["accuracy"]))
                cells.append(
                    "-"
                    if difference is None or error is None
                    else f"{100 * difference:+.1f} ± {100 * error:.1f}"
                )
                cells.append(_share(task["equal_answers"], 0))
            yield _shown(row), *cells

    heads = " | ".join(f"`{name}` | difference | equal" for name in names)
    return table_of(f"setting | {heads}", rows())


def _winners() -> str:
    """Of the kinds at each dial those that read least."""
    quality = _rows("stories.json")

    def rows() -> Iterator[Row]:
        for dial, name in _DIALS.items():
            own = [row for row in quality if row["setting"].endswith(f" @ {dial}")]
            if own:
                ranked = sorted(own, key=lambda row: row["bytes_per_token"])
                yield name, *(_with_bytes(row) for row in ranked[:4])

    return table_of("dial | fewest bytes, MiB/token | second | third | fourth", rows())


def _kind(row: SettingRow) -> str:
    return f"`{row['setting'].partition(' @ ')[0]}`"


def _with_bytes(row: SettingRow) -> str:
    return f"{_kind(row)}, {row['bytes_per_token'] / _KIB**2:.2f}"


QUALITY_PARTS: dict[str, Callable[[], str]] = {
    "quality_text": _text_table,
    "quality_tasks": _task_table,
    "quality_winners": _winners,
}
