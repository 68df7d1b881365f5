"""Measure accuracy on tasks, and how much of it sparsity costs.

lm-eval asks, our engine answers. Task files are local; nothing is downloaded.
"""

from pathlib import Path

import click

from powerinfer.cli.files import PathType, read_text
from powerinfer.cli.flags.flags import flags, llm_options
from powerinfer.cli.flags.options import (
    json_option,
    model_option,
    option,
    read_names,
    read_tasks,
    task_options,
)

__all__ = ["COMMAND"]

_EPILOG = """\b
Examples:
  powerinfer eval -m model.gguf --tasks piqa,copa,rte --data tasks/
  powerinfer eval -m model.gguf --tasks ./questions.jsonl --limit 100
  powerinfer eval -m model.gguf --tasks piqa --data tasks/ --settings default,lowbit:3
  powerinfer eval -m model.gguf -f wiki.test.raw --json

Named tasks: arc_challenge, arc_easy, boolq, commonsenseqa, copa, hellaswag,
openbookqa, piqa, rte, siqa, winograd. They are worded as in lm-eval, and read
files in --data, such as piqa.jsonl and rte_dev.tsv.

\b
A file of your own has one JSON object per line, all with the same keys:
  {"query": "2 + 2 =", "choices": ["4", "5"], "gold": 0}
  {"context_options": ["A dog", "A cat"], "continuation": "meows.", "gold": 1}
  {"context": "Once upon a", "continuation": "time"}

gold is the index of the right choice; a continuation counts as right if greedy
decoding produces it. The dense model, off, is measured first; differences to it
have the standard error of paired answers. Needs lm-eval: the extra `eval`.
"""


@click.command(name="eval", epilog=_EPILOG)
@task_options
@option(
    "--settings S,S",
    "Sparsity settings to compare: off, exact, default, auto, predictor kinds, or threshold:X "
    "for --activation-threshold X. off always comes first.",
    default="off,default",
    callback=read_names,
)
@option(
    "-f --file PATH", "Also measure the perplexity of this text, UTF-8; - is stdin.", PathType()
)
@model_option
@flags(
    *("context_length", "threads", "kv_type", "activation", "activation_threshold"),
    *("mmap", "kernels"),
)
@json_option
def evaluate(
    model: Path | None,
    tasks: tuple[str, ...],
    data: Path | None,
    limit: int | None,
    settings: tuple[str, ...],
    file: Path | None,
    as_json: bool,
    **flags: object,
) -> None:
    """Measure accuracy on tasks, and how much of it sparsity costs."""
    if not tasks and file is None:
        raise click.UsageError("nothing to measure: name tasks with --tasks, or a text with -f")
    found = read_tasks(tasks, data, limit)
    text = None if file is None else read_text(file)
    from powerinfer.cli.report.evaluation import run_evaluation
    from powerinfer.options.options import CPU, engine_options

    given = llm_options(flags)
    given["device"] = CPU
    run_evaluation(model, engine_options(**given), found, settings, text, as_json=as_json)


COMMAND = evaluate
