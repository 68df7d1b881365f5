"""A conversation as a file: JSON for programs, text for people."""

import errno
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import click

__all__ = ["save_conversation"]

# What file systems without hard links answer.
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def save_conversation(path: Path, messages: Sequence[Mapping[str, str]]) -> None:
    """Write messages to a new file, whole or not at all.

    Args:
        path: of the file; one that ends in `.json` gets a list of objects with `role` and
            `content`, any other a text.
        messages: in order.

    Raises:
        click.ClickException: there is such a file already, or it cannot be written.
    """
    if path.suffix.lower() == ".json":
        text = json.dumps({"messages": messages}, ensure_ascii=False, indent=2) + "\n"
    else:
        text = "\n".join(f"{each['role'].capitalize()}: {each['content']}\n" for each in messages)
    try:
        # Bytes that are no UTF-8 came from the terminal; JSON and text files have none.
        _write_new(path, text.encode("utf-8", "replace"))
    except FileExistsError:
        raise click.ClickException(f"{path}: exists already; name a new file") from None
    except OSError as error:
        raise click.ClickException(f"{path}: cannot write: {error.strerror or error}") from None


def _write_new(path: Path, content: bytes) -> None:
    """Write a file under a temporary name, then give it its own, if nothing has that."""
    temporary = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.part")
    try:
        temporary.write_bytes(content)
        try:
            # Unlike a renaming it never replaces a file.
            os.link(temporary, path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if os.path.lexists(path):
                raise FileExistsError(path) from None
            temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
