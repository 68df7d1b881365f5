"""Generate text from a prompt.

The prompt is an argument, or comes from -p, from -f or from stdin; text goes to stdout as it is
made, everything else to stderr.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
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
from powerinfer.cli.flags.sections import SectionedCommand
from powerinfer.cli.report.progress import clear_line
from powerinfer.sampling.sampling_params import FORMS

if TYPE_CHECKING:
    from powerinfer import LLM, Generation, SamplingParams
    from powerinfer.cli.chat_answers import Advice, LoopNotice
    from powerinfer.engine.text_stream import TextStream

__all__ = ["COMMAND"]

_EPILOG = """\b
Examples:
  powerinfer run 'Once upon a time'                   the bundled model
  powerinfer run -m model.gguf -f prompt.txt -n 256   a prompt from a file
  echo 'A haiku:' | powerinfer run -m model.gguf      a prompt from a pipe
  powerinfer run -m model.gguf --chat 'Rain?'         an answer by the chat template
  powerinfer run -p 'Q: 2+2?' --stop Q: --temp 0      greedy, up to a stop text
  powerinfer run -p 'Hello' --seed 7 --json           figures for a script
  powerinfer run -p 'Hello' --sparsity lowbit:3       a predictor picks the neurons
  powerinfer run -m model.gguf -p 'Hi' --vram-budget 8  GPU and CPU together
  powerinfer run -p 'Name:' --regex '[A-Z][a-z]+'     a text of this form
  powerinfer run -e -p 'one\\ntwo\\nthree'              escapes in the prompt

Use -n -1 to generate until the model ends the text or the context is full. A full
context ends the text; with --context-shift old text is dropped instead.
Special tokens may be written in the prompt by name.
Text is completed as it stands. With --chat the prompt is a message instead: it goes
through the model's chat template, and only the answer is printed.
PROMPT is the same as -p PROMPT; quote several words, and use -p for a prompt that
begins with a hyphen.
"""


# What people need, first in the help.
_FIRST = (
    *("model", "prompt", "file", "chat", "system", "max_tokens", "context_length"),
    *("temperature", "seed", "as_json"),
)


@click.command(cls=SectionedCommand, first=_FIRST, rest="Prompt and output", epilog=_EPILOG)
@click.argument("words", metavar="[PROMPT]", nargs=-1)
@option("-p --prompt TEXT", "Prompt; '' starts from nothing.")
@option("-f --file PATH", "Read the prompt from a file or pipe; - is stdin.", PathType())
@option("--chat", "Answer the prompt as a message, by the model's chat template.")
@option("--system TEXT", "System message for --chat.")
@flag("max_tokens")
@engine_options
@sampling_options
@option("-e --escape", "Decode \\n, \\t, \\\\, \\xHH in the prompt.")
@option("--no-display-prompt", "Do not repeat the prompt on stdout.")
@flags("context_shift", "keep_tokens", "draft", "draft_model", *FORMS)
@json_option
@flag("logprobs")
def run(
    words: tuple[str, ...],
    model: Path | None,
    prompt: str | None,
    file: Path | None,
    chat: bool,
    system: str | None,
    escape: bool,
    no_display_prompt: bool,
    as_json: bool,
    **flags: object,
) -> None:
    """Generate text from a prompt with a GGUF model."""
    if system is not None and not chat:
        raise click.UsageError("--system is for messages: give --chat too")
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
    from powerinfer.cli.report.head import offer_screened_head

    options = llm_options(flags)
    with reading_bar() as reading, open_llm(model, options, reading) as llm:
        announce(llm.loaded)
        offer_screened_head(llm.loaded, params)
        if chat:
            text = _answer(llm, content, params, system, is_embedded=model is None)
        else:
            _say_if_raw(llm)
            text = _completion(llm, content, params, displays_prompt=not no_display_prompt)
        (_print_report if as_json else _print_text)(llm, text)


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


@dataclass(frozen=True)
class _Text:
    """A text that is to be generated.

    Attributes:
        params: how it is generated.
        stream: generates it; a prompt that does not fit is refused before there is one.
        pieces: of `stream`, as they are shown.
        loops: watches `pieces`.
        unseen: what is shown before the first piece, since progress bars need their own line.
        advice: for the end of an answer; None for a text that is completed.
    """

    params: "SamplingParams"
    stream: "TextStream"
    pieces: Iterable[str]
    loops: "LoopNotice"
    unseen: str = ""
    advice: "Advice | None" = None


def _completion(
    llm: "LLM", prompt: bytes, params: "SamplingParams", *, displays_prompt: bool
) -> _Text:
    from powerinfer.cli.chat_answers import IN_COMPLETION, LoopNotice

    stream, loops = llm.stream(prompt, params), LoopNotice(IN_COMPLETION)
    unseen = prompt.decode("utf-8", "replace") if displays_prompt else ""
    return _Text(params, stream, loops.watch(stream, stream.last_token_ids), loops, unseen)


def _answer(
    llm: "LLM", prompt: bytes, params: "SamplingParams", system: str | None, *, is_embedded: bool
) -> _Text:
    """The answer to a prompt as the only message, which is not shown again."""
    from powerinfer.cli.chat_answers import (
        IN_RUN,
        LoopNotice,
        announce_template,
        without_blank_start,
    )
    from powerinfer.prompts.reasoning import shown_answer
    from powerinfer.store.default_model import story_text

    announce_template(llm, is_embedded=is_embedded)
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": prompt.decode("utf-8", "replace")})
    ids = llm.encode(story_text(messages)) if is_embedded else llm.chat_prompt(messages)
    params = llm.chat_params(params)
    stream, loops = llm.stream(ids, params), LoopNotice(IN_RUN)
    pieces = without_blank_start(shown_answer(llm.loaded.tokenizer, ids, stream))
    watched = loops.watch(pieces, stream.last_token_ids)
    return _Text(params, stream, watched, loops, advice=IN_RUN)


def _say_if_raw(llm: "LLM") -> None:
    """Tell users of a model for chats that its template is not applied."""
    if llm.loaded.tokenizer.chat_template is not None:
        click.echo(
            "note: `run` completes raw text; `run --chat` or `powerinfer chat` applies this "
            "model's chat template",
            err=True,
        )


def _print_text(llm: "LLM", text: _Text) -> None:
    """Print pieces as they come; whatever ends the text, figures follow on stderr."""
    from powerinfer.cli.model import print_speed, summary
    from powerinfer.cli.report.sparsity import print_recall

    unseen, params = text.unseen, text.params
    try:
        for piece in text.pieces:
            click.echo(unseen + piece, nl=False)
            unseen = ""
    finally:
        clear_line()
        click.echo(unseen, nl=False)
        generation = text.stream.generation
        # Not on stdout: what a pipe receives is the text and nothing else.
        click.echo(err=True)
        _say_end(llm, text, generation)
        click.echo(summary(generation.metrics), err=True)
        print_speed(generation.metrics)
        print_recall(llm.loaded.model)
        if generation.token_ids and params.seed is None and not params.is_greedy:
            click.echo(f"seed {generation.seed}", err=True)


def _print_report(llm: "LLM", text: _Text) -> None:
    """Print one JSON object at the end, also when Ctrl-C or a signal is what ended the text."""
    from powerinfer.cli.signals import TerminatedError

    stream = text.stream
    try:
        for _ in text.pieces:
            pass
    except (KeyboardInterrupt, TerminatedError):
        clear_line()
        stream.close()
        print_json(report(llm, stream.generation))
        raise
    _say_end(llm, text, stream.generation)
    print_json(report(llm, stream.generation))


def _say_end(llm: "LLM", text: _Text, generation: "Generation") -> None:
    """Tell on stderr what ended a text before its time."""
    from powerinfer.cli.chat_answers import explain_end
    from powerinfer.cli.model import say_if_full

    if text.advice is None:
        say_if_full(llm, generation, text.params)
        text.loops.look(generation.token_ids)
    else:
        explain_end(generation, text.params, text.advice, text.loops)


def report(llm: "LLM", generation: "Generation") -> dict[str, object]:
    """The object of `run --json`, with the keys of the documentation."""
    from powerinfer.cli.model import device_report
    from powerinfer.cli.report.head import head_report
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
        "tokens_per_step": metrics.tokens_per_step,
        "draft_accepted_share": metrics.draft_accepted_share,
        "bytes_per_token": metrics.bytes_per_token,
        "gb_per_s": metrics.gb_per_s,
        **head_report(loaded),
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
