r"""Compares powerinfer with its peers on the same weights, in alternating runs (A B A B ...).

    python benchmarks/compare.py MODEL.gguf --peer-python PEER/bin/python \
        --ik-python IK/bin/python --pairs 5 -o out.json
    python benchmarks/compare.py MODEL.powerinfer.gguf --plain MODEL.gguf \
        --sparsity mlp --sparsity lowbit:2 --peer-python PEER/bin/python -o out.json

The peer's Python has llama-cpp-python, ik's (which may be left out) ik-llama-cpp-python, both built
for the instruction set that `--kernels` names, natively by default. ik_llama.cpp runs without and
with run-time repacking; "better" is, for each figure, the side with the higher median.
Each run is a process of its own; ratios are taken round by round, so a comparison holds while a
shared machine's speed drifts. Prints medians, spread, bytes and GB/s; `-o` writes every run as JSON
with machine and commit.

With `--sparsity` (repeatable) every round runs llama.cpp on the plain file, our dense decode and
each kind on the same file, and prints the byte bound beside each ratio (benchmarks/bounds.py).
`--original` adds the original PowerInfer, which reads the same file and its predictors.
"""

import argparse
import json
import statistics
import sys
from datetime import date
from pathlib import Path
from typing import Any

from comparing.sides import (
    Run,
    alternate,
    drop_cached_pages,
    ik_commands,
    our_command,
    peer_command,
    rates,
    ratio,
)
from comparing.sparse import compare_sparse, print_sparse
from powerinfer.bench.machine import describe_machine


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--plain", type=Path, help="file of the same weights that the peer runs")
    parser.add_argument("--sparsity", action="append", help="KIND or KIND@MAX_FFN_ERROR")
    parser.add_argument(
        "--dense-plain", action="store_true", help="also our dense decode of the --plain file"
    )
    parser.add_argument("--head-apart", action="store_true", help="also without the output head")
    parser.add_argument(
        "--no-mmap", action="store_true", help="our sides copy their weights into huge pages"
    )
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--no-peer", action="store_true", help="only our own dense decode")
    parser.add_argument("--ik-python", help="Python that has ik-llama-cpp-python")
    parser.add_argument("--original", help="program `main` of the original PowerInfer")
    parser.add_argument("--ik-no-flash-attention", action="store_true")
    parser.add_argument("--no-repack", action="store_true", help="no run of ik with -rtr")
    parser.add_argument("--kernels", help="instruction set of our kernels, default the best")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prefill", default="128,512", help="prompt lengths, comma-separated")
    parser.add_argument("--decode", type=int, default=32, help="decode steps per run")
    parser.add_argument("--note", default="", help="remark stored with the results")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if options.sparsity and len(options.models) > 1:
        parser.error("--sparsity compares one model")
    if options.sparsity and not (options.plain or options.no_peer):
        parser.error("--sparsity needs --plain FILE for the peer, or --no-peer")
    if options.dense_plain and not (options.sparsity and options.plain):
        parser.error("--dense-plain needs --plain FILE and --sparsity KIND")
    if options.original and (options.prefill or not options.sparsity):
        parser.error("--original decodes sparse models only: add --sparsity KIND and --prefill ''")
    return options


LLAMA_CPP = "llama.cpp"
_BOUND = ("bytes_per_token", "read_gb_per_s")
Ratios = dict[str, dict[str, dict[str, float]]]


def compare(model: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run the rounds for one model and summarise."""
    sides = {
        "ours": our_command(model, options),
        LLAMA_CPP: peer_command(options.plain or model, options),
        **ik_commands(options.plain or model, options),
    }
    drop_cached_pages(model)
    pairs = alternate(model.name, sides, options.pairs)
    against = _against(pairs)
    return {
        "model": model.name,
        "kernels": pairs[0]["ours"]["kernels"],
        "system_info": {
            side: run["system_info"] for side, run in pairs[0].items() if "system_info" in run
        },
        "file_bytes": model.stat().st_size,
        "summary": against[LLAMA_CPP],
        "against": against,
        "better": _better(against),
        "unknown_to": [side for side in sides if side not in pairs[0]],
        "pairs": pairs,
    }


def _against(pairs: list[dict[str, Run]]) -> Ratios:
    """Our speed over every peer's, by what was timed."""
    rounds = {side: [rates(pair[side]) for pair in pairs] for side in pairs[0]}
    ours = rounds.pop("ours")
    return {
        peer: {
            what: ratio([run[what] for run in ours], [run[what] for run in runs])
            for what in ours[0]
        }
        for peer, runs in rounds.items()
    }


def _better(against: Ratios) -> dict[str, dict[str, str]]:
    """Which of ik's two ways, and which of all peers, is the better one at what was timed.

    Chosen by medians: the best of each round would be lucky twice.
    """
    groups = {"better ik": [peer for peer in against if peer != LLAMA_CPP]}
    groups["better peer"] = list(against)
    return {
        name: {
            what: max(peers, key=lambda peer: against[peer][what]["peer"])
            for what in against[LLAMA_CPP]
        }
        for name, peers in groups.items()
        if len(against) > 1
    }


def _print(result: dict[str, Any]) -> None:
    label = f"{result['model']} {result['kernels']}"
    for what in result["summary"]:
        rows = [(peer, table[what]) for peer, table in result["against"].items()]
        rows += [
            (f"{name}: {chosen[what]}", result["against"][chosen[what]][what])
            for name, chosen in result["better"].items()
        ]
        for peer, row in rows:
            print(
                f"{label:34} {what:12} ours {row['ours']:8.2f}  {peer:30} {row['peer']:8.2f}"
                f"  ratio {row['ratio']:.2f} ({row['ratio_min']:.2f}-{row['ratio_max']:.2f})"
            )
    for side in result["unknown_to"]:
        print(f"{label:34} {side} does not know this model")
    runs = [pair["ours"] for pair in result["pairs"]]
    if "bytes_per_token" in runs[0]:
        size, rate = (statistics.median(r[k] for r in runs) for k in _BOUND)
        print(
            f"{label:34} byte bound   {1e9 * rate / size:.2f} tokens/s: {size / 1e6:.1f} MB per "
            f"token, states included, at {rate:.1f} GB/s"
        )
    for key in ("gb_per_s", "read_gb_per_s", "read_share", "python_share"):
        if key in runs[0]:
            print(f"{label:34} {key:12} {statistics.median(r[key] for r in runs):.3f}")


def main() -> None:
    """Command line."""
    options = _options()
    results = []
    for model in options.models:
        if options.sparsity:
            results.append(compare_sparse(model, options))
            print_sparse(results[-1])
        else:
            results.append(compare(model, options))
            _print(results[-1])
    if options.output:
        report = {
            "machine": describe_machine(),
            "date": f"{date.today()}",
            "threads": options.threads,
            "kernels": options.kernels,
            "note": options.note,
            "results": results,
        }
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf8")


if __name__ == "__main__":
    main()
