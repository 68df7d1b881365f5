"""Runs a part: its checks in order, each a process, while the models for them are made."""

import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from gpu_check import findings
from gpu_check.checks import names_of, planted_of
from gpu_check.findings import Finding, Setting, Verdict
from gpu_check.page import write_page
from gpu_check.planted_models import PlantedModel, make
from gpu_check.processes import Clock, Log, python, ran, started
from gpu_machine import describe_gpu

__all__ = ["plant", "run_part"]

# A check that could not even start its interpreter would look like one that hangs.
_LEAST_S = 10.0
_LONGEST_S = 180.0
# Interpreted kernels take their time.
_PATIENT_S = 900.0


@dataclass
class _Results:
    """Everything found so far, printed and stored as it comes."""

    path: Path
    log: Log
    about: dict[str, object]
    found: list[Finding] = field(default_factory=list)

    def add(self, *news: Finding) -> None:
        for finding in news:
            self.log.say(finding.line)
        self.found += news
        self.save({})

    def save(self, more: dict[str, object]) -> None:
        self.about |= more
        rows = [finding.as_json() for finding in self.found]
        text = json.dumps(self.about | {"findings": rows}, indent=1)
        self.path.write_text(text + "\n", encoding="utf-8")

    @property
    def num_failed(self) -> int:
        return sum(finding.verdict is Verdict.FAILED for finding in self.found)


def plant(setting: Setting, names: Sequence[str]) -> None:
    """Make the models of these checks."""
    make(_models_of(names), setting.folder)


def run_part(part: str, setting: Setting, clock: Clock, only: Sequence[str]) -> int:
    """Run a part; returns the exit code.

    Args:
        part: key of `PARTS`.
        setting: where to run it; its `out` gets `PART.json`, `PART.log` and `results.md`.
        clock: of the part.
        only: beginnings of the names of what shall run; empty for all.
    """
    names = findings.chosen(names_of(part, is_cuda=setting.is_cuda), only)
    machine = describe_gpu(setting.device)
    log = Log(setting.out / f"{part}.log")
    results = _Results(setting.out / f"{part}.json", log, {"part": part, "machine": machine})
    log.say(f"        on {machine['gpu'] or 'no GPU'}, torch {machine['torch']}")
    late = []
    with ExitStack() as stack:
        printed = stack.enter_context((setting.folder / "planting.log").open("w+"))
        command = python("-m", "gpu_check", "plant", str(setting.out), *_options(setting, names))
        planting = stack.enter_context(started(command, printed))
        for name in names:
            if clock.left < _LEAST_S:
                late.append(name)
                results.add(Finding(name, Verdict.FAILED, "not run: the time is over"))
            else:
                results.add(*_checked(name, setting, clock, log, planting))
        printed.seek(0)
        log.write(f"\n=== planting\n{printed.read()}")
    if late:
        rest = ",".join(late)
        log.say(f"        another call runs the rest: ONLY='{rest}' scripts/gpu-check OUT {part}")
    results.save({"seconds": clock.seconds, "failed": results.num_failed})
    write_page(setting.out)
    counts = Counter(finding.verdict.value for finding in results.found)
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    log.say(f"        {told}, {clock.seconds:.0f} s")
    return 1 if results.num_failed else 0


def _checked(
    name: str, setting: Setting, clock: Clock, log: Log, planting: "subprocess.Popen[str]"
) -> Iterator[Finding]:
    """What a check found in a process of its own, and how that process ended."""
    limit = min(_LONGEST_S if setting.is_cuda else _PATIENT_S, clock.left)
    ends = clock.seconds + limit
    model = planted_of(name)
    if model is not None:
        # All of them: what is being made beside it would slow down what is timed.
        while planting.poll() is None and clock.seconds < ends:
            time.sleep(0.1)
        if not model.path(setting.folder).exists():
            yield Finding(name, Verdict.FAILED, "not run: its model was not made")
            return
    found = setting.folder / f"{name.replace(' ', '-')}.jsonl"
    command = python("-m", "gpu_check", "check", str(setting.out), *_options(setting, [name]))
    ended = ran([*command, "--found", str(found)], log, ends - clock.seconds)
    yield from (news := findings.read(found))
    if ended.code is None:
        yield Finding(name, Verdict.FAILED, ended.text)
    elif ended.code:
        yield Finding(name, Verdict.FAILED, f"{ended.text}: {log.path.name} says more")
    elif not news:
        yield Finding(name, Verdict.FAILED, "found nothing at all")


def _options(setting: Setting, names: Sequence[str]) -> list[str]:
    options = ["--device", setting.device, "--folder", str(setting.folder)]
    options += ["--threads", str(setting.threads)]
    return [*options, *(word for name in names for word in ("--only", name))]


def _models_of(names: Sequence[str]) -> list[PlantedModel]:
    """Models that checks need, each once, in their order."""
    wanted = dict.fromkeys(planted_of(name) for name in names)
    return [model for model in wanted if model is not None]
