"""Checks of the options for forms, without compiling them.

`--help` imports this module, so it must import quickly.
"""

import json
from collections.abc import Mapping

from powerinfer.errors import PromptError

__all__ = ["read_grammar", "read_json_schema", "read_regex"]

# Enough for a schema of some thousands of properties, which compiles in half a second.
_MOST_CHARACTERS = 1 << 16
_JSON_SCHEMA = "a JSON schema: a dictionary, or the text of a JSON object"


def read_regex(value: object) -> str:
    """Check for the text of a regular expression."""
    return _read_source("a regular expression", value)


def read_grammar(value: object) -> str:
    """Check for the text of a grammar."""
    return _read_source("a grammar", value)


def read_json_schema(value: object) -> str:
    """Convert a JSON schema, text or dictionary, to text without white space."""
    if not isinstance(value, str | Mapping):
        raise ValueError(_JSON_SCHEMA)
    try:
        schema = json.loads(value, parse_constant=_refuse) if isinstance(value, str) else value
        text = json.dumps(schema, separators=(",", ":"), allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise PromptError(f"the JSON schema is not valid JSON: {reason}") from None
    if not isinstance(schema, Mapping):
        raise ValueError(_JSON_SCHEMA)
    _check_length("a JSON schema", text)
    return text


def _read_source(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("a text")
    _check_length(what, value)
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise PromptError(f"{what} holds half of a surrogate pair") from None
    return value


def _check_length(what: str, text: str) -> None:
    if len(text) > _MOST_CHARACTERS:
        raise PromptError(
            f"{what} of {len(text)} characters; at most {_MOST_CHARACTERS} are possible"
        )


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not a number")
