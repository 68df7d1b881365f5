"""Tables of docs/sparsify/real-model.md, from the report of benchmarks/sparsified.py."""

from collections.abc import Iterator

from figures.parts import Json, Row, load, part, table

_RESULT = "amd-epyc/sparsify/smollm2.json"
_TASKS = {
    "piqa": "PIQA",
    "arc_easy": "ARC-easy",
    "openbookqa": "OpenBookQA",
    "hellaswag": "HellaSwag",
}


def _rows() -> tuple[Json, list[Json]]:
    """The model before, and the runs by their tokens."""
    rows = dict(load(_RESULT)["rows"])
    base = rows.pop("base")
    return base, sorted(rows.values(), key=lambda row: (row["tokens"], row["perplexity"]))


def _recipe(row: Json) -> str:
    run = row["run"]
    first = f"solved first on {run['fit_tokens']:,} tokens" if "fit_tokens" in run else ""
    second = "distilled" if run["distill"] else "not distilled"
    return ", ".join(filter(None, (first, second, f"learning rate {run['learning_rate']:g}")))


def _best(rows: list[Json]) -> list[Json]:
    """The runs with the recipe of the longest."""
    return [row for row in rows if _recipe(row) == _recipe(rows[-1])]


@table("sparsified_recipes", "recipe | tokens | zeros | perplexity, held out | calibration.txt")
def _recipes() -> Iterator[Row]:
    base, rows = _rows()
    before = rows[0]["perplexity_before"]
    yield "none: SmolLM2", "", "0 %", f"{before:.2f}", f"{base['text_perplexity']:.2f}"
    for row in rows[:-1]:
        yield _recipe(row), f"{row['tokens']:,}", *_loss(row)


@table("sparsified_curve")
def _curve() -> Iterator[Row]:
    base, rows = _rows()
    tasks = [name for name in _TASKS if name in base["tasks"]]
    yield (
        "tokens",
        "zeros",
        "perplexity, held out",
        "calibration.txt",
        *(_TASKS[name] for name in tasks),
    )
    accuracies = (_accuracy(base, task) for task in tasks)
    before = rows[-1]["perplexity_before"]
    yield "SmolLM2", "0 %", f"{before:.2f}", f"{base['text_perplexity']:.2f}", *accuracies
    best = _best(rows)
    fitted = best[-1]
    if "fit_perplexity" in fitted:
        zeros, perplexity = fitted["fit_zeros"], fitted["fit_perplexity"]
        held_out = _held_out(perplexity, fitted)
        yield "solved only", f"{100 * zeros:.1f} %", held_out, *[""] * (1 + len(tasks))
    for row in best:
        yield f"{row['tokens']:,}", *_loss(row), *(_accuracy(row, task) for task in tasks)


@table("sparsified_speed", "file | bytes | dense, tokens/s | zeros skipped | / SmolLM2")
def _speed() -> Iterator[Row]:
    base, rows = _rows()
    plain = base["decode"]["off"]["p10_ms"]
    yield "SmolLM2", _megabytes(base), f"{1e3 / plain:.0f}", "", ""
    for row in _best(rows):
        dense, sparse = (row["decode"][kind]["p10_ms"] for kind in ("off", "exact"))
        name = f"{row['tokens']:,} tokens, {row['zeros']:.0%} zeros"
        speeds = f"{1e3 / dense:.0f}", f"{1e3 / sparse:.0f}", f"**{plain / sparse:.2f}**"
        yield name, _megabytes(row), *speeds


@part("sparsified_setting")
def _setting() -> str:
    _, rows = _rows()
    hours = sum(row["seconds"] for row in rows) / 3600
    machine = load(_RESULT)["machine"]
    return (
        f"{machine['cpu']}, two cores, shared with other work: {hours:.1f} hours of training steps "
        f"for the {len(rows)} runs.\n"
    )


def _held_out(perplexity: float, row: Json) -> str:
    """Beside that of SmolLM2 on what this run held out."""
    return f"{perplexity:.2f} ({perplexity / row['perplexity_before']:.2f} times)"


def _loss(row: Json) -> Row:
    held_out, text = _held_out(row["perplexity"], row), row["text_perplexity"]
    return f"{100 * row['zeros']:.1f} %", held_out, f"{text:.2f}"


def _accuracy(row: Json, task: str) -> str:
    found = row["tasks"][task]["off"]
    return f"{100 * found['accuracy']:.1f} ± {100 * found['standard_error']:.1f} %"


def _megabytes(row: Json) -> str:
    return f"{row['bytes'] / 1e6:.0f} MB"
