"""Trained models that could not be fetched yet: what is expected, null until somebody ran one.

`scripts/real-models ROW` fetches the file and runs this module on it, which prints what it found
and compares it with the row. Sources are names that were never resolved here.
"""

import hashlib
import json
import math
import sys
from pathlib import Path
from typing import TypedDict

import numpy as np

from powerinfer import LLM, SamplingParams
from powerinfer.engine.perplexity import scored_windows
from real_models import MAX_TOKENS, PERPLEXITY_TEXT, PROMPTS, WINDOW

__all__ = ["LIMIT", "Found", "differences", "examine", "read_rows"]

ROWS = Path(__file__).with_name("real_model_rows.json")
LIMIT = 0.01
"""Relative difference of perplexities: kernels of several machines round differently."""


class Found(TypedDict):
    """What a file is and does; the text is greedy, behind the first of `PROMPTS`."""

    source: str
    sha256: str | None
    text: str | None
    perplexity: float | None


def read_rows() -> dict[str, Found]:
    """All rows by name."""
    rows: dict[str, Found] = json.loads(ROWS.read_text(encoding="utf-8"))
    return rows


def examine(path: Path, source: str) -> Found:
    """Run a model: its text, and its perplexity on the text of the other real model."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    with LLM(path, device="cpu", context_length=WINDOW) as llm:
        params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
        text = llm.generate([PROMPTS[0]], params)[0].text
        scores = scored_windows(llm, llm.encode(PERPLEXITY_TEXT), WINDOW)
        mean = np.concatenate([score.token_logprobs for score in scores]).mean()
    return Found(source=source, sha256=digest, text=text, perplexity=math.exp(-mean))


def differences(row: Found, found: Found) -> list[str]:
    """Say what is not as the row expects; what it does not know yet is no difference."""
    said = [
        f"{key}: {found[key]!r}, expected {row[key]!r}"
        for key in ("sha256", "text")
        if row[key] not in (None, found[key])
    ]
    expected, got = row["perplexity"], found["perplexity"]
    if expected is not None and not math.isclose(got or 0, expected, rel_tol=LIMIT):
        said.append(f"perplexity: {got}, expected {expected}")
    return said


def main(name: str, path: Path) -> int:
    """Print the row as it was found; 1 if it differs."""
    row = read_rows()[name]
    found = examine(path, row["source"])
    print(json.dumps({name: found}, ensure_ascii=False, indent=1))
    if None in row.values():
        print(f"not yet run before: fill the row {name} of {ROWS} in", file=sys.stderr)
    problems = differences(row, found)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
