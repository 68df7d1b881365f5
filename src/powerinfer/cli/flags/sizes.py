"""Amounts of memory and disk on the command line."""

import click

from powerinfer.errors import PromptError
from powerinfer.options.vram_budget import parse_vram_budget

__all__ = ["SizeType"]


class SizeType(click.ParamType[int]):
    """Bytes: ``8``, ``8G``, ``8GiB`` or ``512M``; units are powers of two, bare numbers GiB."""

    name = "size"

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Convert one value."""
        if isinstance(value, int):
            return value
        try:
            found = parse_vram_budget(value).num_bytes
        except (PromptError, ValueError):
            found = None
        if found is None:
            self.fail(f"{value!r:.40} is not a size such as 8GiB or 512MiB", param, ctx)
        return found
