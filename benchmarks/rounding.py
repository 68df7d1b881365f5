r"""Measures how far the rounding of kernels moves a model from exact arithmetic.

    python benchmarks/rounding.py MODEL.gguf --text stories.txt --peer-python PEER/bin/python \
        -o out.json

Exact arithmetic is `--kernels reference`: products in f64, with keys and values in f16 as
everywhere. Per kernel set the second half of each window is computed as a prompt, and then as
decode steps; llama.cpp, if --peer-python has it, computes it as a prompt. Prints the perplexity,
its distance from that of exact arithmetic, and the mean KL divergence from exact arithmetic's
next-token distributions, both with standard errors over the tokens.
"""

import argparse
import json
import math
import subprocess
import tempfile
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from powerinfer import LLM
from powerinfer.bench.machine import describe_machine
from powerinfer.engine.perplexity import text_windows

WORKER = Path(__file__).parent / "peers" / "llama_cpp_logits.py"
Windows = npt.NDArray[np.int32]  # [windows, window]
Logits = npt.NDArray[np.float32]  # [scored tokens of a window, vocab_size]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--bytes", type=int, default=20_000, help="of the text, from its start")
    parser.add_argument("--window", type=int, default=512, help="tokens")
    parser.add_argument("--kernels", default="avx512,avx2", help="comma-separated")
    parser.add_argument("--peer-python", help="Python that has llama-cpp-python")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--note", default="", help="remark stored with the results")
    parser.add_argument("-o", "--output", type=Path)
    return parser.parse_args()


def our_logits(
    model: Path, windows: Windows, kernels: str, threads: int, *, is_prompt: bool
) -> Iterator[Logits]:
    """Logits of the scored tokens of each window."""
    length = windows.shape[1]
    first = length // 2
    kinds = [True] * first + [is_prompt] * (length - 1 - first)
    with LLM(
        model, kernels=kernels, threads=threads, device="cpu", sparsity="off", context_length=length
    ) as llm:
        for window in windows.tolist():
            sequence = llm.new_sequence()
            yield sequence.extend_scored(window[:-1], length - 1 - first, is_prompt=kinds)


def peer_logits(model: Path, windows: Windows, python: str, threads: int) -> Iterator[Logits]:
    """The same of llama.cpp, computed as a prompt."""
    with tempfile.TemporaryDirectory() as folder:
        tokens, output = Path(folder, "tokens.npy"), Path(folder, "logits.npy")
        np.save(tokens, windows)
        command = [python, str(WORKER), str(model), str(tokens), str(output)]
        subprocess.run([*command, "--threads", str(threads)], check=True)
        yield from np.load(output, mmap_mode="r")


def log_probabilities(logits: Logits) -> npt.NDArray[np.float64]:
    """Log softmax in f64."""
    shifted: npt.NDArray[np.float64] = logits.astype(np.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted


def distance(exact: list[Logits], logits: Iterator[Logits], windows: Windows) -> dict[str, float]:
    """Perplexity and KL divergence of one side, and how far they are from exact arithmetic's."""
    scores, gains, divergences = [], [], []
    for reference, found, window in zip(exact, logits, windows, strict=True):
        p, q = log_probabilities(reference), log_probabilities(found)
        scored = np.arange(len(q)), window[-len(q) :]
        scores.append(q[scored])
        gains.append(p[scored] - q[scored])
        divergences.append((np.exp(p) * (p - q)).sum(axis=-1))
    ratio, ratio_error = _mean(gains)
    kl, kl_error = _mean(divergences)
    return {
        "perplexity": math.exp(-_mean(scores)[0]),
        "log_ratio": ratio,
        "log_ratio_error": ratio_error,
        "kl": kl,
        "kl_error": kl_error,
    }


def _mean(parts: list[npt.NDArray[np.float64]]) -> tuple[float, float]:
    """Mean over all tokens and its standard error."""
    values = np.concatenate(parts)
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values)))


def measure(model: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All sides of one model."""
    with LLM(model, device="cpu") as llm:
        text = options.text.read_bytes()[: options.bytes].decode(errors="ignore")
        tokenizer = llm.loaded.tokenizer
        tokens = tokenizer.encode(text)
        windows = np.array([*text_windows(tokenizer, tokens, options.window)], np.int32)
    threads = options.threads
    exact = [*our_logits(model, windows, "reference", threads, is_prompt=True)]
    logits: dict[str, Iterator[Logits]] = {"exact": iter(exact)}
    for kernels in options.kernels.split(","):
        for name, is_prompt in (("prompt", True), ("decode", False)):
            side = our_logits(model, windows, kernels, threads, is_prompt=is_prompt)
            logits[f"{kernels} {name}"] = side
    if options.peer_python:
        logits["llama.cpp"] = peer_logits(model, windows, options.peer_python, threads)
    sides = {}
    for name, side in logits.items():
        sides[name] = distance(exact, side, windows)
        _print(model, name, sides[name])
    return {
        "model": model.name,
        "windows": len(windows),
        "window": options.window,
        "sides": sides,
    }


def _print(model: Path, side: str, row: dict[str, float]) -> None:
    print(
        f"{model.stem:32} {side:14} {row['perplexity']:9.4f}"
        f"  {100 * row['log_ratio']:+.3f} +- {100 * row['log_ratio_error']:.3f} %"
        f"  KL {row['kl']:.3e} +- {row['kl_error']:.1e}",
        flush=True,
    )


def main() -> None:
    """Command line."""
    options = _options()
    results = [measure(model, options) for model in options.models]
    if options.output:
        report = {
            "machine": describe_machine(),
            "date": f"{date.today()}",
            "text": options.text.name,
            "bytes": options.bytes,
            "note": options.note,
            "results": results,
        }
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf8")


if __name__ == "__main__":
    main()
