"""Tables of docs/real-models.md, whose commands wrote `real-models` of a folder of results."""

import json
from collections.abc import Iterator
from pathlib import Path

from figures.parts import RESULTS, Json, Row, load, ratio_text, signed, table

GOLDEN = Path(__file__).parents[2] / "tests" / "golden" / "real_models" / "smollm2.json"
_FOLDER = "intel-xeon-avx512/real-models"
_TASKS = {
    "piqa": ("PIQA", "66.3", "66.9"),
    "arc_easy": ("ARC-easy", "", "54.1, not per character"),
    "openbookqa": ("OpenBookQA", "", ""),
    "hellaswag": ("HellaSwag, a subset of 2,000", "40.9", "43.0"),
}
"""Name, and published accuracies of the checkpoint: of its card, and by lm-eval."""


def _all(pattern: str) -> dict[str, Json]:
    """Results by the name of the file without ending; none where a command was not run."""
    paths = sorted((RESULTS / _FOLDER).glob(pattern))
    return {path.stem: load(f"{_FOLDER}/{path.name}") for path in paths}


@table("real_perplexity", "engine | perplexity | from exact arithmetic")
def _perplexity() -> Iterator[Row]:
    stored = json.loads(GOLDEN.read_text(encoding="utf-8"))
    peer = f"llama.cpp (llama-cpp-python {stored['llama_cpp_python']})"
    found = {
        "exact arithmetic, `--kernels reference`": stored["perplexity"]["reference"],
        peer: stored["perplexity"]["llama.cpp"],
        **{
            f"`--kernels {name.rpartition('-')[2]}`": each["perplexity"]
            for name, each in _all("perplexity-*.json").items()
        },
    }
    exact = stored["perplexity"]["reference"]
    for name, value in found.items():
        change = "" if value == exact else signed(value / exact - 1)
        yield name, f"{value:.4f}", change


@table("real_quantizers", "type | MB | perplexity | from F16 | KL from F16, nats")
def _quantizers() -> Iterator[Row]:
    for result in _all("quantizers.json").values():
        exact, *rows = result["rows"]
        yield "F16", f"{exact['bytes'] / 1e6:.0f}", f"{exact['perplexity']:.3f}", "", ""
        for row in rows:
            yield (
                row["type"],
                f"{row['bytes'] / 1e6:.0f}",
                f"{row['perplexity']:.3f}",
                signed(row["perplexity"] / exact["perplexity"] - 1),
                f"{row['kl']:.5f} ± {row['kl_error']:.5f}",
            )


@table("real_accuracy", "task | items | accuracy | per character | card | lm-eval's, per character")
def _accuracy() -> Iterator[Row]:
    found: Json = {}
    for each in _all("eval-*.json").values():
        found |= each["tasks"]
    for name, (title, card, other) in _TASKS.items():
        if rows := found.get(name):
            row = rows["off"]
            yield (
                title,
                f"{row['items']:,}",
                _percent(row["accuracy"], row["standard_error"]),
                _percent(row["normalized_accuracy"], row["normalized_standard_error"]),
                card,
                other,
            )


def _percent(share: float | None, error: float | None) -> str:
    return "" if share is None or error is None else f"{100 * share:.1f} ± {100 * error:.1f} %"


@table(
    "real_speed",
    "model, our kernels | what | ours, tokens/s | llama.cpp | ik_llama.cpp | / llama.cpp "
    "| / ik_llama.cpp",
)
def _speed() -> Iterator[Row]:
    for each in _all("speed*.json").values():
        (result,) = each["results"]
        for what, row in result["against"]["llama.cpp"].items():
            better = result["better"]["better ik"][what]
            ik = result["against"][better][what]
            yield (
                f"{result['model'].removesuffix('.gguf')}, {result['kernels']}",
                what.replace("prefill", "prompt of"),
                f"{row['ours']:.1f}",
                f"{row['peer']:.1f}",
                f"{ik['peer']:.1f}{', `-rtr`' if better.endswith('-rtr') else ''}",
                ratio_text(row),
                ratio_text(ik),
            )
