"""Prints where a decode step's time goes: ms, GB and GB/s per operator, beside plain reads.

    python benchmarks/operators.py MODEL --sparsity mlp --sparsity off -o operators.json

A plain read sums the bytes of the same file with as many threads; a plain gather reads as many
scattered rows of the FFN matrices as neurons are active; both in the same run. The FFN is one
native call per layer; the extension's counters say how much of it predictor and down took. A
dense FFN, and one with a `down` whose neurons are columns, is one row.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from powerinfer import LLM
from powerinfer.bench.machine import describe_machine
from timing.operators import PROMPT_TOKENS, STATES, measure_operators, state_share_of_prompt


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--sparsity", action="append", help="KIND or KIND@MAX_FFN_ERROR")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("-o", "--output", type=Path)
    return parser.parse_args()


def _measure(options: argparse.Namespace, sparsity: str | None) -> dict[str, Any]:
    length = PROMPT_TOKENS + 2 * options.steps
    kind, _, error = (sparsity or "").partition("@")
    chosen: dict[str, Any] = {"sparsity": kind} if kind else {}
    if error:
        chosen["max_ffn_error"] = float(error)
    with LLM(
        options.model, threads=options.threads, context_length=length, device="cpu", **chosen
    ) as llm:
        times = measure_operators(llm, options.steps, prompt_tokens=PROMPT_TOKENS)
        has_states = llm.loaded.model.config.state_bytes > 0
        return {
            "model": options.model.name,
            "layers": llm.loaded.model.config.num_layers,
            "sparsity": llm.loaded.model.sparsity,
            "active_share": times.active_share,
            "predicted_share": times.predicted_share,
            "read_gb_per_s": times.read_gb_per_s,
            "gather_gb_per_s": times.gather_gb_per_s,
            "operators": times.rows(),
            "state_share_of_prompt": (state_share_of_prompt(llm) if has_states else None),
        }


def _cell(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _print(result: dict[str, Any]) -> None:
    print(
        f"\n{result['model']}, {result['layers']} layers, sparsity {result['sparsity']}: "
        f"predicted {result['predicted_share']:.3f}, active {result['active_share']:.3f}\n"
    )
    print("| operator | ms | GB | GB/s | plain, GB/s | of plain |")
    print("|---|---|---|---|---|---|")
    for row in result["operators"]:
        share = "" if row["of_plain"] is None else f"{row['of_plain']:.0%}"
        print(
            f"| {row['operator']} | {row['ms']:.1f} | {_cell(row['gb'] or None, 3)} "
            f"| {_cell(row['gb_per_s'], 1)} | {_cell(row['plain_gb_per_s'], 1)} | {share} |"
        )
    if result["state_share_of_prompt"] is not None:
        times = {row["operator"]: row["ms"] for row in result["operators"]}
        print(
            f"\nstates take {times[STATES] / times['total']:.1%} of this step, and "
            f"{result['state_share_of_prompt']:.1%} of a prompt of {PROMPT_TOKENS}"
        )


def main() -> None:
    """Command line."""
    options = _options()
    results = []
    for sparsity in options.sparsity or [None]:
        results.append(_measure(options, sparsity))
        _print(results[-1])
    if options.output:
        report = {"machine": describe_machine(), "threads": options.threads, "results": results}
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf8")


if __name__ == "__main__":
    main()
