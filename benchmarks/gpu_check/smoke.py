"""The part `smoke`: whether everything works, and what nobody knows without a GPU."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from gpu_check import device_tests, findings
from gpu_check.findings import Check, Finding, Setting, Verdict
from gpu_check.logits import check_logits
from gpu_check.memory import check_memory
from gpu_check.planted_models import MODELS, TINY, PlantedModel, make
from gpu_check.processes import Clock, Log, python, ran, started
from gpu_check.programs import check_programs
from gpu_check.prompts import check_prompts
from gpu_check.replays import check_replays
from gpu_machine import describe_gpu

__all__ = ["check_named", "plant", "smoke"]

_TESTS, _PROGRAMS = "tests", "programs"
_KINDS = {
    "logits": check_logits,
    "memory": check_memory,
    "prompts": check_prompts,
    "replays": check_replays,
    _PROGRAMS: check_programs,
}
# The most important first: what the time does not suffice for is said to be missing.
_ON_A_GPU = (
    "logits relullama-7b-f16",
    "logits falcon-40b-q4_0",
    _PROGRAMS,
    "memory relullama-7b-f16",
    "prompts relullama-7b-f16",
    "replays relullama-7b-f16",
    "logits relullama-7b-q4_0",
    "replays relullama-7b-q4_0",
    "logits falcon-40b-f16",
    "prompts falcon-40b-q4_0",
    "memory falcon-40b-q4_0",
    "logits relullama-7b-q8_0",
    "logits falcon-40b-q8_0",
    "replays falcon-40b-q8_0",
    "replays falcon-40b-f16",
)
_WITHOUT_A_GPU = (
    "logits tiny-f16",
    "logits tiny-falcon-q4_0",
    "memory tiny-f16",
    "prompts tiny-f16",
    "replays tiny-f16",
    # Instead of the model of the package, which would take minutes.
    f"{_PROGRAMS} tiny-f16",
)
_FIRST_TESTS_S, _OTHER_TESTS_S, _CHECK_S = 120.0, 150.0, 120.0
# A check that could not even start its interpreter would look like one that hangs.
_LEAST_S = 10.0
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


def check_named(name: str) -> Check:
    """The check of a name such as `logits relullama-7b-f16`."""
    if name == _PROGRAMS:
        return partial(check_programs, None)
    kind, _, model = name.partition(" ")
    return partial(_KINDS[kind], _model_named(model))


def plant(setting: Setting, names: list[str]) -> None:
    """Make the models of these checks."""
    make(_models_of(names), setting.folder)


def smoke(out: Path, setting: Setting, clock: Clock, only: list[str]) -> int:
    """Run the part; returns the exit code.

    Args:
        out: gets `smoke.json` and `smoke.log`.
        setting: where to run it.
        clock: of the part.
        only: beginnings of the names of what shall run; empty for all.
    """
    wanted = findings.chosen([_TESTS, *(_ON_A_GPU if setting.is_cuda else _WITHOUT_A_GPU)], only)
    has_tests, names = _TESTS in wanted, [name for name in wanted if name != _TESTS]
    machine = describe_gpu(setting.device)
    log = Log(out / "smoke.log")
    results = _Results(out / "smoke.json", log, {"machine": machine})
    log.say(f"        on {machine['gpu'] or 'no GPU'}, torch {machine['torch']}")
    if has_tests:
        limit = _FIRST_TESTS_S if setting.is_cuda else _PATIENT_S
        results.add(device_tests.run_first(log, min(limit, clock.left)))
    results.add(*_prepare(setting, clock, log, names, has_tests=has_tests))
    late = []
    for name in names:
        if clock.left < _LEAST_S:
            late.append(name)
            results.add(Finding(name, Verdict.FAILED, "not run: the time is over"))
        else:
            results.add(*_run_check(name, setting, clock, log))
    if late:
        log.say(
            f"        another call runs the rest: ONLY='{','.join(late)}' scripts/gpu-check OUT"
        )
    return _end(results, clock)


def _end(results: _Results, clock: Clock) -> int:
    failed = results.num_failed
    results.save({"seconds": clock.seconds, "failed": failed})
    counts = Counter(finding.verdict.value for finding in results.found)
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    results.log.say(f"        {told}, {clock.seconds:.0f} s")
    return 1 if failed else 0


def _prepare(
    setting: Setting, clock: Clock, log: Log, names: list[str], *, has_tests: bool
) -> Iterator[Finding]:
    """The other tests, while models are made beside them."""
    printed = setting.folder / "planting.log"
    models = _models_of(names)
    with ExitStack() as stack:
        output = stack.enter_context(printed.open("w", encoding="utf-8"))
        command = python("-m", "gpu_check", "plant", str(setting.folder), *_options(setting, names))
        planting = stack.enter_context(started(command, output))
        if has_tests and setting.is_cuda:
            seconds = min(_OTHER_TESTS_S, clock.left)
            yield from device_tests.run_others(log, clock, seconds, setting.folder)
        elif has_tests:
            yield Finding("the other tests of tests/gpu", Verdict.SKIPPED, "no CUDA")
        limit = _CHECK_S if setting.is_cuda else _PATIENT_S
        ends = clock.seconds + min(limit, max(1.0, clock.left))
        while planting.poll() is None and clock.seconds < ends:
            time.sleep(0.1)
    log.write(f"\n=== planting\n{printed.read_text(encoding='utf-8', errors='replace')}")
    if not models:
        return
    missing = [model.name for model in models if not model.path(setting.folder).exists()]
    text = f"not made: {', '.join(missing)}" if missing else f"{len(models)} made"
    yield Finding("planted models", findings.verdict_of(not missing), text)


def _run_check(name: str, setting: Setting, clock: Clock, log: Log) -> Iterator[Finding]:
    """What a check found in a process of its own, and how that process ended."""
    if name != _PROGRAMS and not _model_named(name.partition(" ")[2]).path(setting.folder).exists():
        yield Finding(name, Verdict.FAILED, "not run: its model was not made")
        return
    results = setting.folder / f"{name.replace(' ', '-')}.jsonl"
    command = python("-m", "gpu_check", "check", str(results), *_options(setting, [name]))
    limit = _CHECK_S if setting.is_cuda else _PATIENT_S
    ended = ran(command, log, min(limit, clock.left))
    found = findings.read(results)
    yield from found
    if ended.code:
        yield Finding(name, Verdict.FAILED, f"{ended.text}: smoke.log says more")
    elif ended.code is None:
        yield Finding(name, Verdict.FAILED, ended.text)
    elif not found:
        yield Finding(name, Verdict.FAILED, "found nothing at all")


def _options(setting: Setting, names: list[str]) -> list[str]:
    options = ["--device", setting.device, "--folder", str(setting.folder)]
    options += ["--threads", str(setting.threads)]
    return [*options, *(word for name in names for word in ("--only", name))]


def _models_of(names: list[str]) -> list[PlantedModel]:
    """Models that checks need, each once, in their order."""
    wanted = dict.fromkeys(name.partition(" ")[2] for name in names if name != _PROGRAMS)
    return [_model_named(name) for name in wanted]


def _model_named(name: str) -> PlantedModel:
    return next(model for model in (*MODELS, *TINY) if model.name == name)
