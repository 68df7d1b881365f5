"""Print the text of token ids: the inverse of `tokenize`."""

import json
import re
import sys
from pathlib import Path

import click

from powerinfer.cli.commands.tokenize import open_tokenizer, read_content
from powerinfer.cli.flags.options import json_option, model_option, option, print_json

__all__ = ["COMMAND"]

_EPILOG = """\b
Examples:
  powerinfer detokenize 17 42 256
  powerinfer tokenize 'Once upon a time' | powerinfer detokenize
  powerinfer detokenize -m model.gguf --special -f ids.txt

Separate ids by spaces, commas or newlines; the output of `tokenize --json` works
too. The bytes of the text are printed unchanged, UTF-8 or not, and without a final
newline (except on a terminal).
"""

_SEPARATORS = re.compile(r"[\s,]+")
# Longer numbers cannot be ids, and parsing a very long one takes time.
_ID = re.compile("[0-9]{1,18}")


@click.command(epilog=_EPILOG)
@click.argument("ids", nargs=-1)
@option("-f --file PATH", "Read the ids from a file.", click.Path(path_type=Path))
@model_option
@option("--special", "Print the names of control tokens too.")
@json_option
def detokenize(
    ids: tuple[str, ...],
    file: Path | None,
    model: Path | None,
    special: bool,
    as_json: bool,
) -> None:
    """Print the text of IDS, or of the ids in a file or on standard input."""
    content = read_content(" ".join(ids) if ids else None, file, "ids")
    token_ids = _parse(content.decode("utf-8", "replace"))
    text = open_tokenizer(model).decode_bytes(token_ids, skip_special=not special)
    if as_json:
        print_json({"text": text.decode("utf-8", "replace")})
    else:
        click.echo(text, nl=sys.stdout.isatty() and not text.endswith(b"\n"))


def _parse(text: str) -> list[int]:
    """Parse a list of numbers, or the JSON that `tokenize` prints."""
    if text.lstrip().startswith(("{", "[")):
        text = _from_json(text)
    words = [word for word in _SEPARATORS.split(text) if word]
    for word in words:
        if not _ID.fullmatch(word):
            raise click.UsageError(f"{word[:40]!r} is not a token id; expected a whole number")
    return [int(word) for word in words]


def _from_json(text: str) -> str:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"the ids are not valid JSON: {error}") from None
    ids = value.get("ids") if isinstance(value, dict) else value
    if not isinstance(ids, list):
        raise click.UsageError('the JSON has no list of ids; expected {"ids": [1, 2]}')
    return " ".join(json.dumps(item) for item in ids)


COMMAND = detokenize
