"""Plain tables of text, on stdout or stderr."""

from collections.abc import Sequence

import click

__all__ = ["percent", "print_table"]


def print_table(
    rows: Sequence[Sequence[str]], *, left: Sequence[int] = (), indent: int = 0, err: bool = False
) -> None:
    """Print rows in columns.

    Args:
        rows: of cells, equally many in each; a row of headings is a row.
        left: numbers of the columns whose cells are aligned at the left; the others at the right.
        indent: spaces before each row.
        err: print on stderr.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            cell.ljust(width) if number in left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        click.echo(" " * indent + "  ".join(cells).rstrip(), err=err)


def percent(share: float | None, digits: int = 1) -> str:
    """A share as a cell; `-` where there is none."""
    return "-" if share is None else f"{100 * share:.{digits}f} %"
