"""The engines that compare.py lets run in turns, each run a process of its own."""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = [
    "Run",
    "alternate",
    "drop_cached_pages",
    "ik_commands",
    "original_command",
    "our_command",
    "peer_command",
    "rates",
    "ratio",
    "run",
]

PEERS = Path(__file__).parent.parent / "peers"
Run = dict[str, Any]
_UNKNOWN = "unknown model architecture"


class UnknownModelError(SystemExit):
    """An engine does not know the model's architecture."""


def run(command: list[str]) -> Run:
    """Run one side; what it prints is one JSON object."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        if _UNKNOWN in done.stderr:
            raise UnknownModelError(f"error: {' '.join(command)}: {_UNKNOWN}")
        raise SystemExit(f"error: {' '.join(command)}: {done.stderr.strip()[-500:]}")
    result: Run = json.loads(done.stdout)
    return result


def our_command(model: Path, options: argparse.Namespace, sparsity: str | None = None) -> list[str]:
    """`powerinfer bench` with one repeat; a calibration beside the model is found by itself.

    Args:
        model: the file.
        options: of compare.py.
        sparsity: a kind, or `KIND@ERROR` with the FFN error that it may cause.
    """
    command = [sys.executable, "-m", "powerinfer", "bench", "-m", str(model), "--json"]
    command += ["-t", str(options.threads), "--prefill", options.prefill, "--repeats", "1"]
    command += ["--decode", str(options.decode), *(["--no-mmap"] if options.no_mmap else [])]
    command += ["--kernels", options.kernels] if options.kernels else []
    if sparsity is None:
        return command
    kind, _, max_ffn_error = sparsity.partition("@")
    dial = ["--max-ffn-error", max_ffn_error] if max_ffn_error else []
    return [*command, "--sparsity", kind, *dial]


def peer_command(model: Path, options: argparse.Namespace) -> list[str]:
    """llama.cpp, in the peer's own Python."""
    return _worker(options.peer_python, "llama_cpp_worker.py", model, options)


def ik_commands(model: Path, options: argparse.Namespace) -> dict[str, list[str]]:
    """ik_llama.cpp without and with its run-time repacking; none of them without its Python."""
    if not options.ik_python:
        return {}
    command = _worker(options.ik_python, "ik_llama_cpp_worker.py", model, options)
    command += ["--no-flash-attention"] if options.ik_no_flash_attention else []
    plain = {"ik_llama.cpp": command}
    return plain if options.no_repack else plain | {"ik_llama.cpp -rtr": [*command, "--repack"]}


def original_command(model: Path, options: argparse.Namespace) -> list[str]:
    """The original PowerInfer, whose program is a process of its own."""
    command = _worker(sys.executable, "original_worker.py", model, options)
    return [*command, "--program", options.original]


def _worker(python: str, name: str, model: Path, options: argparse.Namespace) -> list[str]:
    command = [python, str(PEERS / name), str(model), "--threads", str(options.threads)]
    lengths = [length for length in options.prefill.split(",") if length]
    return [*command, "--decode", str(options.decode), "--prefill", *lengths]


def drop_cached_pages(*paths: Path) -> None:
    """Let the first round read the files anew.

    A file that was just written lies in the page cache in small pages, one that was read in large
    ones; reading it from small ones is up to a quarter slower.
    """
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def alternate(label: str, sides: dict[str, list[str]], rounds: int) -> list[dict[str, Run]]:
    """Run every side once per round, in turns, so that a drifting machine spoils no ratio.

    Results lack the versions of ik_llama.cpp if it does not know the model.
    """
    results: list[dict[str, Run]] = []
    known = dict(sides)
    for number in range(rounds):
        results.append({})
        for name, command in list(known.items()):
            try:
                results[-1][name] = run(command)
            except UnknownModelError:
                if not name.startswith("ik"):
                    raise
                del known[name]
        print(f"{label}: round {number + 1}/{rounds}", file=sys.stderr)
    return results


def rates(result: Run) -> dict[str, float]:
    """Tokens/s of one run by what was timed: prefill lengths and decode."""
    found = {f"prefill {n}": float(v) for n, v in result["prefill_tokens_per_s"].items()}
    if "decode_tokens_per_s" in result:
        found["decode"] = float(result["decode_tokens_per_s"])
    return found


def ratio(ours: list[float], peer: list[float]) -> dict[str, float]:
    """Medians of two sides, and median and range of their ratio, taken round by round."""
    ratios = [a / b for a, b in zip(ours, peer, strict=True)]
    return {
        "ours": statistics.median(ours),
        "peer": statistics.median(peer),
        "ratio": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
    }
