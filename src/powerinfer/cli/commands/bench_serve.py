"""Measure how a server answers many clients at once, also compared with llama-server."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from powerinfer.cli.files import PathType
from powerinfer.cli.flags.options import json_option, model_option, option, print_json, read_names
from powerinfer.cli.report.progress import ProgressBar
from powerinfer.cli.report.tables import percent, print_paragraph, print_table

if TYPE_CHECKING:
    from powerinfer.bench.serving.plan import ServingPlan

__all__ = ["COMMAND"]

_EPILOG = """\b
Examples:
  powerinfer bench serve -m model.gguf
  powerinfer bench serve -m model.gguf --settings off,exact --clients 1,4,16
  powerinfer bench serve -m sparse.gguf --settings off,mlp --scenarios \\
    --peer llama.cpp/build/bin/llama-server --plain plain.gguf --json > result.json

Every client sends a prompt of random tokens and reads the whole answer. Servers
are separate processes, measured in turns, round by round; a first round does not
count. Tokens/s are those of all clients together, from the first request to the
end of the last answer. Close other programs first.

The peer runs with as many threads and slots, and the same context for each. If it
was built without an instruction set that this machine has, the report says so, and
the comparison does not count.
"""


def _numbers(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[int, ...]:
    """Parse `1,4,16`."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise click.BadParameter(f"{text!r} is not a list of numbers of clients such as 1,4,16")
    return tuple(int(part) for part in parts)


@click.command("serve", epilog=_EPILOG)
@model_option
@option(
    "--settings S,S",
    "Sparsity settings, each on a server of its own. [default: the model's own]",
    default="",
    callback=read_names,
)
@option("--peer PROGRAM", "llama-server to compare with.", PathType())
@option("--plain FILE", "Model file for --peer. [default: -m]", PathType())
@option(
    "--clients N,N",
    "Numbers of concurrent clients to measure.",
    default="1,4,16",
    callback=_numbers,
)
@option("--prompt-tokens N", "Tokens in each prompt.", click.IntRange(1), default=32)
@option("-n --max-tokens N", "Tokens in each answer.", click.IntRange(2), default=64)
@option("--repeats N", "Rounds to measure.", click.IntRange(1), default=3)
@option("-c --context N", "Context length of each text in tokens.", click.IntRange(64), default=512)
@option(
    "-t --threads N", "CPU threads of every server. [default: physical cores]", click.IntRange(1)
)
@option(
    "--scenarios",
    "Also measure a long prompt while other answers stream, the second turn of a chat, and "
    "one stream against `powerinfer bench`.",
)
@json_option
def bench_serve(
    model: Path | None,
    settings: tuple[str, ...],
    peer: Path | None,
    plain: Path | None,
    clients: tuple[int, ...],
    prompt_tokens: int,
    max_tokens: int,
    repeats: int,
    context: int,
    threads: int | None,
    scenarios: bool,
    as_json: bool,
) -> None:
    """Measure how a server answers many clients at once."""
    from powerinfer.bench.serving.plan import ServingPlan, measure_serving
    from powerinfer.store.default_model import default_model_path
    from powerinfer.store.threads import default_threads

    if prompt_tokens + max_tokens > context:
        raise click.UsageError(
            f"-c {context} is too small: {prompt_tokens} prompt tokens and {max_tokens} answer "
            f"tokens need {prompt_tokens + max_tokens}"
        )
    if plain is not None and peer is None:
        raise click.UsageError("--plain is the file that --peer serves: give --peer too")
    plan = ServingPlan(
        model=model or default_model_path(),
        settings=settings,
        peer=peer,
        plain=plain,
        clients=clients,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        repeats=repeats,
        context=context,
        threads=threads or default_threads(beside_gpu=False),
        has_scenarios=scenarios,
    )
    with ProgressBar("measuring", unit="rounds") as progress:
        report = measure_serving(plan, progress)
    if as_json:
        print_json(report)
    else:
        _print_report(plan, report)


def _print_report(plan: "ServingPlan", report: dict[str, Any]) -> None:
    print_paragraph(f"{report['model']}, {plan.threads} threads")
    rows = [("clients", "server", "tokens/s", "first token", "gap", "p99", "ratios", "union")]
    for number, sides in report["clients"].items():
        for name, side in sides.items():
            ratios = ", ".join(
                f"{found['ratio']:.2f} of {other}" for other, found in side["against"].items()
            )
            union = side["union_share"]
            rows.append(
                (
                    number,
                    name,
                    f"{side['tokens_per_s']:.1f}",
                    _ms(side["first_token_s"]),
                    _ms(side["gap_s"]),
                    _ms(side["gap_p99_s"]),
                    ratios,
                    "" if union is None else percent(union),
                )
            )
    print_table(rows, left=(1, 6))
    for kind, found in report.get("scenarios", {}).items():
        print_paragraph(_scenario_text(kind, found))
    if info := report.get("peer_system_info"):
        print_paragraph(f"the peer's system_info: {info}")
    if lacking := report.get("peer_lacks"):
        print_paragraph(
            f"the peer was built without {', '.join(lacking)}, which this machine has: do not "
            "compare with it"
        )


def _scenario_text(kind: str, found: dict[str, Any]) -> str:
    long, turn = found["long_prompt"], found["second_turn"]
    return (
        f"{kind}: one stream {found['single_tokens_per_s']:.1f} tokens/s, without a server "
        f"{found['bench_tokens_per_s']:.1f}. A prompt of 1500 tokens during three streams: largest "
        f"gap {_ms(long['streams_largest_gap_s'])}, before {_ms(long['streams_gap_before_s'])}; "
        f"first token after {_ms(long['first_token_beside_s'])}, alone "
        f"{_ms(long['first_token_alone_s'])}. Second turn of a chat of 1000 tokens: first token "
        f"after {_ms(turn['first_token_s'])}, for a new prompt of this length "
        f"{_ms(turn['first_token_of_fresh_prompt_s'])}."
    )


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:.0f} ms"


COMMAND = bench_serve
