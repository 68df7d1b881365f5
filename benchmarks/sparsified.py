"""Prints what became of models that `powerinfer sparsify` made: zeros, loss, accuracy, tokens/s.

    python benchmarks/sparsified.py BASE.gguf RUN... --text TEXT -o OUT.json \
        --tasks arc_easy,piqa --data TASKS --limit 500

BASE is the model before, a GGUF file; each RUN is a folder that `powerinfer sparsify` has finished.
It is converted and quantized to the type of `--type`, and so is BASE; the files go to the folder
FILES. All of them decode some tokens of the text in turn, until the time is over; the tenth
percentile of the steps counts, which other programs disturb least. Started again, the command
measures what OUT.json lacks, and all speeds anew.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from powerinfer import LLM
from powerinfer.bench.machine import describe_machine
from timing.decoding import CONTEXT, TurnDecoder, decode_in_turns

Row = dict[str, Any]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("-o", dest="output", type=Path, required=True)
    parser.add_argument("--files", type=Path, default=Path("sparsified"))
    parser.add_argument("--type", default="Q8_0", help="of the files (default Q8_0)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of decoding")
    parser.add_argument("--tasks")
    parser.add_argument("--data")
    parser.add_argument("--limit")
    options = parser.parse_args()
    options.files.mkdir(parents=True, exist_ok=True)
    names = {"base": options.base} | {run.name: run for run in options.runs}
    files = {name: _file(source, name, options) for name, source in names.items()}
    found = json.loads(options.output.read_text()) if options.output.exists() else {"rows": {}}
    found |= {"machine": describe_machine(), "type": options.type, "limit": options.limit}
    for name, source in names.items():
        if name not in found["rows"]:
            found["rows"][name] = _report(source) | _quality(files[name], options)
            _write(options.output, found)
    for name, times in _decode(files, options).items():
        found["rows"][name]["decode"] = times
    _write(options.output, found)
    _print_table(found["rows"])


def _write(path: Path, found: Row) -> None:
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _powerinfer(*arguments: object) -> str:
    command = [sys.executable, "-m", "powerinfer", *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _file(source: Path, name: str, options: argparse.Namespace) -> Path:
    """The file of a model that is measured, made once."""
    folder: Path = options.files
    found, plain = folder / f"{name}.gguf", folder / f"{name}-plain.gguf"
    if not found.exists():
        if source.is_dir():
            _powerinfer("convert", source, "-o", plain)
        else:
            # Matrices that are quantized already would stay as they are.
            _powerinfer("quantize", source, plain, "F16")
        _powerinfer("quantize", plain, found, options.type)
        plain.unlink(missing_ok=True)
    return found


def _report(source: Path) -> Row:
    """What `sparsify` said of its run; nothing of the base."""
    if not source.is_dir():
        return {}
    report: Row = json.loads((source / "sparsify.json").read_text(encoding="utf-8"))
    del report["path"]
    return report


def _quality(file: Path, options: argparse.Namespace) -> Row:
    found: Row = {"bytes": file.stat().st_size}
    scored = json.loads(_powerinfer("perplexity", "-m", file, "-f", options.text, "--json"))
    found["text_perplexity"] = scored["perplexity"]
    if options.tasks:
        command = ["eval", "-m", file, "--tasks", options.tasks, "--data", options.data]
        command += ["--limit", options.limit] if options.limit else []
        found["tasks"] = json.loads(_powerinfer(*command, "--settings", "off", "--json"))["tasks"]
    return found


def _decode(files: dict[str, Path], options: argparse.Namespace) -> dict[str, Row]:
    """Times of each file: the base, and each model dense and skipping its zeros."""
    text = options.text.read_text(encoding="utf-8")[: 16 * CONTEXT]
    models = {
        (name, kind): LLM(path, device="cpu", sparsity=kind, context_length=CONTEXT)
        for name, path in files.items()
        for kind in (("off",) if name == "base" else ("off", "exact"))
    }
    decoders = {key: TurnDecoder(llm, text) for key, llm in models.items()}
    decode_in_turns(list(decoders.values()), options.seconds)
    found: dict[str, Row] = {name: {} for name in files}
    for (name, kind), decoder in decoders.items():
        found[name][kind] = decoder.times()
    return found


def _print_table(rows: dict[str, Row]) -> None:
    base = rows["base"]
    tasks = list(base.get("tasks", {}))
    head = ["model", "tokens", "zeros", "held out", "text", *tasks, "dense, tokens/s", "exact"]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for name, row in rows.items():
        cells = [name, row.get("tokens", ""), f"{row.get('zeros', 0):.1%}"]
        cells += [f"{row['perplexity']:.2f}" if "perplexity" in row else ""]
        cells += [f"{row['text_perplexity']:.2f}"]
        found = row.get("tasks", {})
        cells += [f"{found[task]['off']['accuracy']:.3f}" if found else "" for task in tasks]
        speeds = {kind: 1e3 / each["p10_ms"] for kind, each in row["decode"].items()}
        cells += [f"{speeds['off']:.0f}", f"{speeds['exact']:.0f}" if "exact" in speeds else ""]
        print("| " + " | ".join(map(str, cells)) + " |")


if __name__ == "__main__":
    main()
