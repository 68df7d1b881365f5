"""The headline of README.md and the tables of docs/models/README.md: decode and prompt speeds.

`scripts/bench headline` measures them; those of the AMD machine are of `scripts/bench peers`.
"""

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from comparing.sides import rates
from figures.parts import RESULTS, Json, Row, load, load_model, part, ratio_text, table

__all__ = [
    "DENSE",
    "MACHINE",
    "SPARSE",
    "Rates",
    "Speed",
    "amd_dense",
    "dense",
    "original",
    "original_ratios",
    "sparse",
]

# The machine of the headline: how pages name it, and its folder of results.
MACHINE, _FOLDER = "Intel Xeon with AVX-512", "intel-xeon-avx512"

SPARSE = {
    "relullama-7b": "ReluLLaMA-7B",
    "turbosparse-mistral-7b": "TurboSparse-Mistral-7B",
    "opt-6.7b": "OPT-6.7B",
    "falcon-40b": "Falcon-40B",
}
DENSE = "Llama-7B"
_SUBJECTS = {"prefill 128": "prompt of 128", "decode": "decode"}


@dataclass(frozen=True)
class Rates:
    """A speed or ratio: what is quoted, and the range that was measured."""

    value: float
    low: float
    high: float

    def over(self, peer: "Rates") -> "Rates":
        """Ratio of two speeds; its range is the widest that both ranges allow."""
        return Rates(self.value / peer.value, self.low / peer.high, self.high / peer.low)

    def __str__(self) -> str:
        """The range, `22.5 to 24.9`; one number if only one was measured."""
        low, high = f"{self.low:.3g}", f"{self.high:.3g}"
        return low if low == high else f"{low} to {high}"


@dataclass(frozen=True)
class Speed:
    """Our speed and a peer's on the machine of the headline.

    Attributes:
        model: name.
        layers: number of the model's layers that were measured.
        format: of the weights, in capitals.
        row: `ours`, `peer`, `ratio`, `ratio_min` and `ratio_max`.
        active: share of the neurons that fired.
    """

    model: str
    layers: int
    format: str
    row: Json
    active: float = 1

    @property
    def ratio(self) -> Rates:
        """Our speed over the peer's."""
        return Rates(*(self.row[key] for key in ("ratio", "ratio_min", "ratio_max")))


def sparse(peer: str = "llama.cpp") -> list[Speed]:
    """Decode speeds of sparse models with the predictors of their files, where the peer ran."""
    found = []
    for model, name in SPARSE.items():
        for layers, form, result in load_model(model, _FOLDER):
            row = next(row for kind, row in result["kinds"].items() if kind.startswith("mlp"))
            if peer in row["against"]:
                decode = row["against"][peer]["decode"]
                found.append(Speed(name, layers, form, decode, row["active_share"]))
    return found


def original() -> list[tuple[Speed, Speed]]:
    """Speeds of the models that the original PowerInfer ran too: against llama.cpp, and it."""
    found = sparse("original")
    alike = [(each.model, each.format) for each in found]
    beside = [each for each in sparse() if (each.model, each.format) in alike]
    return list(zip(beside, found, strict=True))


def original_ratios() -> dict[str, Rates]:
    """The original's decode speed over llama.cpp's, taken round by round, by model and format."""
    found = {}
    for model, name in SPARSE.items():
        for _, form, result in load_model(model, _FOLDER):
            rounds = [{side: rates(run) for side, run in each.items()} for each in result["rounds"]]
            if "original" in rounds[0]:
                ratios = [x["original"]["decode"] / x["llama.cpp"]["decode"] for x in rounds]
                found[f"{name}, {form}"] = Rates(
                    statistics.median(ratios), min(ratios), max(ratios)
                )
    return found


def dense(what: str) -> list[Speed]:
    """Speeds of an ordinary Llama, `prefill 128` or `decode`."""
    return [
        Speed(DENSE, layers, form, result["summary"][what])
        for layers, form, result in load_model("llama-7b", _FOLDER)
    ]


def amd_dense(what: str) -> dict[str, dict[str, Rates]]:
    """Speeds of an ordinary Llama on the AMD Zen 4, by format and engine."""
    found: dict[str, dict[str, Rates]] = {}
    for _, form, result in load_model("llama-7b", "amd-zen4"):
        for engine in result["pairs"][0]:
            speeds = [rates(pair[engine])[what] for pair in result["pairs"]]
            quoted = Rates(statistics.median(speeds), min(speeds), max(speeds))
            found.setdefault(form, {})[engine] = quoted
    return found


def _span(values: Iterable[float], digits: int = 1) -> str:
    """`1.7 to 3.7`."""
    found = sorted(values)
    return f"{found[0]:.{digits}f} to {found[-1]:.{digits}f}"


def _quoted(speed: Speed, other: Speed) -> str:
    """`30.1 tokens/s in Q4_0 (llama.cpp 14, the original 20)`."""
    peers = f"llama.cpp {speed.row['peer']:.3g}, the original {other.row['peer']:.3g}"
    return f"{speed.row['ours']:.3g} tokens/s in {speed.format} ({peers})"


@part("headline")
def _headline() -> str:
    found = sparse()
    f16, q4_0 = (
        _span(speed.ratio.value for speed in found if speed.format == form)
        for form in ("F16", "Q4_0")
    )
    decode, prompt = (
        _span(speed.ratio.value for speed in dense(what)) for what in ("decode", "prefill 128")
    )
    lines = [
        "- **Sparse models against llama.cpp:** those in which "
        f"{_span((100 * speed.active for speed in found), 0)} % of the neurons fire decode\n"
        f"  {f16} times as fast in F16 and {q4_0} times in Q4_0.\n"
    ]
    compared = original()
    if compared:
        layers = compared[0][0].layers
        lines.append(
            f"- **Against the original PowerInfer:** {layers} layers of ReluLLaMA-7B decode\n  "
            + ",\n  ".join(_quoted(*each) for each in compared)
            + ".\n"
        )
    lines.append(
        f"- **An ordinary Llama (SwiGLU) has nothing to skip:** it decodes at {decode} times "
        f"llama.cpp's speed\n  and reads prompts at {prompt} times.\n"
    )
    return "".join(lines) + f"\n{_origin()}\n"


def _origin() -> str:
    """Where and when the headline was measured."""
    reports = [
        load(f"{_FOLDER}/{path.name}") for path in sorted((RESULTS / _FOLDER).glob("*.json"))
    ]
    commits = " and ".join(sorted({f"`{report['machine']['commit']}`" for report in reports}))
    since = min(report["date"] for report in reports)
    results = [result for report in reports for result in report["results"]]
    rounds = min(len(result.get("rounds") or result["pairs"]) for result in results)
    return (
        f"Measured by `scripts/bench headline` on two cores of an {MACHINE} on {since}, commit\n"
        f"{commits}: medians of {rounds} rounds, engines in turns."
    )


def _gain(name: str) -> str:
    gains = (
        f"{speed.format} {speed.row['ratio']:.1f}" for speed in sparse() if speed.model == name
    )
    return f"{', '.join(gains)} ({name})"


for _model, _name in SPARSE.items():
    part(f"gain-{_model}")(partial(_gain, _name))


@table("sparse", "shape | format | neurons that fire | tokens/s | llama.cpp | ratio (range)")
def _sparse() -> Iterator[Row]:
    for speed in sparse():
        yield (
            f"{speed.model}, {speed.layers} layers",
            speed.format,
            f"{100 * speed.active:.0f} %",
            f"{speed.row['ours']:.1f}",
            f"{speed.row['peer']:.1f}",
            ratio_text(speed.row),
        )


@table("original", "format | ours | llama.cpp | original | ours / llama.cpp | ours / original")
def _original() -> Iterator[Row]:
    for speed, other in original():
        cells = (f"{row:.1f}" for row in (speed.row["ours"], speed.row["peer"], other.row["peer"]))
        yield speed.format, *cells, ratio_text(speed.row), ratio_text(other.row)


@table("dense", "machine | format | what | ours | llama.cpp | ik_llama.cpp | ours / llama.cpp")
def _dense() -> Iterator[Row]:
    for what, subject in _SUBJECTS.items():
        for speed in dense(what):
            row = speed.row
            cells = (f"{row['ours']:.1f}", f"{row['peer']:.1f}", "", f"{row['ratio']:.2f}")
            yield "Intel", speed.format, subject, *cells
    for what, subject in _SUBJECTS.items():
        for form, found in amd_dense(what).items():
            ours, peer = found["ours"], found["llama.cpp"]
            # The better of its two ways to lay out the weights.
            ik = [each for engine, each in found.items() if engine.startswith("ik_")]
            best = str(max(ik, key=lambda each: each.value)) if ik else ""
            ratio = f"{ours.over(peer).value:.2f}"
            yield "AMD", form, subject, str(ours), str(peer), best, ratio
