"""Talk with a model.

Answers go to stdout, everything else to stderr. Without a terminal every line of stdin is one
message.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerinfer.cli.files import ModelPath
from powerinfer.cli.flags.flags import flag, flags, in_flags, llm_options, sampling_params
from powerinfer.cli.flags.options import STATE_FLAGS, engine_options, option, sampling_options
from powerinfer.cli.report.progress import clear_line
from powerinfer.errors import PowerInferError, PromptError

if TYPE_CHECKING:
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    from powerinfer import LLM
    from powerinfer.engine.conversation import Conversation

__all__ = ["COMMAND"]

HISTORY_NAME = "chat_history"
SMALL_MODEL = "smollm2"
"""Entry of the catalogue that chats and is quick to fetch."""

_EPILOG = """\b
Examples:
  powerinfer chat smollm2                             a small model that is fetched
  powerinfer chat -m model.gguf
  powerinfer chat -m model.gguf --system 'Answer in one sentence.' --temp 0.2
  printf 'Hello\\nAnd now?\\n' | powerinfer chat -m model.gguf

\b
Keys: Enter sends, Alt-Enter or a backslash before Enter starts a new line,
Ctrl-C stops an answer, Ctrl-D leaves. /help lists the commands: /retry, /undo,
/set NAME VALUE, /save FILE, /clear, /stats, /exit. To send a message that begins
with a slash and letters, type two slashes.

Uses the chat template of the model file; a model without one gets a plain dialogue
of `User:` and `Assistant:`, and the bundled model continues what you write. When the
context has no room for an answer of -n tokens (without -n, a quarter of the
context), the oldest messages are forgotten until half of it is free.
"""


@click.command(epilog=_EPILOG)
@click.argument("name", metavar="[MODEL]", required=False, type=ModelPath())
@option("--system TEXT", "System message: an instruction before the conversation.")
@flag("max_tokens", help="Most tokens in an answer; -1 for no limit.", default=-1)
@engine_options
@sampling_options
@flag(
    "context_shift",
    help="When an answer fills the context, drop the oldest text and continue; otherwise it ends.",
)
@flags(*STATE_FLAGS)
def chat(
    name: Path | None,
    model: Path | None,
    system: str | None,
    context_shift: bool,
    **flags: object,
) -> None:
    """Talk with MODEL, the same as -m MODEL; remembers the conversation until you leave."""
    from powerinfer.cli.model import announce, open_llm, reading_bar
    from powerinfer.cli.report.sparsity import print_recall
    from powerinfer.engine.conversation import Conversation
    from powerinfer.store.default_model import story_text

    model = _one_model(name, model)
    params = sampling_params(flags)
    options = llm_options(flags)
    options["context_shift"], options["reuse_prefix"] = context_shift, True
    with reading_bar() as reading, open_llm(model, options, reading) as llm:
        announce(llm.loaded)
        _announce_template(llm, is_embedded=model is None)
        conversation = Conversation(
            llm, params, system=system, as_text=story_text if model is None else None
        )
        is_typed = sys.stdin is not None and sys.stdin.isatty()
        if is_typed:
            click.echo(
                "Enter sends, Ctrl-C stops an answer, Ctrl-D leaves, /help lists commands", err=True
            )
        failed = _converse(conversation)
        print_recall(llm.loaded.model)
    if failed and not is_typed:
        # A script may not show the message; it checks the exit code.
        raise click.ClickException(f"{_counted(failed)} failed, see above")


def _one_model(name: Path | None, model: Path | None) -> Path | None:
    """The model, given as an argument or with -m."""
    if name is None:
        return model
    from powerinfer.store.default_model import reference_of

    if model is not None:
        raise click.UsageError(f"there are two models: give either {str(name)!r} or -m")
    if not name.exists() and reference_of(str(name)) is None:
        raise click.UsageError(
            f"{str(name)!r} is no model: expected a file or a name that `powerinfer list "
            "--catalogue` shows; `powerinfer run` takes a prompt"
        )
    return name


def _counted(things: Counter[str]) -> str:
    """Counts in words, such as `1 command and 2 messages`."""
    return " and ".join(f"{n} {name}{'s' if n > 1 else ''}" for name, n in things.items())


def _announce_template(llm: "LLM", *, is_embedded: bool) -> None:
    """Explain what a model without a chat template does."""
    from powerinfer.cli.report.tables import print_paragraph

    if llm.loaded.tokenizer.chat_template is not None:
        return
    if is_embedded:
        from powerinfer.hub.catalogue import catalogue
        from powerinfer.store.memory import format_bytes

        entry = catalogue()[SMALL_MODEL]
        text = (
            "the bundled model tells stories and has no chat template: begin one, such as 'Once "
            f"upon a time', and it continues; use -m for a model that can talk: `powerinfer chat "
            f"{entry.name}` opens one, fetched once ({format_bytes(entry.size or 0)}, "
            f"{entry.licence})"
        )
    else:
        text = (
            "this model has no chat template: it gets a plain dialogue of User: and Assistant:, "
            "which it may not understand"
        )
    print_paragraph(text, err=True)


def messages() -> Iterator[str]:
    """Yield the user's messages until Ctrl-D or the end of stdin, without empty ones."""
    if sys.stdin is None:
        return
    read = _terminal_reader() if sys.stdin.isatty() and sys.stdout.isatty() else _read_lines
    while True:
        try:
            text = read().strip()
        except EOFError:
            return
        if text:
            yield text


def _read_lines() -> str:
    """One message from stdin; a backslash at the end of a line continues it on the next."""
    lines = []
    while line := sys.stdin.readline():
        lines.append(line.rstrip("\n"))
        if not lines[-1].endswith("\\"):
            break
        lines[-1] = lines[-1][:-1]
    if not lines:
        raise EOFError
    return "\n".join(lines)


def _terminal_reader() -> Callable[[], str]:
    """Create a function that lets the user edit one message on the terminal."""
    from prompt_toolkit import PromptSession

    session: PromptSession[str] = PromptSession(
        history=_history(), multiline=True, key_bindings=_key_bindings()
    )

    def read() -> str:
        while True:
            try:
                return session.prompt("> ", prompt_continuation="  ")
            except KeyboardInterrupt:
                click.echo("(Ctrl-D or /exit leaves)", err=True)

    return read


def _key_bindings() -> "KeyBindings":
    """Enter sends, unless it follows a backslash; Alt-Enter always starts a new line."""
    from prompt_toolkit.key_binding import KeyBindings

    bindings = KeyBindings()

    @bindings.add("enter")
    def _(event: "KeyPressEvent") -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    def _(event: "KeyPressEvent") -> None:
        event.current_buffer.insert_text("\n")

    return bindings


def _history() -> "History":
    """History in the user's state folder, or in memory if it cannot be written."""
    from platformdirs import user_state_path
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    path: Path = user_state_path("powerinfer") / HISTORY_NAME
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Only the user may read it.
        path.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))


def _converse(conversation: "Conversation") -> Counter[str]:
    """Answer until the user leaves; return the numbers of failed commands and messages."""
    from powerinfer.cli.chat_commands import Next, is_command, message_in, run_command

    failed: Counter[str] = Counter()
    num_announced = 0
    for line in messages():
        text: str | None = message_in(line)
        if is_command(line):
            try:
                follows = run_command(line, conversation)
            except (PowerInferError, click.ClickException) as error:
                failed["command"] += 1
                reason = in_flags(error) if isinstance(error, PowerInferError) else error.message
                click.echo(f"error: {reason}", err=True)
                continue
            if follows is Next.LEAVE:
                break
            text = conversation.undo() if follows is Next.RETRY else None
        if text is None:
            continue
        # Fewer after /clear and /undo; /retry alone announces nothing again.
        num_announced = min(num_announced, len(conversation.messages))
        try:
            _answer(conversation, text, num_announced)
        except PromptError as error:
            failed["message"] += 1
            click.echo(
                f"not answered: {in_flags(error)} (/clear forgets the conversation)", err=True
            )
        num_announced = max(num_announced, conversation.num_dropped)
    return failed


def _answer(conversation: "Conversation", text: str, num_announced: int) -> None:
    """Print one answer as it comes; Ctrl-C ends it and keeps what was said.

    The user already knows of `num_announced` forgotten messages.
    """
    num_messages = len(conversation.messages)
    pieces = conversation.ask(text)
    is_first = True
    try:
        for piece in pieces:
            # The space that follows `Assistant:` in the prompt is not part of the answer.
            click.echo(piece.lstrip() if is_first else piece, nl=False)
            is_first = is_first and not piece.strip()
        click.echo()
    except KeyboardInterrupt:
        clear_line()
        click.echo()
        click.echo("(stopped)", err=True)
    finally:
        pieces.close()
    if len(conversation.messages) == num_messages:
        click.echo("(stopped before the answer began: the message was not sent)", err=True)
        return
    if (more := conversation.num_dropped - num_announced) > 0:
        click.echo(f"(context nearly full: the oldest {more} messages were forgotten)", err=True)
    _explain_end(conversation)


def _explain_end(conversation: "Conversation") -> None:
    """Explain why the last answer was cut or is empty."""
    last, limit = conversation.last, conversation.params.max_tokens
    if last is None or last.finish_reason != "length":
        if last is not None and last.finish_reason == "stop" and not last.text.strip():
            click.echo("(the model gave an empty answer; /retry asks it again)", err=True)
        return
    if limit is not None and len(last.token_ids) >= limit:
        click.echo(f"(cut after {limit} tokens, the limit; /set n -1 lifts it)", err=True)
    else:
        click.echo("(cut: the context is full; a larger -c holds more)", err=True)


COMMAND = chat
