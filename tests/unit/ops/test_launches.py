"""How much a layer asks of the GPU and of Python: counted, not timed, so that limits are near."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from patience import PATIENCE_S
from torch_device import skip_module_without

skip_module_without("torch", "triton")

SCRIPT = Path(__file__).resolve().parent.parent.parent / "support" / "fake_triton.py"

# Of one layer and one token, eagerly: Triton launches, torch's own, calls of our Python functions.
# On a GPU the hand-off adds two memory operations in S and P, so that the 19 launches of S while
# neurons may move make a graph of 21 nodes. Whoever needs fewer lowers the limit. Python calls have
# some to spare, since a small function more is no harm: a replayed step makes none of them.
LIMITS = {
    ("bamboo", "S", 1, True): (19, 0, 262),
    ("bamboo", "S", 1, False): (18, 0, 260),
    ("bamboo", "P", 1, False): (14, 1, 206),
    ("bamboo", "F", 1, False): (15, 0, 252),
    ("bamboo", "A", 1, False): (12, 1, 158),
    ("bamboo", "C", 1, False): (0, 0, 98),
    ("falcon-powerinfer", "S", 1, False): (17, 0, 260),
    # Without predictors each device finds out for itself which of its neurons fire.
    ("llama-relu", "S", 1, False): (16, 0, 222),
    ("llama-relu", "F", 1, False): (13, 0, 214),
    # Up to eight tokens share the launches of one.
    ("bamboo", "S", 8, False): (18, 0, 260),
    ("falcon-powerinfer", "F", 8, False): (14, 0, 252),
}
# Of a layer and a prompt, by Triton and torch, with a chunk of cold weights in S. A product takes
# two operations more on torch's cpu device than on a GPU.
PROMPTS = {("bamboo", "S"): (14, 54), ("bamboo", "F"): (10, 32), ("llama-relu", "S"): (10, 34)}
LENGTHS = (16, 64)


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> dict[object, dict[str, int]]:
    """Counts of a layer of every case."""
    cases = [*LIMITS, *((*prompt, length, False) for prompt in PROMPTS for length in LENGTHS)]
    folders = [str(SCRIPT.parent), os.environ.get("PYTHONPATH", "")]
    run = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path_factory.mktemp("models")), json.dumps(cases)],
        env=os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join(folders)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return dict(zip(cases, json.loads(run.stdout), strict=True))


def _totals(counts: dict[str, int]) -> tuple[int, int, int]:
    launches = (
        sum(count for name, count in counts.items() if name.startswith(kind))
        for kind in ("triton ", "torch ", "Python ")
    )
    triton, torch, python = launches
    return triton, torch, python


def _table(counts: dict[str, int]) -> str:
    return "\n".join(f"{count:5}  {name}" for name, count in sorted(counts.items()))


@pytest.mark.slow
@pytest.mark.parametrize("case", LIMITS, ids=lambda case: "-".join(map(str, case)))
def test_a_layer_of_a_step_launches_no_more_than_this(
    counted: dict[object, dict[str, int]], case: tuple[str, str, int, bool]
) -> None:
    counts, limits = counted[case], LIMITS[case]
    totals = _totals(counts)
    # A counter that sees nothing would keep any limit.
    assert (totals[0] > 0) == (case[1] != "C")
    assert totals[2] > 0
    assert all(total <= limit for total, limit in zip(totals, limits, strict=True)), (
        f"{totals} launches by Triton and torch and Python calls, limits {limits}:\n"
        f"{_table(counts)}"
    )


@pytest.mark.slow
@pytest.mark.parametrize("prompt", PROMPTS, ids="-".join)
def test_launches_of_a_prompt_do_not_follow_its_length(
    counted: dict[object, dict[str, int]], prompt: tuple[str, str]
) -> None:
    short, long = (counted[*prompt, length, False] for length in LENGTHS)
    grown = {name: long[name] - short.get(name, 0) for name in long}
    launched = sum(count for name, count in grown.items() if not name.startswith("Python"))
    assert launched <= 0, _table({name: count for name, count in grown.items() if count})
    totals = _totals(long)[:2]
    assert all(total <= limit for total, limit in zip(totals, PROMPTS[prompt], strict=True)), (
        f"{totals} launches by Triton and torch, limits {PROMPTS[prompt]}:\n{_table(long)}"
    )
