"""Messages of `powerinfer chat`, from an editor on a terminal or from lines of stdin."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

__all__ = ["messages"]

HISTORY_NAME = "chat_history"


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
