"""A conversation as a file: JSON for programs, text for people."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from powerinfer._replacing import replacing
from powerinfer.errors import PowerInferError

__all__ = ["save_conversation"]


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
