r"""Measures how far each type of `powerinfer quantize` moves a model from its F16 form.

    powerinfer quantize MODEL.gguf f16.gguf F16
    python benchmarks/quantizers.py f16.gguf --text src/powerinfer/data/calibration.txt -o out.json

The second half of each window is scored as a prompt. Prints the size, the perplexity, its ratio to
that of F16, and the mean KL divergence from F16's next-token distributions with its standard error.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from powerinfer import LLM
from powerinfer.bench.machine import describe_machine
from powerinfer.convert.quantize.file_types import find_file_type
from powerinfer.convert.quantize.plan import QuantizeOptions
from powerinfer.convert.quantize.quantize import quantize
from powerinfer.engine.perplexity import text_windows
from powerinfer.gguf import open_gguf
from powerinfer.ops.cpu.machine import machine_info
from rounding import distance, our_logits

TYPES = "BF16,Q8_0,Q6_K,Q5_K_M,Q5_K_S,Q5_1,Q5_0,Q4_K_M,Q4_K_S,Q4_1,Q4_0"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="in F16")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--types", default=TYPES, help="comma-separated")
    parser.add_argument("--window", type=int, default=512, help="tokens")
    parser.add_argument("--kernels", default=machine_info().available_kernels[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("-o", "--output", type=Path)
    return parser.parse_args()


def measure(
    model: Path, text: str, types: Sequence[str], window: int, kernels: str, threads: int
) -> list[dict[str, Any]]:
    """A row for F16, and one for each type."""
    with LLM(model, device="cpu") as llm:
        tokenizer = llm.loaded.tokenizer
        windows = np.array([*text_windows(tokenizer, tokenizer.encode(text), window)], np.int32)
    exact = [*our_logits(model, windows, kernels, threads, is_prompt=True)]
    rows = [_row("F16", model, distance(exact, iter(exact), windows))]
    source = open_gguf(model)
    for name in types:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "quantized.gguf"
            quantize(source, path, QuantizeOptions(find_file_type(name), threads))
            logits = our_logits(path, windows, kernels, threads, is_prompt=True)
            rows.append(_row(name, path, distance(exact, logits, windows)))
    return rows


def _row(name: str, path: Path, found: dict[str, float]) -> dict[str, Any]:
    num_bytes = path.stat().st_size
    row = {"type": name, "bytes": num_bytes, **found}
    print(
        f"{name:8} {num_bytes / 1e6:7.1f} MB  perplexity {row['perplexity']:9.4f}"
        f"  KL {row['kl']:.3e} +- {row['kl_error']:.1e}",
        flush=True,
    )
    return row


def main() -> None:
    """Command line."""
    options = _options()
    text = options.text.read_text(encoding="utf-8")
    types = options.types.split(",")
    rows = measure(options.model, text, types, options.window, options.kernels, options.threads)
    if options.output:
        report = {
            "machine": describe_machine(),
            "date": f"{date.today()}",
            "kernels": options.kernels,
            "text": options.text.name,
            "window": options.window,
            "rows": rows,
        }
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
