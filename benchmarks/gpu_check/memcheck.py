"""The part `memcheck`: NVIDIA's compute-sanitizer watches the kernels of FFN and attention."""

import re
import shutil
from pathlib import Path

from gpu_check.device_tests import pytest_command
from gpu_check.findings import Setting, chosen
from gpu_check.processes import Clock, Log, ran

__all__ = ["memcheck"]

_MODULES = ("test_ffn", "test_attention")
_USUAL_PLACES = ("/usr/local/cuda/bin/compute-sanitizer", "/opt/cuda/bin/compute-sanitizer")
_FOUND = 99
# Between tensors of torch's cache of memory there is none that a kernel may not touch.
_ENVIRONMENT = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
_REFUSED = "Device not supported"


def memcheck(out: Path, setting: Setting, clock: Clock, only: list[str]) -> int:
    """Run the part; returns the exit code.

    Args:
        out: gets `memcheck.log`.
        setting: where to run it.
        clock: of the part; each module may take its share of what is left.
        only: beginnings of the names of modules; empty for all.
    """
    modules = chosen(_MODULES, only)
    log = Log(out / "memcheck.log")
    if not setting.is_cuda:
        log.say("skipped memcheck: no CUDA")
        return 0
    program = _program()
    if program is None:
        log.say("skipped memcheck: compute-sanitizer is not installed")
        return 0
    num_failed = 0
    for number, module in enumerate(modules):
        options = ["--tool", "memcheck", "--error-exitcode", str(_FOUND), "--launch-timeout", "120"]
        command = [program, *options, *pytest_command([module])]
        seconds = clock.left / (len(modules) - number)
        seen = log.path.stat().st_size
        ended = ran(command, log, seconds, _ENVIRONMENT)
        printed = log.path.read_text(encoding="utf-8", errors="replace")[seen:]
        if _REFUSED in printed:
            log.say("skipped memcheck: compute-sanitizer does not support this device")
            return 0
        is_right = ended.code == 0
        num_failed += not is_right
        log.say(f"{'ok' if is_right else 'failed':<8}{module}: {_summary(printed)}, {ended.text}")
    log.say(f"        {clock.seconds:.0f} s")
    return 1 if num_failed else 0


def _program() -> str | None:
    found = shutil.which("compute-sanitizer")
    return found or next((place for place in _USUAL_PLACES if Path(place).exists()), None)


def _summary(printed: str) -> str:
    """How many tests had passed, and what the sanitizer counted, if it came to that."""
    passed = len(re.findall(r"^.*\bPASSED\b", printed, re.MULTILINE))
    errors = re.findall(r"ERROR SUMMARY: (\d+) error", printed)
    return f"{passed} tests passed, {errors[-1] if errors else 'unknown number of'} errors counted"
