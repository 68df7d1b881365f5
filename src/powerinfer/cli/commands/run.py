"""Generate text from a prompt.

The prompt is an argument, or comes from -p, from -f or from stdin; text goes to stdout as it is
made, everything else to stderr.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerinfer.cli.files import STDIN, PathType, read_prompt_bytes
from powerinfer.cli.flags.flags import flag, flags, llm_options, sampling_params
from powerinfer.cli.flags.options import (
    decode_escapes,
    engine_options,
    json_option,
    option,
    print_json,
    sampling_options,
)
from powerinfer.cli.report.progress import clear_line
from powerinfer.sampling.sampling_params import FORMS

if TYPE_CHECKING:
    from powerinfer import LLM, Generation, SamplingParams

__all__ = ["COMMAND"]

_EPILOG = """\b
Examples:
  powerinfer run 'Once upon a time'                   the bundled model
  powerinfer run -m model.gguf -f prompt.txt -n 256   a prompt from a file
  echo 'A haiku:' | powerinfer run -m model.gguf      a prompt from a pipe
  powerinfer run -p 'Q: 2+2?' --stop Q: --temp 0      greedy, up to a stop text
  powerinfer run -p 'Hello' --seed 7 --json           figures for a script
  powerinfer run -p 'Hello' --sparsity lowbit:3       a predictor picks the neurons
  powerinfer run -m model.gguf -p 'Hi' --vram-budget 8  GPU and CPU together
  powerinfer run -p 'Name:' --regex '[A-Z][a-z]+'     a text of this form
  powerinfer run -e -p 'one\\ntwo\\nthree'              escapes in the prompt

Use -n -1 to generate until the model ends the text or the context is full. A full
context ends the text; with --context-shift old text is dropped instead.
Special tokens may be written in the prompt by name.
PROMPT is the same as -p PROMPT; quote several words, and use -p for a prompt that
begins with a hyphen.
"""


@click.command(epilog=_EPILOG)
@click.argument("words", metavar="[PROMPT]", nargs=-1)
@option("-p --prompt TEXT", "Prompt; '' starts from nothing.")
@option("-f --file PATH", "Read the prompt from a file or pipe; - is stdin.", PathType())
@flag("max_tokens")
@engine_options
@sampling_options
@option("-e --escape", "Decode \\n, \\t, \\\\, \\xHH in the prompt.")
@option("--no-display-prompt", "Do not repeat the prompt on stdout.")
@flags("context_shift", "keep_tokens", *FORMS)
@json_option
@flag("logprobs")
def run(
    words: tuple[str, ...],
    model: Path | None,
    prompt: str | None,
    file: Path | None,
    escape: bool,
    no_display_prompt: bool,
    as_json: bool,
    **flags: object,
) -> None:
    """Generate text from a prompt with a GGUF model."""
    content = _prompt(words, prompt, file)
    if words and model is None:
        _say_if_model(words[0])
    if escape:
        content = decode_escapes(content)
    params = sampling_params(flags)
    if params.logprobs is not None and not as_json:
        raise click.UsageError("--logprobs adds to --json: give --json too")
    if params.has_form:
        from powerinfer.sampling.grammar.compiled import check_form

        check_form(params)
    from powerinfer.cli.model import announce, open_llm, reading_bar

    options = llm_options(flags)
    with reading_bar() as reading, open_llm(model, options, reading) as llm:
        announce(llm.loaded)
        if as_json:
            _print_report(llm, content, params)
            return
        _stream(llm, content, params, displays_prompt=not no_display_prompt)


def _prompt(words: tuple[str, ...], prompt: str | None, file: Path | None) -> bytes:
    """Bytes of the prompt, from the argument, -p, -f or stdin."""
    if words:
        if prompt is not None or file is not None:
            raise click.UsageError(f"there are two prompts: give either {words[0]!r}, -p or -f")
        prompt = _quoted(words)
    if prompt is not None and file is not None:
        raise click.UsageError("give the prompt with -p or with -f, not both")
    if prompt is not None:
        return prompt.encode("utf-8", "surrogateescape")
    if file is not None:
        return read_prompt_bytes(file)
    if sys.stdin is None or sys.stdin.isatty():
        raise click.UsageError(
            "no prompt: give one with -p 'TEXT', -f FILE or on stdin (or try `powerinfer chat`)"
        )
    return read_prompt_bytes(STDIN)


def _quoted(words: tuple[str, ...]) -> str:
    """The one argument that is the prompt. Refuses several, and the name of a model."""
    first = words[0]
    if first.endswith(".gguf"):
        raise click.UsageError(f"{first!r} is the name of a model: name models with -m")
    if len(words) > 1:
        # Joined, `run llama3 'Hello'` would silently become a prompt for another model.
        raise click.UsageError(
            f"expected one prompt, got {len(words)} arguments ({first!r}, ...): quote it; models "
            "are named with -m"
        )
    return first


def _say_if_model(word: str) -> None:
    """Tell users who may have meant a model, as in `ollama run llama3`."""
    if " " in word:
        return
    from powerinfer.cli.flags.foreign_flags import looks_like_model

    if looks_like_model(word):
        click.echo(f"{word!r} is taken as the prompt; models are named with -m", err=True)


def _stream(llm: "LLM", prompt: bytes, params: "SamplingParams", *, displays_prompt: bool) -> None:
    """Print pieces as they come; whatever ends the text, figures follow on stderr."""
    from powerinfer.cli.model import print_speed, say_if_full, summary
    from powerinfer.cli.report.sparsity import print_recall

    # Refuses a prompt that does not fit before any of it is shown.
    stream = llm.stream(prompt, params)
    # Shown with the first piece, because the progress bar needs a line of its own until then.
    unseen = prompt.decode("utf-8", "replace") if displays_prompt else ""
    try:
        for piece in stream:
            click.echo(unseen + piece, nl=False)
            unseen = ""
    finally:
        clear_line()
        click.echo(unseen, nl=False)
        generation = stream.generation
        # Not on stdout: what a pipe receives is the text and nothing else.
        click.echo(err=True)
        say_if_full(llm, generation, params)
        click.echo(summary(generation.metrics), err=True)
        print_speed(generation.metrics)
        print_recall(llm.loaded.model)
        if generation.token_ids and params.seed is None and not params.is_greedy:
            click.echo(f"seed {generation.seed}", err=True)


def _print_report(llm: "LLM", prompt: bytes, params: "SamplingParams") -> None:
    """Print one JSON object at the end, also when Ctrl-C or a signal is what ended the text."""
    from powerinfer.cli.model import say_if_full
    from powerinfer.cli.signals import TerminatedError

    stream = llm.stream(prompt, params)
    try:
        for _ in stream:
            pass
    except (KeyboardInterrupt, TerminatedError):
        clear_line()
        stream.close()
        print_json(report(llm, stream.generation))
        raise
    say_if_full(llm, stream.generation, params)
    print_json(report(llm, stream.generation))


def report(llm: "LLM", generation: "Generation") -> dict[str, object]:
    """The object of `run --json`, with the keys of the documentation."""
    from powerinfer.cli.model import device_report
    from powerinfer.cli.report.sparsity import sparsity_report

    metrics, loaded = generation.metrics, llm.loaded
    return {
        "text": generation.text,
        "token_ids": generation.token_ids,
        **_logprobs_report(generation),
        "finish_reason": generation.finish_reason,
        "load_s": metrics.load_s,
        "prefill_tokens": metrics.prefill_tokens,
        "prefill_tokens_per_s": metrics.prefill_tokens_per_s,
        "decode_tokens": metrics.decode_tokens,
        "decode_tokens_per_s": metrics.decode_tokens_per_s,
        "bytes_per_token": metrics.bytes_per_token,
        "gb_per_s": metrics.gb_per_s,
        **sparsity_report(loaded),
        "active_share": metrics.active_share,
        "predicted_share": metrics.predicted_share,
        "threads": loaded.threads,
        "kernels": loaded.kernels,
        **device_report(loaded),
        "seed": generation.seed,
    }


def _logprobs_report(generation: "Generation") -> dict[str, object]:
    """The key `logprobs`, if it was asked for: the objects that Python gets."""
    if generation.logprobs is None:
        return {}
    from dataclasses import asdict

    return {"logprobs": [asdict(each) for each in generation.logprobs]}


COMMAND = run
