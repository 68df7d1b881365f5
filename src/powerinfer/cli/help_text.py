"""Help texts whose lines never break inside an option such as `--max-ffn-error`."""

from collections.abc import Iterable

import click

__all__ = ["HelpContext"]

_NON_BREAKING_HYPHEN = "\N{NON-BREAKING HYPHEN}"


class HelpFormatter(click.HelpFormatter):
    """Click's formatter, but lines never break at a hyphen."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """Write the usage line."""
        super().write_usage(prog, _whole(args), prefix)

    def write_text(self, text: str) -> None:
        """Write paragraphs."""
        super().write_text(_whole(text))

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        """Write options with their meaning."""
        super().write_dl([(term, _whole(text)) for term, text in rows], col_max, col_spacing)

    def getvalue(self) -> str:
        """Return the text, with ordinary hyphens again."""
        return super().getvalue().replace(_NON_BREAKING_HYPHEN, "-")


class HelpContext(click.Context):
    """A context whose help has this formatter."""

    formatter_class = HelpFormatter


def _whole(text: str) -> str:
    return text.replace("-", _NON_BREAKING_HYPHEN)
