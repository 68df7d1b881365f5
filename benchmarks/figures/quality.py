"""Tables of docs/sparsify/quality.md, from what `powerinfer bench --quality -o` wrote.

`quality/stories.json` has all settings, with tasks; `stories-speed.json` the same settings on a
machine where nothing else ran, without tasks.
"""

from collections.abc import Iterator

from figures.parts import Json, Row, load, signed, table

_KIB = 1024
_DIALS = {"0.005": "0.005", "0.01": "0.01", "0.02": "0.02", "default": "its own threshold"}


def _rows(name: str = "stories") -> list[Json]:
    rows: list[Json] = load(f"amd-epyc/quality/{name}.json")["rows"]
    return rows


def _setting(row: Json) -> str:
    """`mlp`, 0.01 for the setting `mlp @ 0.01`."""
    kind, _, dial = row["setting"].partition(" @ ")
    if kind == "default":
        return "calibrated, 0.01" if row["sparsity"] == "calibrated" else "default"
    return f"`{kind}`{', ' if dial else ''}{_DIALS.get(dial, dial)}"


def _percent(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{100 * value:.{digits}f} %"


@table(
    "quality_text",
    "setting | predictor, KiB/token | all, MiB/token | density | recall | FFN error "
    "| perplexity | change | agreement | tokens/s | / dense (range)",
)
def _text() -> Iterator[Row]:
    speeds = {row["setting"]: row for row in _rows("stories-speed")}
    for row in _rows():
        own = row["predictor_bytes_per_token"]
        yield (
            _setting(row),
            "-" if own is None else f"{own / _KIB:.0f}",
            f"{row['bytes_per_token'] / _KIB**2:.2f}",
            _percent(row["predicted_share"]),
            _percent(min(value for value in row["recall"] if value is not None)),
            f"{max(value for value in row['ffn_error'] if value is not None):.4f}",
            f"{row['perplexity']:.4f}",
            signed(row["perplexity_ratio"] - 1),
            _percent(row["agreement"], 2),
            *_speed(speeds.get(row["setting"])),
        )


def _speed(row: Json | None) -> Row:
    """Tokens per second, and the ratio to the dense model."""
    if row is None:
        return "", ""
    low, high = row["speedup_range"]
    spread = "" if low == high else f" ({low:.2f}-{high:.2f})"
    return f"{row['decode_tokens_per_s']:.0f}", f"{row['speedup']:.2f}{spread}"


@table("quality_tasks")
def _tasks() -> Iterator[Row]:
    rows = _rows()
    names = list(rows[0]["tasks"])
    yield "setting", *(cell for name in names for cell in (f"`{name}`", "difference", "equal"))
    for row in rows:
        cells: list[str] = []
        for task in (row["tasks"][name] for name in names):
            difference, error = task["difference"], task["difference_standard_error"]
            cells.append(_percent(task["accuracy"]))
            is_known = difference is not None and error is not None
            cells.append(f"{100 * difference:+.1f} ± {100 * error:.1f}" if is_known else "-")
            cells.append(_percent(task["equal_answers"], 0))
        yield _setting(row), *cells


@table("quality_winners", "dial | fewest bytes, MiB/token | second | third | fourth")
def _winners() -> Iterator[Row]:
    """At each dial the kinds that read least."""
    for dial, name in _DIALS.items():
        own = [row for row in _rows() if row["setting"].endswith(f" @ {dial}")]
        ranked = sorted(own, key=lambda row: row["bytes_per_token"])[:4]
        kinds = (f"`{row['setting'].partition(' @ ')[0]}`" for row in ranked)
        sizes = (f"{row['bytes_per_token'] / _KIB**2:.2f}" for row in ranked)
        yield name, *map(", ".join, zip(kinds, sizes, strict=True))
