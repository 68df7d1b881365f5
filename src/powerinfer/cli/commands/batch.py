"""Answer a file of requests in OpenAI's batch format."""

from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from powerinfer.cli.files import PathType
from powerinfer.cli.flags.flags import flag, flags, llm_options, sampling_params
from powerinfer.cli.flags.options import (
    DRAFT_FLAGS,
    STATE_FLAGS,
    engine_options,
    json_option,
    option,
    parallel_options,
    print_json,
    sampling_options,
)
from powerinfer.cli.report.progress import ProgressBar, when_stopped

if TYPE_CHECKING:
    from powerinfer.options.llm_options import LLMOptions
    from powerinfer.serve.batch import AnswerFile, BatchRequest
    from powerinfer.serve.served_model import ServedModel

__all__ = ["COMMAND"]

_EPILOG = """\b
Examples:
  powerinfer batch -m model.gguf -i in.jsonl -o out.jsonl
  powerinfer batch -m model.gguf -i in.jsonl -o out.jsonl -np 16 --json

\b
Each line of in.jsonl is one request, here on two lines, with a custom_id of its own:
  {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions",
   "body": {"messages": [{"role": "user", "content": "Hello"}]}}

The url may also be /v1/completions. Bodies are those that `powerinfer serve` takes;
the model is always -m. Each answer is added to out.jsonl as soon as it is done. After
Ctrl-C or a kill, run the same command again: requests with an answer are skipped. A
request that cannot be answered gets a line that says why; delete this line from
out.jsonl to retry the request.
"""


@click.command(epilog=_EPILOG)
@option(
    "-i --input PATH",
    "File of requests, one JSON object per line.",
    PathType(),
    name="source",
    required=True,
)
@option(
    "-o --output PATH",
    "File of answers, each written as soon as it is done; an existing file is extended.",
    PathType(),
    name="target",
    required=True,
)
@parallel_options
@flag("max_tokens", help="Most tokens in a chat answer; -1 for no limit.", default=-1)
@flags(*STATE_FLAGS, *DRAFT_FLAGS)
@engine_options
@sampling_options
@json_option
def batch(model: Path | None, source: Path, target: Path, as_json: bool, **flags: object) -> None:
    """Answer a file of requests in OpenAI's batch format, several at a time."""
    from powerinfer.serve.batch import AnswerFile, read_requests, run_batch
    from powerinfer.serve.settings import ServerSettings

    requests = read_requests(source)
    if target.exists() and target.samefile(source):
        raise click.UsageError("-i and -o are the same file; give -o a file of its own")
    parallel = cast("int", flags["parallel"])
    settings = ServerSettings(
        model_name="powerinfer-story" if model is None else model.name.removesuffix(".gguf"),
        parallel=parallel,
        max_queue=parallel,
        # The limit of tokens is a setting of its own.
        sampling=sampling_params({**flags, "max_tokens": None}),
        max_tokens=cast("int | None", flags["max_tokens"]),
        is_story_model=model is None,
    )
    options = llm_options(flags)
    with AnswerFile(target) as answers:
        num_before = sum(map(answers.has, requests))
        with (
            when_stopped(f"stopped; the same command resumes behind the answers in {answers.path}"),
            ProgressBar("answering", unit="requests") as bar,
        ):
            run_batch(requests, answers, settings, lambda: _load(model, options), bar)
        _report(requests, answers, num_before, as_json=as_json)


def _load(model: Path | None, options: "LLMOptions") -> "ServedModel":
    from powerinfer.cli.model import announce, load_for_serving

    served = load_for_serving(model, options)
    if served.loaded is not None:
        announce(served.loaded)
    return served


def _report(
    requests: list["BatchRequest"], answers: "AnswerFile", num_before: int, *, as_json: bool
) -> None:
    counts = {
        "requests": len(requests),
        "answered_before": num_before,
        "failed": sum(map(answers.has_failed, requests)),
    }
    if as_json:
        print_json({**counts, "output": str(answers.path)})
        return
    before = f", {num_before} of them from an earlier run" if num_before else ""
    click.echo(
        f"{answers.path}: {counts['requests']} answers{before}; {counts['failed']} failed",
        err=True,
    )


COMMAND = batch
