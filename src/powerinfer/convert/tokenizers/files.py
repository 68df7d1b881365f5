"""Reading a checkpoint's small JSON and text files; errors name the file."""

import json
from pathlib import Path

from powerinfer._files import read_small_file
from powerinfer.errors import TokenizerError

__all__ = ["check_unicode", "optional_object", "read_bytes", "read_object", "read_text"]

# The largest vocabularies in use (260,000 tokens) are files of 35 MB.
_MAX_BYTES = 256 << 20


def read_bytes(path: Path) -> bytes:
    """Read a file, see `read_small_file`."""
    return read_small_file(path, _MAX_BYTES, noun="tokenizer", error=TokenizerError)


def read_text(path: Path) -> str:
    """Read a UTF-8 file."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{path}: not UTF-8 at byte {error.start:,}") from None


def read_object(path: Path) -> dict[str, object]:
    """Read a JSON object."""
    try:
        value = json.loads(read_text(path))
    except RecursionError:
        raise TokenizerError(f"{path}: damaged: nested too deeply") from None
    except ValueError as error:
        raise TokenizerError(f"{path}: damaged: {error}") from None
    if not isinstance(value, dict):
        raise TokenizerError(f"{path}: damaged: {type(value).__name__}; expected an object")
    return value


def optional_object(path: Path) -> dict[str, object]:
    """Read a JSON object; empty if the file does not exist."""
    return read_object(path) if path.exists() else {}


def check_unicode(text: str, path: Path, what: str) -> None:
    """Check that a text, which JSON may give half a character, can be written as UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"{path}: {what} has a character that is not valid Unicode: {error.reason}"
        ) from None
