"""Commands that have parts, as `bench` has `bench serve`, and run on their own as well."""

from collections.abc import Mapping
from typing import Any

import click

__all__ = ["CommandWithParts", "parts_of"]


class CommandWithParts(click.Command):
    """A command whose first argument may name one of its parts."""

    def __init__(self, *args: Any, parts: Mapping[str, click.Command], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parts = parts


def parts_of(command: click.Command) -> Mapping[str, click.Command]:
    """The parts of a command by name; most have none."""
    return command.parts if isinstance(command, CommandWithParts) else {}
