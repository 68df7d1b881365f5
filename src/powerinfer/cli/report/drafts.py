"""Table of `powerinfer bench --draft`."""

from pathlib import Path
from typing import TYPE_CHECKING

from powerinfer.cli.flags.options import print_json
from powerinfer.cli.report.progress import BEGINS_AGAIN, ProgressBar, when_stopped
from powerinfer.cli.report.tables import percent, print_paragraph, print_table
from powerinfer.options.llm_options import LLMOptions

if TYPE_CHECKING:
    from powerinfer.bench.drafts import DraftPlan, DraftReport

__all__ = ["run_drafts"]

_HEADINGS = ("kind", "task", "tokens", "tokens/s", "drafts", "ratio", "accepted", "per step")


def run_drafts(
    model: Path | None, plan: "DraftPlan", options: LLMOptions, *, as_json: bool
) -> None:
    """Measure what drafts win, and print it."""
    from powerinfer.bench.drafts import measure_drafts
    from powerinfer.cli.model import announce, open_llm

    with open_llm(model, options) as llm:
        announce(llm.loaded)
        with when_stopped(BEGINS_AGAIN), ProgressBar("measuring", unit="answers") as progress:
            report = measure_drafts(llm, plan, progress).report(llm)
    if as_json:
        print_json(report)
    else:
        _print_table(report)


def _print_table(report: "DraftReport") -> None:
    rows = [_HEADINGS]
    for task in report["tasks"]:
        share = task["draft_accepted_share"]
        rows.append(
            (
                task["kind"],
                task["task"],
                str(task["tokens"]),
                f"{task['tokens_per_s']:.1f}",
                f"{task['drafts_tokens_per_s']:.1f}",
                f"{task['ratio']:.2f} ({task['ratio_min']:.2f}-{task['ratio_max']:.2f})",
                "" if share is None else percent(share),
                f"{task['tokens_per_step']:.2f}",
            )
        )
    print_paragraph(f"{report['model']}, {report['threads']} threads, {report['kernels']}")
    print_table(rows, left=(0, 1))
    means = ", ".join(f"{kind} {ratio:.2f}" for kind, ratio in report["ratios"].items())
    print_paragraph(f"Mean ratios: {means}. All answers were the same with and without drafts.")
