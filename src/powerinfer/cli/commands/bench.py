"""Measure how fast a model runs on this machine, and what sparsity costs in quality.

Prefill and decode in tokens/s, the bytes that a token reads, and the rate of a plain read of the
same bytes. With --quality, one row of speed and perplexity per sparsity setting. With --draft,
what guessed tokens win on tasks of several kinds.
"""

import math
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerinfer.cli.files import PathType
from powerinfer.cli.flags.flags import flag, llm_options
from powerinfer.cli.flags.options import (
    engine_options,
    json_option,
    option,
    print_json,
    read_names,
    read_tasks,
    task_options,
)
from powerinfer.cli.report.progress import BEGINS_AGAIN, ProgressBar, when_stopped
from powerinfer.cli.report.tables import percent, print_paragraph, print_table
from powerinfer.options.option_kinds import DRAFT_OFF, read_draft
from powerinfer.options.options import AUTO

if TYPE_CHECKING:
    from powerinfer.bench.speed import SpeedReport, SpeedResult
    from powerinfer.cli.model import DeviceReport

__all__ = ["COMMAND"]

DEFAULT_WINDOW = 512
DEFAULT_DECODE = 32
DEFAULT_ANSWER = 256

_EPILOG = """\b
Examples:
  powerinfer bench -m model.gguf
  powerinfer bench -m model.gguf -t 4 --prefill 512 --decode 64 --repeats 5
  powerinfer bench -m model.gguf --json > result.json
  powerinfer bench --quality
  powerinfer bench --quality -f text.txt --settings off,exact,auto,lowbit:3
  powerinfer bench --quality -f text.txt --settings sign,lowbit:2 --errors 0.005,0.01,0.02
  powerinfer bench --quality -f text.txt --settings threshold:0.05,threshold:0.1
  powerinfer bench --quality -f text.txt --tasks copa,./mine.jsonl --data tasks/ -o table.json
  powerinfer bench --draft -m model.gguf
  powerinfer bench --draft --draft-acceptance 0.7 -m model.gguf
  powerinfer bench serve -m model.gguf --clients 1,4,16

`powerinfer bench serve` measures a server with many clients; see its --help.

Prompts are random tokens. Figures are medians over the repeats, after one round
that does not count. Close other programs first: decoding is bound by memory
bandwidth, which all cores share.

--quality scores windows of -c tokens (512) as `powerinfer perplexity` does, and
decodes along the same text, so that all settings compute the same tokens. Give
a text that the model was not calibrated on. Rows are measured one after the
other, so do not compare their tokens/s: the machine may have been busier during
one of them. Compare speedups; --repeats shows their spread.

--draft has a chat model correct texts, edit code, fill in JSON and write prose,
greedily, each with and without drafts in turns, and checks that the answers are
the same. --draft-acceptance takes drafts that are right that often instead, so
that speeds can be compared whatever a model would copy.
"""


def _lengths(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[int, ...]:
    """Parse `128,512`; an empty text measures no prefill."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise click.BadParameter(f"{text!r} is not a list of prompt lengths such as 128,512")
    return tuple(int(part) for part in parts)


def _draft(_context: click.Context, _parameter: click.Parameter, mode: str | None) -> str | None:
    """Check the mode of drafts; none is no measurement."""
    try:
        checked = None if mode is None else read_draft(mode)
    except ValueError as error:
        raise click.BadParameter(f"must be {error}, got {mode!r}") from None
    if checked == DRAFT_OFF:
        raise click.BadParameter("there is nothing to measure with off; give auto or ngram:N")
    return checked


def _acceptance(
    _context: click.Context, _parameter: click.Parameter, value: float | None
) -> float | None:
    """Refuse NaN, which is within any range."""
    if value is not None and math.isnan(value):
        raise click.BadParameter("nan is not in the range 0<=x<=1.")
    return value


def _errors(
    _context: click.Context, _parameter: click.Parameter, text: str
) -> tuple[float | None, ...]:
    """Parse `default,0.005,0.01`."""
    parts = [part.strip().lower() for part in text.split(",") if part.strip()]
    try:
        errors = tuple(None if part == "default" else float(part) for part in parts)
    except ValueError:
        errors = (math.nan,)
    if not all(error is None or 0 < error <= 1 for error in errors):
        raise click.BadParameter(
            f"{text!r} is not a list of errors above 0 and at most 1, such as default,0.005,0.01"
        )
    return errors


@click.command(epilog=_EPILOG)
@option(
    "--prefill N,N",
    "Prompt lengths to measure, in tokens; '' measures none.",
    name="prefill_lengths",
    default="128,512",
    callback=_lengths,
)
@option(
    "--decode N",
    "Tokens to decode per repeat; 0 measures none. [default: 32, with --draft at most 256]",
    click.IntRange(min=0),
    name="decode_steps",
)
@option("--repeats N", "Rounds to measure.", click.IntRange(min=1), default=3)
@option(
    "--quality", "Measure speed and quality of several sparsity settings on one text, one row each."
)
@option(
    "-f --file PATH",
    "Text for --quality, UTF-8; - is stdin. [default: the bundled text]",
    PathType(),
)
@option(
    "--settings S,S",
    "Sparsity settings for --quality: off, exact, default, auto, predictor kinds, or threshold:X "
    "for --activation-threshold X. [default: off, exact, default, oracle, and each built-in kind "
    "that the model can run]",
    default="",
    callback=read_names,
)
@option(
    "--errors X,X",
    "Also measure each predictor kind at these values of --max-ffn-error. default means the "
    "kind's own threshold, for mlp the one in the file, even with a calibration; it replaces "
    "the row without a limit.",
    default="",
    callback=_errors,
)
@click.option(
    "--draft",
    metavar="[MODE]",
    is_flag=False,
    flag_value=AUTO,
    callback=_draft,
    help="Measure drafts of this mode (auto unless given) against none; see `powerinfer run`.",
)
@flag("draft_model")
@option(
    "--draft-acceptance X",
    "Probability that a drafted token is right, for --draft: drafts come from the known answer.",
    click.FloatRange(0, 1),
    callback=_acceptance,
)
@task_options
@option(
    "-o --output FILE",
    "Save each row of --quality to this JSON file as soon as it is measured. The same "
    "command again, also with other --settings and --errors, measures only what the file "
    "lacks.",
    PathType(),
)
@option(
    "--windows N",
    "Score at most N windows of the text with --quality.",
    click.IntRange(min=1),
    name="num_windows",
    default=16,
)
@engine_options
@json_option
def bench(
    model: Path | None,
    prefill_lengths: tuple[int, ...],
    decode_steps: int | None,
    repeats: int,
    quality: bool,
    file: Path | None,
    settings: tuple[str, ...],
    errors: tuple[float | None, ...],
    tasks: tuple[str, ...],
    data: Path | None,
    limit: int | None,
    output: Path | None,
    num_windows: int,
    draft: str | None,
    draft_acceptance: float | None,
    as_json: bool,
    **flags: object,
) -> None:
    """Measure how fast a model runs on this machine, and what sparsity costs in quality."""
    options = llm_options(flags)
    for name, given in (("acceptance", draft_acceptance), ("model", flags["draft_model"])):
        if given is not None and draft is None:
            raise click.UsageError(f"--draft-{name} is for --draft: give --draft too")
    if draft is not None and quality:
        raise click.UsageError("--draft and --quality are two measurements: give one of them")
    of_quality = (("settings", settings), ("errors", errors), ("file", file), ("tasks", tasks))
    for name, value in (*of_quality, ("data", data), ("limit", limit), ("output", output)):
        if value and not quality:
            raise click.UsageError(f"--{name} is for --quality: give --quality too")
    if draft is not None:
        from powerinfer.bench.drafts import DraftPlan
        from powerinfer.cli.report.drafts import run_drafts

        num_tokens = DEFAULT_ANSWER if decode_steps is None else max(decode_steps, 2)
        drafts = DraftPlan(draft, draft_acceptance, num_tokens, repeats)
        run_drafts(model, drafts, options, as_json=as_json)
        return
    decode_steps = DEFAULT_DECODE if decode_steps is None else decode_steps
    if quality:
        from powerinfer.bench.quality_row import QualityPlan
        from powerinfer.cli.report.quality import QualityJob, run_quality

        window = options.get("context_length") or DEFAULT_WINDOW
        wanted = QualityPlan(settings, errors, window, num_windows, decode_steps, repeats)
        job = QualityJob(wanted, read_tasks(tasks, data, limit), file, output)
        run_quality(model, job, options, as_json=as_json)
        return
    from powerinfer.bench.speed import SpeedPlan, measure_speed
    from powerinfer.cli.model import announce, device_report, open_llm
    from powerinfer.cli.report.sparsity import print_recall, sparsity_report

    plan = SpeedPlan(prefill_lengths, decode_steps, repeats)
    options["context_length"] = options.get("context_length") or plan.context_length
    with open_llm(model, options) as llm:
        announce(llm.loaded)
        with when_stopped(BEGINS_AGAIN), ProgressBar("measuring", unit="rounds") as progress:
            result = measure_speed(llm, plan, progress)
        report, device = result.report(llm), device_report(llm.loaded)
        sparsity = sparsity_report(llm.loaded)
        print_recall(llm.loaded.model)
    if as_json:
        print_json({**report, **sparsity, **device})
    else:
        _print_table(report, device, result)


def _print_table(report: "SpeedReport", device: "DeviceReport", result: "SpeedResult") -> None:
    from powerinfer.store.memory import format_bytes

    kernels = report["kernels"] + ("" if device["device"] == "cpu" else f" and {device['device']}")
    rows = [("measured", "median", "range")]
    for length, times in result.prefill_s.items():
        rows.append((f"prefill {length}", *_rates(times, length)))
    if result.decode_s:
        rows.append(("decode", *_rates(result.decode_s, 1)))
        if device["predicted_tokens_per_s"]:
            rows.append(
                ("decode, predicted", f"{device['predicted_tokens_per_s']:.1f} tokens/s", "")
            )
        rows.append(("bytes per token", format_bytes(report["bytes_per_token"]), ""))
        rows.append(("decode bandwidth", f"{report['gb_per_s']:.2f} GB/s", ""))
    rate = f"{report['read_gb_per_s']:.2f} GB/s"
    rows.append(("plain read of the weights", rate, ""))
    for share, what in (
        (report.get("read_share"), "decode / plain read"),
        (report.get("active_share"), "active neurons"),
        (report.get("predicted_share"), "predicted neurons"),
        (report.get("python_share"), "Python's share of a step"),
    ):
        if share is not None:
            rows.append((what, percent(share), ""))
    print_paragraph(f"{report['model']}, {report['threads']} threads, {kernels}")
    print_table(rows, left=(0,))
    print_paragraph(f"The plain read was fastest with {result.read_way}.")


def _rates(times: list[float], tokens: int) -> tuple[str, str]:
    """Median and range of tokens/s."""
    rates = sorted(tokens / time for time in times)
    return f"{statistics.median(rates):.1f} tokens/s", f"{rates[0]:.1f} - {rates[-1]:.1f}"


COMMAND = bench
