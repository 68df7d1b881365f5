"""The options that say what runs on a GPU; like `cli.options`, nothing of the engine."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from powerinfer import _plugins
from powerinfer.cli.files import PathType

__all__ = ["budget_option", "device_option", "device_options", "solver_option"]

Command = TypeVar("Command", bound=Callable[..., Any])

_SOLVERS = "powerinfer.placement.solvers"


def _budget(_context: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
    if text is not None:
        from powerinfer.engine.vram_budget import parse_vram_budget

        parse_vram_budget(text)
    return text


def _solver(_context: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
    if text is None:
        return None
    from powerinfer.engine.options import check_solver

    return check_solver(text.strip().lower())


def budget_option(command: Command) -> Command:
    """Add --vram-budget."""
    return click.option(
        "--vram-budget",
        metavar="SIZE",
        callback=_budget,
        help="GPU memory to use for everything, the KV cache included: 8 or 8GiB (2^30 bytes, "
        "fractions allowed), 512MiB, or 50% of what is free. [default: all that is free less "
        "256 MiB]",
    )(command)


def solver_option(command: Command) -> Command:
    """Add --solver."""
    # The names come from the folder: a new solver is one new file, and shows here.
    names = ", ".join(_plugins.keys(_SOLVERS))
    return click.option(
        "--solver",
        metavar="NAME",
        callback=_solver,
        help=f"How to choose what lies on the GPU: {names}. latency minimises the predicted time "
        "of a token, paper is PowerInfer's formulation, greedy takes the most often active "
        "neurons first. [default: latency]",
    )(command)


def device_option(command: Command) -> Command:
    """Add --device."""
    return click.option(
        "--device",
        metavar="NAME",
        default="auto",
        show_default=True,
        help="cpu, cuda, cuda:N, or auto: a GPU where torch is installed and sees one. GPUs of AMD "
        "are called cuda by torch too.",
    )(command)


_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    device_option,
    budget_option,
    click.option(
        "--gpu-index",
        type=PathType(),
        metavar="FILE",
        help="Take the neurons on the GPU from a plan of `powerinfer plan` or a GPU index "
        "(.gpuidx) of PowerInfer instead of solving for them.",
    ),
    click.option(
        "--reset-gpu-index",
        is_flag=True,
        help="Ignore the stored plan: solve again and overwrite it.",
    ),
    click.option(
        "--disable-gpu-index",
        is_flag=True,
        help="Put no FFN neurons on the GPU, only attention, KV cache and output head.",
    ),
    click.option(
        "--online/--no-online",
        "online",
        default=None,
        help="Move neurons between GPU and CPU while decoding, after what the text activates. "
        "[default: where it measures faster]",
    ),
    solver_option,
)


def device_options(command: Command) -> Command:
    """Add --device and the options that mean nothing without a GPU."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
