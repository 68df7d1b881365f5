"""The option `--settings` of commands that compare sparsity settings."""

import click

__all__ = ["read_names"]


def read_names(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[str, ...]:
    """Parse `off,exact,lowbit:2`; a callback of click.

    Raises:
        UnsupportedError: there is no such setting.
    """
    names = tuple(part.strip().lower() for part in text.split(",") if part.strip())
    for name in names:
        if name not in ("off", "auto", "default"):
            from powerinfer.predictors import parse_kind

            parse_kind(name)
    return names
