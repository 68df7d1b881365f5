"""The tests of `tests/gpu`, and NVIDIA's compute-sanitizer watching some of them."""

import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from gpu_check.findings import Finding, Setting, Verdict, verdict_of
from gpu_check.processes import python, started

__all__ = ["check_memcheck", "check_tests"]

_REPOSITORY = Path(__file__).resolve().parents[2]
_FOLDER = _REPOSITORY / "tests" / "gpu"
# What all else builds upon (recording, replaying, handing layers over) is a check of its own.
_FIRST = "test_graph"
_LONGEST_S = 170.0
_USUAL_PLACES = ("/usr/local/cuda/bin/compute-sanitizer", "/opt/cuda/bin/compute-sanitizer")
_FOUND = 99
# Between tensors of torch's cache of memory there is none that a kernel may not touch.
_UNCACHED = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
_REFUSED = "Device not supported"


def check_tests(which: str, setting: Setting) -> Iterator[Finding]:
    """Run modules at once, a process each: most of their time goes into compiling kernels.

    Args:
        which: a module, or "all" for all but the first.
        setting: where to run them.
    """
    others = sorted(path.stem for path in _FOLDER.glob("test_*.py") if path.stem != _FIRST)
    modules = others if which == "all" else [which]
    if which == "all" and not setting.is_cuda:
        yield Finding("the other tests of tests/gpu", Verdict.SKIPPED, "no CUDA")
        return
    ends = time.monotonic() + _LONGEST_S
    with ExitStack() as stack:
        running = []
        for module in modules:
            output = stack.enter_context((setting.folder / f"{module}.log").open("w+"))
            process = stack.enter_context(started(_pytest(module), output, has_group=False))
            running.append((module, process, output))
        for module, process, output in running:
            code = _ended(process, ends)
            output.seek(0)
            printed = output.read()
            print(f"=== {module}\n{printed}", flush=True)
            counts = re.findall(
                r"^=+ (.*\d (?:passed|failed|skipped).*) in ", printed, re.MULTILINE
            )
            failed = re.findall(r"^FAILED .*?::(\S+)", printed, re.MULTILINE)
            text = ", ".join([counts[-1] if counts else "no summary", *failed])
            yield Finding(f"tests, {module}", verdict_of(code == 0), text)


def check_memcheck(module: str, setting: Setting) -> Iterator[Finding]:
    """Look for kernels that touch memory which is not theirs.

    Args:
        module: of tests/gpu.
        setting: where to run it.
    """
    what = f"memcheck, {module}"
    program = shutil.which("compute-sanitizer") or next(
        (place for place in _USUAL_PLACES if Path(place).exists()), None
    )
    if not setting.is_cuda or program is None:
        missing = "no CUDA" if not setting.is_cuda else "compute-sanitizer is not installed"
        yield Finding(what, Verdict.SKIPPED, missing)
        return
    options = ["--tool", "memcheck", "--error-exitcode", str(_FOUND), "--launch-timeout", "120"]
    with (setting.folder / f"memcheck-{module}.log").open("w+") as output:
        # Without torch's cache nothing can be recorded: recording may not take memory.
        command = [program, *options, *_pytest(module), "-k", "not graph"]
        with started(command, output, _UNCACHED, has_group=False) as process:
            code = _ended(process, time.monotonic() + _LONGEST_S)
        output.seek(0)
        printed = output.read()
    print(printed, flush=True)
    if _REFUSED in printed:
        text = "compute-sanitizer does not support this device"
        yield Finding(what, Verdict.SKIPPED, text)
        return
    yield Finding(what, verdict_of(code == 0), _summary(printed, code))


def _ended(process: "subprocess.Popen[str]", ends: float) -> int | None:
    """Exit code; None if it did not end by then, in monotonic seconds."""
    try:
        return process.wait(timeout=max(0.0, ends - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None


def _pytest(module: str) -> list[str]:
    """Without the fixtures of the other tests, which need hypothesis, and without a cache."""
    options: Sequence[str] = (
        *("-v", "-s", "-p", "no:cacheprovider", "-o", "filterwarnings=", "--durations=5"),
        # Settings of plugins that a machine lacks would be errors.
        *("-o", "addopts=--import-mode=importlib"),
        # Of a test that hangs, where.
        *("-o", "faulthandler_timeout=60"),
        *("--rootdir", str(_REPOSITORY), "--confcutdir", str(_FOLDER)),
    )
    return python("-m", "pytest", *options, str(_FOLDER / f"{module}.py"))


def _summary(printed: str, code: int | None) -> str:
    """How many tests had passed, and what the sanitizer counted, if it came to that."""
    passed = len(re.findall(r"^.*\bPASSED\b", printed, re.MULTILINE))
    errors = re.findall(r"ERROR SUMMARY: (\d+) error", printed)
    ended = "its time was over" if code is None else f"exit code {code}"
    counted = errors[-1] if errors else "unknown number of"
    return f"{passed} tests passed, {counted} errors counted, {ended}"
