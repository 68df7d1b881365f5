"""The measured decode and prompt speeds that the pages quote, read from `benchmarks/results`."""

import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired, TypedDict

from comparing.sides import Run, rates

__all__ = [
    "AMD_FOLDER",
    "DENSE_MODEL",
    "FORMAT_NAMES",
    "MODEL_NAMES",
    "AmdRow",
    "Measured",
    "Pair",
    "Rates",
    "load_measured",
]

MODEL_NAMES = {
    "relullama-7b": "ReluLLaMA-7B",
    "turbosparse-mistral-7b": "TurboSparse-Mistral-7B",
    "opt-6.7b": "OPT-6.7B",
    "falcon-40b": "Falcon-40B",
    "llama-7b": "Llama-7B",
}
FORMAT_NAMES = {
    "f16": "F16",
    "q8_0": "Q8_0",
    "q6_k": "Q6_K",
    "q4_k": "Q4_K",
    "q4_k_m": "Q4_K_M",
    "q4_0": "Q4_0",
}
DENSE_MODEL = "llama-7b"
AMD_FOLDER = Path(__file__).resolve().parent.parent / "results" / "amd-zen4"
_AMD_ORIGINAL = "peers-amd-zen5.json"


class Ratio(TypedDict):
    """Speeds of one kind, as the result files have them: tokens per second and their ratio."""

    ours: float
    peer: float
    ratio: float
    ratio_min: float
    ratio_max: float


class KindRow(TypedDict):
    """A sparse setting in a result file."""

    active_share: float
    against: dict[str, dict[str, Ratio]]


class Result(TypedDict):
    """One model of a result file: what is read of it here."""

    kinds: NotRequired[dict[str, KindRow]]
    summary: NotRequired[dict[str, Ratio]]
    pairs: NotRequired[list[dict[str, Run]]]


class AmdRow(TypedDict):
    """A row of the report beside the original PowerInfer: what is read of it here."""

    model: str
    format: str
    what: str
    tokens_per_s: dict[str, tuple[float, float]]
    median: NotRequired[dict[str, float]]
    predicted: float


class AmdReport(TypedDict):
    """The report beside the original PowerInfer: what is read of it here."""

    rows: list[AmdRow]


@dataclass(frozen=True)
class Rates:
    """Tokens per second of one engine: what is quoted, and the range that was measured."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Pair:
    """Our speed over llama.cpp's on the same file and machine.

    Attributes:
        model: key of `MODEL_NAMES`.
        format: key of `FORMAT_NAMES`.
        layers: so many of the model's layers were measured, with the whole output head.
        kind: which neurons ran, a value of `--sparsity`; `off` is dense.
        ratio: of the decode speeds, with its range over the rounds.
        ours: tokens per second.
        peer: tokens per second of llama.cpp.
        active: share of the neurons that fired; 1 where all were computed.
        prompt: tokens per second of a prompt of 128, ours and llama.cpp's, and their ratio; None
            where it was not measured.
    """

    model: str
    format: str
    layers: int
    kind: str
    ratio: Rates
    ours: float
    peer: float
    active: float
    prompt: tuple[float, float, float] | None


@dataclass(frozen=True)
class Measured:
    """All of it.

    Attributes:
        intel: sparse models on the Intel machine, in the order of `MODEL_NAMES`.
        intel_dense: an ordinary Llama there.
        original: rows beside the original PowerInfer, on an AMD Zen 5: (model, format, what) to
            engine to speed.
        original_predicted: shares of the neurons that the predictors let pass there.
        amd_dense: an ordinary Llama on an AMD Zen 4: (format, what) to engine to speed.
    """

    intel: tuple[Pair, ...]
    intel_dense: tuple[Pair, ...]
    original: dict[tuple[str, str, str], dict[str, Rates]]
    original_predicted: tuple[float, ...]
    amd_dense: dict[tuple[str, str], dict[str, Rates]]


def load_measured(folder: Path) -> Measured:
    """Read the results.

    Args:
        folder: of the JSON files.

    Raises:
        KeyError: a file lacks what the pages quote.
    """
    report: AmdReport = json.loads((folder / _AMD_ORIGINAL).read_text(encoding="utf-8"))
    return Measured(
        tuple(_sparse_pairs(folder)),
        tuple(_dense_pairs(folder)),
        _original_rows(report),
        tuple(row["predicted"] for row in report["rows"]),
        dict(_amd_dense()),
    )


def _results(folder: Path, model: str) -> Iterator[tuple[str, int, Result]]:
    """Format, number of layers and result of a model; of several files the one with most layers."""
    for format_ in FORMAT_NAMES:
        files = folder.glob(f"{model}-*L-{format_}.json")
        counted = sorted(
            (int(path.stem.removeprefix(f"{model}-").split("L-")[0]), path) for path in files
        )
        if counted:
            layers, path = counted[-1]
            result: Result = json.loads(path.read_text(encoding="utf-8"))["results"][0]
            yield format_, layers, result


def _sparse_pairs(folder: Path) -> Iterator[Pair]:
    """Each sparse model with the predictors of its file, as stored or encoded again."""
    for model in MODEL_NAMES:
        if model == DENSE_MODEL:
            continue
        for format_, layers, result in _results(folder, model):
            kind, row = next(
                (kind, row) for kind, row in result["kinds"].items() if kind.startswith("mlp")
            )
            decode = row["against"]["llama.cpp"]["decode"]
            yield Pair(
                model=model,
                format=format_,
                layers=layers,
                kind=kind,
                ratio=_rates(decode),
                ours=decode["ours"],
                peer=decode["peer"],
                active=row["active_share"],
                prompt=_prompt(result),
            )


def _dense_pairs(folder: Path) -> Iterator[Pair]:
    for format_, layers, result in _results(folder, DENSE_MODEL):
        decode = result["summary"]["decode"]
        yield Pair(
            model=DENSE_MODEL,
            format=format_,
            layers=layers,
            kind="off",
            ratio=_rates(decode),
            ours=decode["ours"],
            peer=decode["peer"],
            active=1.0,
            prompt=_prompt(result),
        )


def _rates(decode: Ratio) -> Rates:
    return Rates(decode["ratio"], decode["ratio_min"], decode["ratio_max"])


def _prompt(result: Result) -> tuple[float, float, float] | None:
    prompt = result.get("summary", {}).get("prefill 128")
    return None if prompt is None else (prompt["ours"], prompt["peer"], prompt["ratio"])


def _amd_dense() -> Iterator[tuple[tuple[str, str], dict[str, Rates]]]:
    results = list(_results(AMD_FOLDER, DENSE_MODEL))
    for what in ("prefill 128", "decode"):
        for format_, _, result in results:
            sides: dict[str, list[float]] = {}
            for pair in result["pairs"]:
                for engine, each in pair.items():
                    sides.setdefault(engine, []).append(rates(each)[what])
            yield (
                (format_, what),
                {
                    engine: Rates(statistics.median(each), min(each), max(each))
                    for engine, each in sides.items()
                },
            )


def _original_rows(report: AmdReport) -> dict[tuple[str, str, str], dict[str, Rates]]:
    return {
        (row["model"], row["format"], row["what"]): {
            engine: Rates(row.get("median", {}).get(engine, (low + high) / 2), low, high)
            for engine, (low, high) in row["tokens_per_s"].items()
        }
        for row in report["rows"]
    }
