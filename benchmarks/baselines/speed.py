"""Speeds of two checkouts in turns, A B A B: the embedded model, and few layers of 7B width."""

import json
import os
import statistics
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

from baselines.origin import ROOT, Section, commit_of

__all__ = ["below", "compare_speeds"]

_LEAST_RATIO = 0.97
_PROMPT = 128
_WIDE = ("--shape", "llama-7b", "--layers", "2", "--format", "q4_0")


def compare_speeds(other: Path, pairs: int) -> Section:
    """Tokens per second of this checkout and another, whose `.venv` each have the package.

    Returns:
        the other's commit, and for every model and kind of step both sides' figures in the order
        they were measured, their medians, and the median of the pairs' ratios.
    """
    commit = commit_of(other)
    models: Section = {}
    for name, options in (("embedded", []), ("llama-7b-2L-q4_0", ["-m", str(_wide_model())])):
        figures: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for _ in range(pairs):
            for side, checkout in (("this", ROOT), ("other", other)):
                found = _bench(checkout, options)
                figures["decode"][side].append(found["decode_tokens_per_s"])
                figures["prompt"][side].append(found["prefill_tokens_per_s"][str(_PROMPT)])
        models[name] = {kind: _summary(sides) for kind, sides in figures.items()}
    return {"other": commit, "models": models}


def _wide_model() -> Path:
    path = ROOT / "build" / "models" / "llama-7b-2L-q4_0.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        program = str(ROOT / "benchmarks" / "synthetic.py")
        subprocess.run([_python(ROOT), program, *_WIDE, "-o", str(path)], check=True)
    return path


def _python(checkout: Path) -> str:
    return str(checkout.absolute() / ".venv" / "bin" / "python")


def _bench(checkout: Path, options: list[str]) -> Any:
    """What `powerinfer bench` of a checkout prints."""
    command = [_python(checkout), "-m", "powerinfer", "bench", "--json", "--device", "cpu"]
    command += ["--prefill", str(_PROMPT), "--decode", "32", "--repeats", "5", *options]
    # A path to one checkout's sources would show both the same.
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, cwd=checkout, env=environment, text=True
    )
    return json.loads(ran.stdout)


def _summary(sides: dict[str, list[float]]) -> Section:
    ratios = [ours / theirs for ours, theirs in zip(sides["this"], sides["other"], strict=True)]
    return {
        **{side: [round(each, 2) for each in figures] for side, figures in sides.items()},
        "median_this": round(statistics.median(sides["this"]), 2),
        "median_other": round(statistics.median(sides["other"]), 2),
        "ratio": round(statistics.median(ratios), 3),
    }


def below(old: Section, new: Section) -> list[str]:
    """Models that became slower than the checkout beside them, which should be the old one."""
    lines = []
    if new["other"] != old["origin"]["commit"]:
        lines.append(f"measured beside {new['other']}, not {old['origin']['commit']}")
    for model, kinds in old["models"].items():
        for kind in kinds:
            ratio = new["models"].get(model, {}).get(kind, {}).get("ratio", 0)
            if ratio < _LEAST_RATIO:
                lines.append(f"{kind} of {model}: {ratio} of the speed")
    return lines
