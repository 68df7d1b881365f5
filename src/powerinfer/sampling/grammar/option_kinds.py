"""The kinds of values that describe a form: checked without compiling anything.

Importing this module must stay fast, because `--help` needs it.
"""

import json
from collections.abc import Mapping
from typing import ClassVar

from powerinfer.errors import PromptError
from powerinfer.options.option_kinds import Kind

__all__ = ["MOST_CHARACTERS", "GrammarSource", "JsonSchema", "Regex"]

# A schema with some thousand properties, which takes half a second to compile.
MOST_CHARACTERS = 1 << 16


class _Source(Kind[str]):
    """A text in some notation.

    Attributes:
        name: what it is called in messages.
        is_file: on the command line it stands in a file.
    """

    name: ClassVar[str]
    is_file: ClassVar[bool] = True

    def read(self, value: object) -> str:
        """See `Kind`."""
        if not isinstance(value, str):
            raise ValueError("a text")
        if len(value) > MOST_CHARACTERS:
            raise PromptError(
                f"{self.name} of {len(value)} characters; at most {MOST_CHARACTERS} are possible"
            )
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise PromptError(f"{self.name} holds half of a surrogate pair") from None
        return value


class Regex(_Source):
    """A regular expression in the notation of Rust's `regex`; the whole text must match it."""

    name = "a regular expression"
    is_file = False


class GrammarSource(_Source):
    """A grammar in GBNF, or in llguidance's Lark if it begins with `%llguidance`."""

    name = "a grammar"


class JsonSchema(Kind[str | Mapping[str, object]]):
    """A JSON schema, as text or as dictionaries and lists; it becomes text."""

    is_file: ClassVar[bool] = True

    def read(self, value: object) -> str:
        """See `Kind`."""
        if not isinstance(value, str | Mapping):
            raise ValueError("a JSON schema: a dictionary, or the text of a JSON object")
        try:
            schema = json.loads(value, parse_constant=_refuse) if isinstance(value, str) else value
            text = json.dumps(schema, separators=(",", ":"), allow_nan=False)
        except (ValueError, TypeError, RecursionError) as error:
            reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
            raise PromptError(f"the JSON schema is not valid JSON: {reason}") from None
        if not isinstance(schema, Mapping):
            raise ValueError("a JSON schema: a dictionary, or the text of a JSON object")
        if len(text) > MOST_CHARACTERS:
            raise PromptError(
                f"a JSON schema of {len(text)} characters; at most {MOST_CHARACTERS} are possible"
            )
        return text


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is no number")
