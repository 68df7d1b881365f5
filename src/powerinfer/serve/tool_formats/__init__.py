"""Formats in which models write tool calls; each file is a format, and its name is the key."""

from typing import cast

from powerinfer import _plugins
from powerinfer.serve.tool_formats._format import NO_PARAMETERS, ForcedCall, Tool, ToolFormat

__all__ = [
    "NO_PARAMETERS",
    "ForcedCall",
    "Tool",
    "ToolFormat",
    "find_format",
    "format_names",
    "load_format",
]

# For models whose template shows no tools.
_FALLBACK = "described"


def format_names() -> tuple[str, ...]:
    """Keys of all formats."""
    return _plugins.keys(__name__)


def load_format(name: str) -> ToolFormat:
    """Load the format of that name.

    Raises:
        UnsupportedError: there is none; the message lists all names.
    """
    return cast("ToolFormat", _plugins.load(__name__, name, "FORMAT", what="form of tool calls"))


def find_format(template: str | None) -> ToolFormat:
    """Find the format that a chat template shows, else the one that the prompt describes."""
    for name in format_names() if template else ():
        found = load_format(name)
        if found.is_shown_by(template or ""):
            return found
    return load_format(_FALLBACK)
