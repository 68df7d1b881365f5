"""Prints what thresholds on silu or gelu give and cost: zeros, perplexity, accuracy, tokens/s.

    python benchmarks/thresholds.py MODEL.gguf TEXT -o FOLDER --tasks arc_easy,piqa --data TASKS

FOLDER gets packed.gguf, whose `down` is stored by neurons, quality.json, which `powerinfer bench
--quality` fills and resumes, and decode.json. Speed is compared with the file MODEL.gguf as it is:
a file packed for skipping may be slower where nothing is skipped. Every setting decodes some tokens
of the text in turn, until the time is over; the tenth percentile of the steps counts, which other
programs disturb least.
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
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("-o", dest="folder", type=Path, required=True)
    parser.add_argument("--thresholds", default="0.02,0.05,0.1,0.15,0.2,0.4", help="or auto")
    parser.add_argument("--windows", default="16", help="of 512 tokens, for perplexity")
    parser.add_argument("--seconds", type=float, default=30.0, help="of decoding")
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("--tasks")
    parser.add_argument("--data")
    parser.add_argument("--limit")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    packed = options.folder / "packed.gguf"
    if not packed.exists():
        _powerinfer("pack", options.model, "-o", packed)
    names = options.thresholds.split(",")
    files = [(options.model, None), *((packed, name) for name in (None, *names))]
    rows = _decode(files, options.text, options.threads, options.seconds)
    decoded = {"machine": describe_machine(), "threads": options.threads, "rows": rows}
    (options.folder / "decode.json").write_text(json.dumps(decoded, indent=1) + "\n")
    _print_table(rows, _quality(packed, names, options))


def _powerinfer(*arguments: object) -> str:
    command = [sys.executable, "-m", "powerinfer", *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _quality(packed: Path, names: list[str], options: argparse.Namespace) -> list[Row]:
    """Rows of `bench --quality`, off first."""
    more = [("-t", options.threads), ("--tasks", options.tasks), ("--data", options.data)]
    given = [each for flag, value in more if value for each in (flag, value)]
    given += ["--limit", options.limit] if options.limit else []
    settings = ",".join(f"threshold:{name}" for name in names)
    command = ["bench", "--quality", "-m", packed, "-f", options.text, "--settings", settings]
    command += ["--windows", options.windows, "--decode", 1, "--repeats", 1, *given]
    found = _powerinfer(*command, "-o", options.folder / "quality.json", "--json")
    rows: list[Row] = json.loads(found)["rows"]
    return rows


def _decode(
    files: list[tuple[Path, str | None]], text: Path, threads: int | None, seconds: float
) -> list[Row]:
    content = text.read_text(encoding="utf-8")[: 16 * CONTEXT]
    decoders = [
        TurnDecoder(
            LLM(
                path,
                threads=threads,
                device="cpu",
                activation_threshold=threshold,
                context_length=CONTEXT,
            ),
            content,
        )
        for path, threshold in files
    ]
    decode_in_turns(decoders, seconds)
    return [
        {"file": path.name, "threshold": threshold, **decoder.times()}
        for (path, threshold), decoder in zip(files, decoders, strict=True)
    ]


def _print_table(decoded: list[Row], quality: list[Row]) -> None:
    """Print one Markdown row for each setting, and one for the file as it was."""
    plain, *packed = decoded
    tasks = list(quality[0].get("tasks") or {})
    head = ["setting", "zeros", "perplexity", "change", *tasks, "tokens/s", "speed"]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    _print_row("off, not packed", None, plain, plain, tasks)
    for row, own in zip(packed, quality, strict=True):
        _print_row(own["setting"], own, row, plain, tasks)


def _print_row(name: str, own: Row | None, row: Row, plain: Row, tasks: list[str]) -> None:
    cells = [name, *["-"] * (3 + len(tasks))]
    if own is not None:
        change = 100 * (own["perplexity_ratio"] - 1)
        cells = [name, f"{1 - own['active_share']:.0%}", f"{own['perplexity']:.2f}"]
        cells += [f"{change:+.1f} %", *(f"{own['tasks'][task]['accuracy']:.3f}" for task in tasks)]
    speed = plain["p10_ms"] / row["p10_ms"]
    print("| " + " | ".join([*cells, f"{1e3 / row['p10_ms']:.0f}", f"{speed:.2f}"]) + " |")


if __name__ == "__main__":
    main()
