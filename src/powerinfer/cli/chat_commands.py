"""The commands of `powerinfer chat`: lines such as /undo."""

import json
import re
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerinfer._replacing import replacing
from powerinfer.cli.flags.flags import change_sampling, chat_flags
from powerinfer.cli.report.tables import printable
from powerinfer.errors import PowerInferError
from powerinfer.options.option import options_of
from powerinfer.sampling.sampling_params import SamplingParams

if TYPE_CHECKING:
    from powerinfer.engine.conversation import Conversation

__all__ = ["Next", "is_command", "message_in", "run_command", "save_conversation"]

_MEANINGS = {
    "/help": "show this list",
    "/retry": "answer the last message again",
    "/undo": "remove the last message and its answer",
    "/system [TEXT]": "show the system prompt, or set another; /system default leaves it to the "
    "template",
    "/set NAME VALUE": "change a sampling parameter, as in /set temp 0.2 or /set temp default; "
    "/set alone shows all",
    "/save FILE": "write the conversation to a new file, as JSON if it ends in .json",
    "/clear": "forget the conversation",
    "/stats": "show the figures of the last answer",
    "/exit": "leave (so does Ctrl-D)",
    "//...": "send a message that begins with one slash",
}
# `/etc/passwd` and `/* comment */` are messages.
_COMMAND = re.compile(r"/(?P<name>[A-Za-z]+)(?:\s+(?P<rest>.*))?", re.DOTALL)


class Next(Enum):
    """The step that follows a command."""

    READ = auto()
    RETRY = auto()
    LEAVE = auto()


def is_command(text: str) -> bool:
    """True for a line with a command: a slash and letters, then nothing or a space."""
    return _COMMAND.fullmatch(text) is not None


def message_in(text: str) -> str:
    """The message in a line that is not a command."""
    return text[1:] if text.startswith("//") else text


def run_command(text: str, conversation: "Conversation") -> Next:
    """Run a command, and report on stderr.

    Raises:
        click.ClickException: the value of a parameter or the name of a file is not valid.
        PowerInferError: there is no such parameter, or the file cannot be written.
    """
    found = _COMMAND.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a command")
    name, rest = found["name"].lower(), (found["rest"] or "").strip()
    if name in ("exit", "quit", "bye"):
        return Next.LEAVE
    if name == "retry":
        return _retry(conversation)
    if name == "set":
        _set(conversation, *rest.split(maxsplit=1))
    elif name == "system":
        _system(conversation, rest)
    elif name == "save":
        _save(conversation, rest)
    elif name == "undo":
        asked = conversation.undo()
        _say("there are no messages yet" if asked is None else f"removed: {_beginning(asked)}")
    elif name == "clear":
        conversation.clear()
        _say("conversation cleared")
    elif name == "stats":
        _print_stats(conversation)
    else:
        _print_help("" if name in ("help", "h") else name)
    return Next.READ


def _say(text: str) -> None:
    click.echo(f"({text})", err=True)


def _beginning(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:57]}..."


def _print_help(unknown: str) -> None:
    if unknown:
        click.echo(f"no command /{unknown}; the commands are:", err=True)
    width = max(map(len, _MEANINGS))
    for command, meaning in _MEANINGS.items():
        click.echo(f"  {command:{width}}  {meaning}", err=True)


def _print_stats(conversation: "Conversation") -> None:
    from powerinfer.cli.model import print_speed, summary

    last = conversation.last
    click.echo(summary(last.metrics) if last else "(no answer yet)", err=True)
    if last is not None:
        print_speed(last.metrics)


def _retry(conversation: "Conversation") -> Next:
    if not conversation.messages:
        _say("there are no messages yet")
        return Next.READ
    params = conversation.params
    if params.is_greedy:
        _say("at temperature 0 the answer is the same; /set temp 0.8 changes that")
    elif params.seed is not None:
        _say("with the same seed the answer is the same; /set seed -1 changes that")
    return Next.RETRY


def _set(conversation: "Conversation", name: str = "", value: str = "") -> None:
    """Change one parameter, or show one or all of them."""
    if name and value:
        name, conversation.params = change_sampling(conversation.params, name, value)
    elif name:
        name, _ = change_sampling(conversation.params, name, "default")
    for each, shown in chat_flags().items():
        if name in ("", each):
            _say(f"{shown} = {_value(conversation.params, each)}")


def _system(conversation: "Conversation", text: str) -> None:
    """Show or set what stands before the conversation."""
    if text:
        conversation.system = None if text == "default" else text
    shown, where = conversation.system, "as given with --system or /system"
    if shown is None:
        shown = conversation.builtin_system
        where = "of the model's chat template; /system TEXT sets another"
    if shown is None:
        _say("no system prompt; /system TEXT sets one")
        return
    _say(f"the system prompt, {where}:")
    click.echo(printable(shown, keep="\n\t"), err=True)


def _value(params: SamplingParams, name: str) -> str:
    """The value of a parameter, as it is typed."""
    value = getattr(params, name)
    if name == "stop":
        return " ".join(map(repr, params.stop_strings)) or '""'
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(options_of(SamplingParams)[name].none if value is None else value)


def _save(conversation: "Conversation", name: str) -> None:
    if not name:
        raise click.UsageError("/save needs the name of a file, such as /save talk.json")
    if not conversation.messages:
        _say("there are no messages yet")
        return
    path = Path(name).expanduser()
    save_conversation(path, conversation.transcript)
    _say(f"wrote {len(conversation.messages)} messages to {path}")


def save_conversation(path: Path, messages: Sequence[Mapping[str, str]]) -> None:
    """Write messages to a new file, whole or not at all.

    A file that ends in `.json` gets a list of objects with `role` and `content`, any other a text.

    Raises:
        PowerInferError: the file exists already, or cannot be written.
    """
    if path.suffix.lower() == ".json":
        text = json.dumps({"messages": messages}, ensure_ascii=False, indent=2) + "\n"
    else:
        text = "\n".join(f"{each['role'].capitalize()}: {each['content']}\n" for each in messages)
    with replacing(path, error=PowerInferError, is_new=True) as file:
        # A terminal may send bytes that are not UTF-8, which JSON and text files cannot hold.
        file.write(text.encode("utf-8", "replace"))
