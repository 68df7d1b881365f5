"""Plain tables of text on stdout."""

from collections.abc import Sequence

import click

__all__ = ["print_table"]


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows with their cells aligned at the right, and an empty line after them."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells))
    click.echo()
