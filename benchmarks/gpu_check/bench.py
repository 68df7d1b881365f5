"""The part `bench`: CPU and GPU together against layer offload, as a table with its targets."""

import json
from pathlib import Path
from typing import Any

from gpu_check.device_tests import REPOSITORY
from gpu_check.findings import Setting, chosen
from gpu_check.processes import Clock, Log, python, ran
from hybrid_table import eager_rows, table

__all__ = ["bench"]

_BENCHMARK = str(REPOSITORY / "benchmarks" / "hybrid.py")
_SHAPES = ("relullama-7b", "falcon-40b")
_TINY_SHAPES = ("tiny", "tiny-falcon")
# Without a GPU: one side that leaves the CPU work, one that leaves it none.
_TINY = ("--steps", "1", "--only", "ce")


def bench(out: Path, setting: Setting, clock: Clock, only: list[str]) -> int:
    """Run the part; returns the exit code.

    Args:
        out: gets `hybrid-SHAPE.json` for each model, `hybrid.md` and `bench.log`.
        setting: where to run it.
        clock: of the part; each model may take its share of what is left.
        only: beginnings of the names of models; empty for all.
    """
    shapes = chosen(_SHAPES if setting.is_cuda else _TINY_SHAPES, only)
    log = Log(out / "bench.log")
    problems, tables = [], []
    for number, shape in enumerate(shapes):
        path = out / f"hybrid-{shape}.json"
        path.unlink(missing_ok=True)
        command = python(_BENCHMARK, "--shape", shape, "--device", setting.device, "-o", str(path))
        command += ["--threads", str(setting.threads), *(() if setting.is_cuda else _TINY)]
        ended = ran(command, log, clock.left / (len(shapes) - number))
        log.say(f"        {shape}: {ended.text}")
        if ended.code != 0:
            problems.append(f"{shape}: {ended.text}, bench.log says more")
        if not path.exists():
            continue
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        tables.append(table(result))
        problems += [f"{shape}: {row} ran eagerly" for row in eager_rows(result)]
        (out / "hybrid.md").write_text("\n".join(tables), encoding="utf-8")
    log.say("\n".join(tables))
    if not setting.is_cuda:
        log.say("skipped whether rows were recorded, and targets: no CUDA, speeds mean nothing")
    for problem in problems:
        log.say(f"failed  {problem}")
    log.say(f"        {clock.seconds:.0f} s")
    return 1 if problems else 0
