"""Print the token ids of a text.

Needs only the vocabulary of a model file; files without tensors are fine.
"""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerinfer.cli.files import model_file, unreadable
from powerinfer.cli.flags.options import json_option, model_option, option, print_json

if TYPE_CHECKING:
    from powerinfer.tokenizer import Tokenizer

__all__ = ["COMMAND"]

_EPILOG = """\b
Examples:
  powerinfer tokenize 'Once upon a time'
  powerinfer tokenize -m model.gguf --bos -f prompt.txt
  powerinfer tokenize -m model.gguf --parse-special --pieces '<|im_start|>user'
  powerinfer tokenize -f any.bin | powerinfer detokenize > same.bin

Without TEXT and -f the text comes from standard input. Nothing is stripped from it.
"""


@click.command(epilog=_EPILOG)
@click.argument("text", required=False)
@option("-f --file PATH", "Read the text from a file, byte for byte.", click.Path(path_type=Path))
@model_option
@option("--bos", "Begin with the BOS token.")
@option(
    "--parse-special",
    "Encode names of control tokens in the text, such as <|im_end|>, as these tokens.",
)
@click.option(
    "--ids/--pieces",
    default=True,
    help="Print all ids on one line, or one id per line with its text. With --json, --pieces "
    "adds a list `pieces`. [default: ids]",
)
@json_option
def tokenize(
    text: str | None,
    file: Path | None,
    model: Path | None,
    bos: bool,
    parse_special: bool,
    ids: bool,
    as_json: bool,
) -> None:
    """Print the token ids of TEXT, of a file or of standard input."""
    content = read_content(text, file, "a text")
    tokenizer = open_tokenizer(model)
    token_ids = tokenizer.encode(content, add_bos=bos, parse_special=parse_special)
    if as_json:
        pieces = {} if ids else {"pieces": [_text(tokenizer.piece_bytes(i)) for i in token_ids]}
        print_json({"ids": token_ids, **pieces})
    elif ids:
        click.echo(" ".join(map(str, token_ids)))
    else:
        for token_id in token_ids:
            click.echo(f"{token_id:>7}  {_readable(tokenizer.piece_bytes(token_id))}")


def open_tokenizer(model: Path | None) -> "Tokenizer":
    """Load the vocabulary of a model file, by default the bundled one.

    Raises:
        GGUFError: there is no such file, or its vocabulary cannot be used.
    """
    from powerinfer.gguf import open_gguf
    from powerinfer.tokenizer import Tokenizer

    return Tokenizer.from_gguf(open_gguf(model_file(model)))


def read_content(argument: str | None, file: Path | None, what: str) -> bytes:
    """Return the bytes of an argument, of a file, or of standard input if neither is given.

    Raises:
        click.UsageError: both are given, or neither and standard input is a terminal.
        click.ClickException: the file cannot be read.
    """
    if argument is not None and file is not None:
        raise click.UsageError(f"{what} and -f are both given; give one of them")
    if argument is not None:
        return os.fsencode(argument)
    if file is not None:
        try:
            return file.read_bytes()
        except OSError as error:
            raise unreadable(file, error) from error
    if sys.stdin is None or sys.stdin.isatty():
        raise click.UsageError(f"give {what}, -f FILE, or something on standard input")
    return sys.stdin.buffer.read()


def _readable(piece: bytes) -> str:
    """A piece in quotes, or its bytes if it is only a part of a character."""
    text = _text(piece)
    return json.dumps(text, ensure_ascii=False) if text.encode() == piece else text


def _text(piece: bytes) -> str:
    """A piece as text, or the codes of its bytes if it is only a part of a character."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return " ".join(f"<0x{byte:02X}>" for byte in piece)


COMMAND = tokenize
