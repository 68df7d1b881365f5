"""How many of the faults that `scripts/mutate` puts in are noticed, by area."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from baselines.origin import ROOT, Section

__all__ = ["below", "run_mutants"]


def run_mutants(areas: list[str], options: list[str]) -> dict[str, Section]:
    """Counts of mutants by what became of them, and the percentage noticed, for every area.

    Args:
        areas: of `scripts/mutate`; all for none.
        options: further ones of it, such as ``--show`` to run nothing again.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "counts.json"
        command = [sys.executable, str(ROOT / "scripts" / "mutate"), *areas, *options]
        subprocess.run([*command, "--json", str(output)], check=True)
        counts: dict[str, dict[str, int]] = json.loads(output.read_text(encoding="utf-8"))
    return {area: {**found, "percent": _percent(found)} for area, found in counts.items()}


def _percent(counts: dict[str, int]) -> float:
    run = sum(counts.values()) - counts.get("not run", 0)
    return round(100 * (counts.get("killed", 0) + counts.get("timed out", 0)) / max(1, run), 1)


def below(old: Section, new: Section) -> list[str]:
    """Areas of which fewer faults are noticed."""
    percents = {area: new["areas"].get(area, {}).get("percent", 0) for area in old["areas"]}
    return [
        f"{area}: {percents[area]} % noticed after {was['percent']} %"
        for area, was in old["areas"].items()
        if percents[area] < was["percent"]
    ]
