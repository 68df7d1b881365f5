"""Talk with a model.

Answers go to stdout, everything else to stderr. Without a terminal every line of stdin is one
message.
"""

import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerinfer.cli.files import ModelPath
from powerinfer.cli.flags.flags import (
    CHAT_DEFAULTS,
    flag,
    flags,
    in_flags,
    llm_options,
    sampling_params,
)
from powerinfer.cli.flags.options import (
    DRAFT_FLAGS,
    STATE_FLAGS,
    engine_options,
    option,
    sampling_options,
)
from powerinfer.cli.flags.sections import SectionedCommand
from powerinfer.cli.report.progress import clear_line
from powerinfer.errors import PowerInferError, PromptError

if TYPE_CHECKING:
    from powerinfer import LLM
    from powerinfer.cli.chat_commands import Next
    from powerinfer.cli.chat_input import ChatInput
    from powerinfer.engine.conversation import Conversation
    from powerinfer.options.llm_options import LLMOptions

__all__ = ["COMMAND"]

_EPILOG = """\b
Examples:
  powerinfer chat smollm2                             a small model that is fetched
  powerinfer chat -m model.gguf
  powerinfer chat -m model.gguf --system 'Answer in one sentence.' --temp 0.2
  printf 'Hello\\nAnd now?\\n' | powerinfer chat -m model.gguf

\b
Keys: Enter sends, Alt-Enter or a backslash before Enter starts a new line,
Ctrl-C stops an answer, Ctrl-D leaves. What you type while an answer runs waits at
the next prompt. /help lists the commands: /retry, /undo, /system [TEXT],
/set NAME VALUE, /save FILE, /clear, /stats, /exit. To send a message that begins
with a slash and letters, type two slashes.

Uses the chat template of the model file; a model without one gets a plain dialogue
of `User:` and `Assistant:`, and the bundled model continues what you write. Many
templates have a system prompt of their own, which /system shows; small models answer
better or worse with another. When the context has no room for an answer of -n tokens
(at most half of it; with -n -1 a quarter), the oldest messages are forgotten until
half of it is free.
"""


# What people need, first in the help.
_FIRST = (
    *("model", "system", "max_tokens", "context_length", "threads", "temperature"),
    *("repeat_penalty", "seed", "stop", "device"),
)


@click.command(cls=SectionedCommand, first=_FIRST, epilog=_EPILOG)
@click.argument("name", metavar="[MODEL]", required=False, type=ModelPath())
@option("--system TEXT", "System message: an instruction before the conversation.")
@flag(
    "max_tokens",
    help="Most tokens in an answer; -1 for no limit.",
    default=CHAT_DEFAULTS.max_tokens,
)
@engine_options
@sampling_options
@flag(
    "context_shift",
    help="When an answer fills the context, drop the oldest text and continue; otherwise it ends.",
)
@flags(*STATE_FLAGS, *DRAFT_FLAGS)
def chat(
    name: Path | None,
    model: Path | None,
    system: str | None,
    context_shift: bool,
    **flags: object,
) -> None:
    """Talk with MODEL, the same as -m MODEL; remembers the conversation until you leave."""
    from powerinfer.cli.chat_input import typing_hidden

    with ExitStack() as kept_open:
        # Before the other imports, which take longer than loading a small model.
        with typing_hidden():
            from powerinfer.cli.chat_answers import announce_template
            from powerinfer.cli.chat_input import chat_input
            from powerinfer.cli.report.head import offer_screened_head
            from powerinfer.cli.report.sparsity import print_recall
            from powerinfer.engine.conversation import Conversation
            from powerinfer.store.default_model import story_text
            from powerinfer.tokenizer import chat as _templates  # noqa: F401  Ctrl-C would cut it short

            model, params = _one_model(name, model), sampling_params(flags)
            options = llm_options(flags)
            options["context_shift"], options["reuse_prefix"] = context_shift, True
            source = chat_input()
            with source.typing_kept():
                llm = _open(model, options, kept_open)
        offer_screened_head(llm.loaded, params)
        announce_template(llm, is_embedded=model is None)
        conversation = Conversation(
            llm, params, system=system, as_text=story_text if model is None else None
        )
        is_typed = sys.stdin is not None and sys.stdin.isatty()
        if is_typed:
            click.echo(
                "Enter sends, Ctrl-C stops an answer, Ctrl-D leaves, /help lists commands", err=True
            )
        talk = _Talk(conversation, source)
        talk.run()
        print_recall(llm.loaded.model)
    if talk.failed and not is_typed:
        # A script may not show the message; it checks the exit code.
        raise click.ClickException(f"{_counted(talk.failed)} failed, see above")


def _open(model: Path | None, options: "LLMOptions", kept_open: ExitStack) -> "LLM":
    """Load the model, until `kept_open` closes it, and say what it is."""
    from powerinfer.cli.model import announce, open_llm, reading_bar

    reading = kept_open.enter_context(reading_bar())
    llm = kept_open.enter_context(open_llm(model, options, reading))
    announce(llm.loaded)
    return llm


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


class _Talk:
    """Answers messages until the user leaves; counts the commands and messages that failed."""

    def __init__(self, conversation: "Conversation", source: "ChatInput") -> None:
        from powerinfer.cli.chat_answers import IN_CHAT, LoopNotice

        self._conversation, self._source = conversation, source
        self.failed: Counter[str] = Counter()
        self._num_announced = 0
        self._loops = LoopNotice(IN_CHAT)

    def run(self) -> None:
        from powerinfer.cli.chat_commands import Next, is_command, message_in
        from powerinfer.cli.chat_input import messages

        for line in messages(self._source):
            text: str | None = message_in(line)
            if is_command(line):
                follows = self._obey(line)
                if follows is Next.LEAVE:
                    return
                text = self._conversation.undo() if follows is Next.RETRY else None
            if text is not None:
                self._answer(text)

    def _obey(self, line: str) -> "Next":
        from powerinfer.cli.chat_commands import Next, run_command

        try:
            return run_command(line, self._conversation)
        except (PowerInferError, click.ClickException) as error:
            self.failed["command"] += 1
            reason = in_flags(error) if isinstance(error, PowerInferError) else error.message
            click.echo(f"error: {reason}", err=True)
            return Next.READ

    def _answer(self, text: str) -> None:
        conversation = self._conversation
        # Fewer after /clear and /undo; /retry alone announces nothing again.
        self._num_announced = min(self._num_announced, len(conversation.messages))
        try:
            with self._source.typing_kept():
                self._print_answer(text)
        except PromptError as error:
            self.failed["message"] += 1
            click.echo(
                f"not answered: {in_flags(error)} (/clear forgets the conversation)", err=True
            )
        self._num_announced = max(self._num_announced, conversation.num_dropped)

    def _print_answer(self, text: str) -> None:
        """Print one answer as it comes; Ctrl-C ends it and keeps what was said."""
        from powerinfer.cli.chat_answers import IN_CHAT, explain_end, without_blank_start

        conversation = self._conversation
        num_messages = len(conversation.messages)
        pieces = conversation.ask(text)
        shown = self._loops.watch(without_blank_start(pieces), conversation.last_token_ids)
        try:
            for piece in shown:
                click.echo(piece, nl=False)
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
        if (more := conversation.num_dropped - self._num_announced) > 0:
            click.echo(
                f"(context nearly full: the oldest {more} messages were forgotten)", err=True
            )
        explain_end(conversation.last, conversation.params, IN_CHAT, self._loops)


COMMAND = chat
