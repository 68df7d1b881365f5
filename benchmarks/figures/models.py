"""The headline of README.md and the tables of docs/models/README.md: decode and prompt speeds."""

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from comparing.sides import rates
from figures.parts import Json, Row, load, load_model, part, ratio_text, table

__all__ = [
    "DENSE",
    "SPARSE",
    "Rates",
    "Speed",
    "amd_dense",
    "intel_dense",
    "intel_sparse",
    "original",
]

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
    """Our speed and llama.cpp's on the Intel machine.

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
        """Our speed over llama.cpp's."""
        return Rates(*(self.row[key] for key in ("ratio", "ratio_min", "ratio_max")))


def intel_sparse() -> list[Speed]:
    """Decode speeds of sparse models with the predictors of their files."""
    found = []
    for model, name in SPARSE.items():
        for layers, form, result in load_model(model):
            row = next(row for kind, row in result["kinds"].items() if kind.startswith("mlp"))
            decode = row["against"]["llama.cpp"]["decode"]
            found.append(Speed(name, layers, form, decode, row["active_share"]))
    return found


def intel_dense(what: str) -> list[Speed]:
    """Speeds of an ordinary Llama, `prefill 128` or `decode`."""
    found = load_model("llama-7b")
    return [Speed(DENSE, layers, form, result["summary"][what]) for layers, form, result in found]


def amd_dense(what: str) -> dict[str, dict[str, Rates]]:
    """Speeds of an ordinary Llama on the AMD Zen 4, by format and engine."""
    found: dict[str, dict[str, Rates]] = {}
    for _, form, result in load_model("llama-7b", "amd-zen4"):
        for engine in result["pairs"][0]:
            speeds = [rates(pair[engine])[what] for pair in result["pairs"]]
            quoted = Rates(statistics.median(speeds), min(speeds), max(speeds))
            found.setdefault(form, {})[engine] = quoted
    return found


def original() -> Iterator[tuple[Json, dict[str, Rates]]]:
    """Rows of the comparison with the original PowerInfer, with the speeds of each engine."""
    for row in load("peers-amd-zen5.json")["rows"]:
        medians = row.get("median", {})
        yield (
            row,
            {
                engine: Rates(medians.get(engine, (low + high) / 2), low, high)
                for engine, (low, high) in row["tokens_per_s"].items()
            },
        )


def _span(values: Iterable[float], digits: int = 1) -> str:
    """`1.7 to 3.7`."""
    found = sorted(values)
    return f"{found[0]:.{digits}f} to {found[-1]:.{digits}f}"


@part("headline")
def _headline() -> str:
    sparse, dense = intel_sparse(), intel_dense("decode")
    f16, q4_0 = (
        _span(speed.ratio.value for speed in sparse if speed.format == form)
        for form in ("F16", "Q4_0")
    )
    quoted, peers = {}, {}
    for row, found in original():
        quoted[row["format"]] = f"{found['ours'].value:.3g}"
        peers[row["format"]] = f"(llama.cpp {found['llama.cpp']}, the original {found['original']})"
    decode, prompt = (
        _span(found["ours"].over(found["llama.cpp"]).value for found in amd_dense(what).values())
        for what in ("decode", "prefill 128")
    )
    return (
        "- **Intel Xeon, 2 cores, against llama.cpp:** models in which "
        f"{_span((100 * speed.active for speed in sparse), 0)} % of the neurons fire decode\n"
        f"  {f16} times as fast in F16 and {q4_0} times in Q4_0.\n"
        "- **AMD Zen 5, 2 cores, against llama.cpp and the original PowerInfer:** 12 of the 32 "
        f"layers of ReluLLaMA-7B\n  decode {quoted['q4_0']} tokens/s in Q4_0 {peers['q4_0']} and "
        f"{quoted['f16']} in F16\n  {peers['f16']}.\n"
        "- **An ordinary Llama (SwiGLU) has nothing to skip:** it decodes at "
        f"{_span(speed.ratio.value for speed in dense)} times llama.cpp's speed on the Intel\n"
        f"  machine and at {decode} times on an AMD Zen 4, where prompts run at {prompt} times.\n"
    )


def _gain(name: str) -> str:
    gains = (
        f"{speed.format} {speed.row['ratio']:.1f}"
        for speed in intel_sparse()
        if speed.model == name
    )
    return f"{', '.join(gains)} ({name})"


for _model, _name in SPARSE.items():
    part(f"gain-{_model}")(partial(_gain, _name))


@table("sparse", "shape | format | neurons that fire | tokens/s | llama.cpp | ratio (range)")
def _sparse() -> Iterator[Row]:
    for speed in intel_sparse():
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
    for row, found in original():
        ours, peers = found["ours"], (found["llama.cpp"], found["original"])
        ratios = (f"{ours.over(peer).value:.2f}" for peer in peers)
        quoted = f"{ours}, quoted {ours.value:.3g}"
        yield row["format"].upper(), quoted, *map(str, peers), *ratios


@table("dense", "machine | format | what | ours | llama.cpp | ik_llama.cpp | ours / llama.cpp")
def _dense() -> Iterator[Row]:
    for what, subject in _SUBJECTS.items():
        for speed in intel_dense(what):
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
