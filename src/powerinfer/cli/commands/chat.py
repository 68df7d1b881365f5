"""Talk with a model.

Answers go to stdout; what the program itself says goes to stderr. Without a terminal every line
of stdin is one message.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerinfer.cli.flags import flag, in_flags, llm_options, sampling_params
from powerinfer.cli.options import engine_options, sampling_options

if TYPE_CHECKING:
    from powerinfer.engine.conversation import Conversation

__all__ = ["COMMAND"]

_COMMANDS = {
    "/help": "show this list",
    "/clear": "forget the conversation",
    "/stats": "figures of the last answer",
    "/exit": "leave (so does Ctrl-D)",
}

_EPILOG = """\b
Examples:
  powerinfer chat -m model.gguf
  powerinfer chat -m model.gguf --system 'Answer in one sentence.' --temp 0.2
  printf 'Hello\\nAnd now?\\n' | powerinfer chat -m model.gguf

\b
Keys: Enter sends, Alt-Enter or a backslash before Enter makes a new line,
Ctrl-C stops an answer, Ctrl-D leaves. /help lists the commands.

Uses the chat template of the model file; a model without one gets a plain
dialogue of `User:` and `Assistant:`.
"""


@click.command(epilog=_EPILOG)
@click.option("--system", metavar="TEXT", help="Instruction before the conversation.")
@flag("max_tokens", help="Most tokens of an answer, -1 for no limit.", default=-1)
@engine_options
@sampling_options
@flag("context_shift", help="When the conversation outgrows the context, forget its oldest turns.")
def chat(
    model: Path | None,
    system: str | None,
    max_tokens: int | None,
    context_shift: bool,  # noqa: FBT001
    **flags: object,
) -> None:
    """Talk with a model; remembers the conversation until you leave."""
    from powerinfer.cli.model import announce, open_llm
    from powerinfer.cli.sparsity import print_recall
    from powerinfer.engine.conversation import Conversation

    params = sampling_params(flags, max_tokens)
    options = llm_options(flags)
    options["context_shift"], options["reuse_prefix"] = context_shift, True
    with open_llm(model, options) as llm:
        announce(llm)
        conversation = Conversation(llm, params, system=system, drops_old=context_shift)
        is_typed = sys.stdin is not None and sys.stdin.isatty()
        if is_typed:
            click.echo("Enter sends, Ctrl-C stops an answer, Ctrl-D leaves, /help", err=True)
        num_refused = _converse(conversation)
        print_recall(llm.loaded.model)
    if num_refused and not is_typed:
        # A script may not show the message; it checks the exit code.
        raise click.ClickException(f"{num_refused} messages were not answered, see above")


def _converse(conversation: "Conversation") -> int:
    """Answer until the user leaves; returns how many messages could not be answered."""
    from powerinfer.cli.chat_input import messages
    from powerinfer.errors import PromptError

    num_refused = 0
    for text in messages():
        if text.startswith("/"):
            if not _run_command(text, conversation):
                break
            continue
        try:
            _answer(conversation, text)
        except PromptError as error:
            num_refused += 1
            click.echo(
                f"not answered: {in_flags(error)} (/clear forgets the conversation)", err=True
            )
    return num_refused


def _answer(conversation: "Conversation", text: str) -> None:
    """Print one answer as it comes; Ctrl-C ends it and keeps what was said."""
    num_dropped = conversation.num_dropped
    pieces = conversation.ask(text)
    is_first = True
    try:
        for piece in pieces:
            # The space that follows `Assistant:` in the prompt is not part of the answer.
            click.echo(piece.lstrip() if is_first else piece, nl=False)
            is_first = is_first and not piece.strip()
        click.echo()
    except KeyboardInterrupt:
        click.echo()
        click.echo("(stopped)", err=True)
    finally:
        pieces.close()
    if conversation.num_dropped > num_dropped:
        click.echo("(context full: the oldest turns were forgotten)", err=True)
    if conversation.last is not None and conversation.last.finish_reason == "length":
        click.echo("(the answer was cut: its length or the context is used up)", err=True)


def _run_command(text: str, conversation: "Conversation") -> bool:
    """Do what a line that begins with a slash says; False to leave."""
    name = text.split()[0]
    if name in ("/exit", "/quit"):
        return False
    if name == "/clear":
        conversation.clear()
        click.echo("(forgotten)", err=True)
    elif name == "/stats":
        _print_stats(conversation)
    else:
        if name != "/help":
            click.echo(f"no command {name}; there are:", err=True)
        for command, meaning in _COMMANDS.items():
            click.echo(f"  {command:7} {meaning}", err=True)
    return True


def _print_stats(conversation: "Conversation") -> None:
    from powerinfer.cli.model import print_speed
    from powerinfer.cli.sampling import summary

    last = conversation.last
    click.echo(summary(last.metrics) if last else "(no answer yet)", err=True)
    if last is not None:
        print_speed(last.metrics)


COMMAND = chat
