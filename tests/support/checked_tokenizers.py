"""Tokenizers of checkpoints read for a file, with every check that a conversion makes."""

from pathlib import Path
from typing import Any

from powerinfer.convert.tokenizers import check_tokenizer, read_tokenizer
from powerinfer.gguf import open_gguf, write_gguf
from tokenizer_checkpoints import Json, write_files

__all__ = ["ROWS", "read_checked", "read_json"]

ROWS = 448


def read_checked(folder: Path, rows: int = ROWS) -> dict[str, Any]:
    """The metadata, after the check and the way through a file."""
    metadata = read_tokenizer(folder, rows)
    check_tokenizer(folder, metadata)
    write_gguf(folder / "vocab.gguf", metadata, [])
    check_tokenizer(folder, open_gguf(folder / "vocab.gguf").metadata)
    return {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}


def read_json(folder: Path, content: Json, rows: int = ROWS, **files: object) -> dict[str, Any]:
    """The same, of a `tokenizer.json` and other JSON files, by their names."""
    named = {f"{name}.json": value for name, value in files.items()}
    return read_checked(write_files(folder, {"tokenizer.json": content, **named}), rows)
