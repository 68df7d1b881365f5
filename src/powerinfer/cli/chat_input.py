"""What a chat reads: lines of stdin, or messages that are edited on a terminal."""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import click

from powerinfer.cli.hidden_typing import hidden_typing

if TYPE_CHECKING:
    from prompt_toolkit.history import History
    from prompt_toolkit.input import Input
    from prompt_toolkit.key_binding import KeyBindings, KeyPress, KeyPressEvent

__all__ = ["ChatInput", "chat_input", "messages", "typing_hidden"]

HISTORY_NAME = "chat_history"


class ChatInput(Protocol):
    """A source of messages."""

    def read(self) -> str:
        """Read one message; raises EOFError if there are no more."""
        ...

    def typing_kept(self) -> AbstractContextManager[None]:
        """Keep what is typed meanwhile for the next `read`, unseen until then."""
        ...


def chat_input() -> ChatInput:
    """The source for this process: a line editor on a terminal, else the lines of stdin."""
    return _Editor() if _is_terminal() else _Lines()


def typing_hidden() -> AbstractContextManager[None]:
    """Hide what is typed on a terminal while nothing reads it; `ChatInput.typing_kept` keeps it."""
    return hidden_typing(sys.stdin.fileno()) if _is_terminal() else nullcontext()


def _is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


def messages(source: ChatInput) -> Iterator[str]:
    """Yield the user's messages until Ctrl-D or the end of stdin, without empty ones."""
    while True:
        try:
            text = source.read().strip()
        except EOFError:
            return
        if text:
            yield text


class _Lines:
    """Lines of stdin; a backslash at the end of a line continues it on the next."""

    def read(self) -> str:
        lines = []
        # Python sets sys.stdin to None if descriptor 0 was closed before the start.
        while sys.stdin is not None and (line := sys.stdin.readline()):
            lines.append(line.rstrip("\n"))
            if not lines[-1].endswith("\\"):
                break
            lines[-1] = lines[-1][:-1]
        if not lines:
            raise EOFError
        return "\n".join(lines)

    def typing_kept(self) -> AbstractContextManager[None]:
        return nullcontext()


class _Editor:
    """A line editor on the terminal."""

    def __init__(self) -> None:
        from prompt_toolkit import PromptSession

        self._session: PromptSession[str] = PromptSession(
            history=_history(), multiline=True, key_bindings=_key_bindings()
        )

    def read(self) -> str:
        while True:
            try:
                return self._session.prompt("> ", prompt_continuation="  ")
            except KeyboardInterrupt:
                click.echo("(Ctrl-D or /exit leaves)", err=True)
            except _terminal_error():
                # The terminal is gone or another's: the program that started this one has ended.
                raise EOFError from None

    @contextmanager
    def typing_kept(self) -> Iterator[None]:
        from prompt_toolkit.input.typeahead import store_typeahead

        source = self._session.input
        with hidden_typing(source.fileno()):
            try:
                yield
            finally:
                store_typeahead(source, _unsent(_typed_keys(source)))


def _terminal_error() -> type[Exception]:
    """What is raised where a terminal cannot be set up."""
    try:
        import termios
    except ImportError:
        return OSError
    return termios.error


def _typed_keys(source: "Input") -> "list[KeyPress]":
    """The keys that were pressed since somebody read the terminal."""
    keys: list[KeyPress] = []
    while some := source.read_keys():
        keys += some
    return keys + source.flush_keys()


def _unsent(keys: "list[KeyPress]") -> "list[KeyPress]":
    """Keys that edit the same text but do not send it; the last Enter is left out.

    Who types while an answer runs has not seen its end, so the text waits to be sent.
    """
    from prompt_toolkit.key_binding import KeyPress
    from prompt_toolkit.keys import Keys

    enter = (Keys.ControlM, Keys.ControlJ)
    while keys and keys[-1].key in enter:
        keys = keys[:-1]
    new_line = [KeyPress(Keys.Escape), KeyPress(Keys.ControlM)]
    return [one for key in keys for one in (new_line if key.key in enter else [key])]


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
