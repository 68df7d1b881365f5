"""Plain tables and paragraphs on stdout or stderr, fitted to the terminal."""

import os
import sys
import textwrap
from collections.abc import Iterator, Sequence

import click

__all__ = ["change", "line_width", "percent", "print_paragraph", "print_table", "printable"]

_GAP = "  "


def line_width(*, err: bool = False) -> int | None:
    """Characters in a line: `COLUMNS`, else the terminal's; None without a terminal."""
    wanted = os.environ.get("COLUMNS", "")
    if wanted.isascii() and wanted.isdigit() and int(wanted) > 0:
        return int(wanted)
    stream = sys.stderr if err else sys.stdout
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None  # a file or a pipe: programs read it line by line


def print_table(
    rows: Sequence[Sequence[str]], *, left: Sequence[int] = (), indent: int = 0, err: bool = False
) -> None:
    """Print rows in columns.

    A table that is wider than the terminal is printed as several, one below the other, which all
    begin with the first column.

    Args:
        rows: cells, the same number in each row; headings are a row.
        left: indices of left-aligned columns; the others are right-aligned.
        indent: spaces before each row.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    width = line_width(err=err)
    for number, columns in enumerate(_fitting(widths, None if width is None else width - indent)):
        if number:
            click.echo(err=err)
        for row in rows:
            cells = (
                row[column].ljust(widths[column])
                if column in left
                else row[column].rjust(widths[column])
                for column in columns
            )
            click.echo(" " * indent + _GAP.join(cells).rstrip(), err=err)


def print_paragraph(text: str, *, indent: int = 0, hanging: int = 0, err: bool = False) -> None:
    """Print a paragraph, wrapped to the terminal without breaking words.

    `indent` and `hanging` are the spaces before the first line and before the others.
    """
    width = line_width(err=err)
    line = " " * indent + text
    if width is not None and len(line) > width:
        line = textwrap.fill(
            text,
            width=max(width, hanging + 1),
            initial_indent=" " * indent,
            subsequent_indent=" " * hanging,
            break_on_hyphens=False,
            break_long_words=False,
        )
    click.echo(line, err=err)


def percent(share: float | None, digits: int = 1) -> str:
    """A share as a cell; `-` for None."""
    return "-" if share is None else f"{100 * share:.{digits}f} %"


def change(share: float | None, digits: int = 2) -> str:
    """A difference as a cell, with its sign; what rounds to zero is `+0.00 %`. `-` for None."""
    # Adding zero turns minus zero into zero.
    return "-" if share is None else f"{round(100 * share, digits) + 0.0:+.{digits}f} %"


def printable(text: str, keep: str = "") -> str:
    """Escape control characters but those to keep: a file must not steer the terminal."""
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text
    )


def _fitting(widths: Sequence[int], width: int | None) -> list[list[int]]:
    """Distribute columns over as few tables as fit into a width, about equally wide."""
    if width is None:
        return [list(range(len(widths)))]
    found = list(_filled(widths, width))
    for narrower in range(width - 1, 0, -1):
        more_even = list(_filled(widths, narrower))
        if len(more_even) > len(found):
            break
        found = more_even
    return found


def _filled(widths: Sequence[int], width: int) -> Iterator[list[int]]:
    """Fill one table with columns after the other."""
    columns, used = [0], widths[0]
    for column in range(1, len(widths)):
        needed = len(_GAP) + widths[column]
        if used + needed > width and len(columns) > 1:
            yield columns
            columns, used = [0], widths[0]
        columns.append(column)
        used += needed
    yield columns
