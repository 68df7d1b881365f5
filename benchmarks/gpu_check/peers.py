"""llama.cpp's own benchmark on the same file and machine: all layers on the GPU, a third, none.

Both engines compute every neuron here (a SiLU model), so that the kernels and the split are
compared and not the sparsity. Our third is a budget of a third of the file beside what using a GPU
takes; llama.cpp's are whole layers.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from gpu_check.findings import Finding, Setting, Verdict, attempted
from gpu_check.processes import python
from synthetic import SHAPES, write_synthetic

__all__ = ["check_peers"]

_PROGRAM = "LLAMA_BENCH"
# What using a GPU takes by itself: the driver's memory, kernels, workspaces, keys and values.
_OVERHEAD_BYTES = 5 << 28
_PATIENCE_S = 120.0


def check_peers(format_name: str, setting: Setting) -> Iterator[Finding]:
    """One row for each share of the layers on the GPU.

    Args:
        format_name: of the weights.
        setting: where to run it.
    """
    shape = SHAPES["llama-7b" if setting.is_cuda else "tiny"]
    path = setting.folder / f"llama-{format_name}.gguf"
    write_synthetic(path, shape, format_name, repeats=True)
    try:
        for what, layers, device in (
            ("all", shape.num_layers + 1, "cuda"),
            ("a third", round(shape.num_layers / 3), "cuda"),
            ("none", 0, "cpu"),
        ):
            name = f"llama-7b-{format_name}, {what} on the GPU"
            budget = None if what == "all" else path.stat().st_size // 3 + _OVERHEAD_BYTES
            ours = partial(_ours, path, setting, device, budget if device == "cuda" else None)
            theirs = partial(_theirs, path, setting, layers)
            yield from attempted(name, _compared(name, ours, theirs))
    finally:
        path.unlink()


def _compared(name: str, ours: Any, theirs: Any) -> Iterator[Finding]:
    mine, other = ours(), theirs()
    text = f"{mine['decode']:.2f} tokens/s, prompt {mine['prompt']:.0f}"
    figures = {f"our_{key}": value for key, value in mine.items()}
    if other is None:
        yield Finding(
            name, Verdict.OK, f"{text}; skipped llama.cpp: {_PROGRAM} names none", figures
        )
        return
    figures |= {f"llama_cpp_{key}": value for key, value in other.items()}
    ratios = [mine[key] / other[key] for key in ("decode", "prompt")]
    text += (
        f"; llama.cpp {other['decode']:.2f}, prompt {other['prompt']:.0f}; "
        f"ours over theirs {ratios[0]:.2f}, prompt {ratios[1]:.2f}"
    )
    yield Finding(name, Verdict.OK, text, figures)


def _ours(path: Path, setting: Setting, device: str, budget: int | None) -> dict[str, float]:
    sizes = ("512", "32") if setting.is_cuda else ("8", "1")
    command = python("-m", "powerinfer", "bench", "-m", str(path), "--json", "--repeats", "1")
    command += ["--prefill", sizes[0], "--decode", sizes[1], "-c", "640", "--device", device]
    command += ["--threads", str(setting.threads)]
    if device == "cuda":
        command += ["--no-online", "--reset-gpu-index"]
        command += [] if budget is None else ["--vram-budget", f"{budget / (1 << 20):.2f}MiB"]
    report = json.loads(_output(command))
    return {
        "decode": float(report["decode_tokens_per_s"]),
        "prompt": float(report["prefill_tokens_per_s"][sizes[0]]),
    }


def _theirs(path: Path, setting: Setting, layers: int) -> dict[str, float] | None:
    program = os.environ.get(_PROGRAM) or shutil.which("llama-bench")
    if not program:
        return None
    command = [program, "-m", str(path), "-ngl", str(layers), "-t", str(setting.threads)]
    rows = json.loads(_output([*command, "-p", "512", "-n", "32", "-r", "1", "-o", "json"]))
    speeds = {bool(row["n_gen"]): float(row["avg_ts"]) for row in rows}
    return {"decode": speeds[True], "prompt": speeds[False]}


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PATIENCE_S)
    print(f"$ {' '.join(command)}\n{done.stderr}", flush=True)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise RuntimeError(f"{Path(command[0]).name}: exit code {done.returncode}: {last[0]}")
    return done.stdout
