"""The options that choose which neurons run; like `cli.options`, nothing of the engine."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = ["check_dials", "sparsity_options"]

Command = TypeVar("Command", bound=Callable[..., Any])

_SPARSITY = (
    "Which FFN neurons are computed. off: all. exact: all gates, then only the neurons that fire; "
    "no loss. auto: what `powerinfer calibrate` chose, or a short calibration now. A predictor "
    "guesses which fire: mlp, mlp:q8_0, mlp:q4_0 (PowerInfer's, from its files); lowbit:2, "
    "lowbit:3, lowbit:4, sign (from the weights of any ReLU-family model; lowbit alone is "
    "lowbit:2); cascades of up to three, from cheap to precise, such as sign+lowbit:2; oracle "
    "(upper bound, slow). [default: a PowerInfer file's mlp, a calibrated model's calibration, "
    "else exact; off where the activation is never zero]"
)


def _lower(_context: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
    return None if text is None else text.strip().lower()


_OPTIONS = (
    click.option("--sparsity", metavar="MODE", callback=_lower, help=_SPARSITY),
    click.option(
        "--max-ffn-error",
        type=float,
        metavar="X",
        help="Relative error of each layer's FFN output that predictors may cause, such as 0.01, "
        "by the curves of the calibration. [default: what was calibrated]",
    ),
    click.option(
        "--recall",
        type=float,
        metavar="X",
        help="Instead of --max-ffn-error: share of the firing neurons that predictors must find, "
        "such as 0.99.",
    ),
    click.option(
        "--measure-recall",
        is_flag=True,
        help="Also compute what predictors skip and report recall, precision and FFN error of "
        "each layer; too slow for figures of speed to mean anything.",
    ),
)


def sparsity_options(command: Command) -> Command:
    """Add --sparsity, the two dials and --measure-recall."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def check_dials(flags: dict[str, Any]) -> None:
    """Refuse both dials at once.

    Raises:
        click.UsageError: both were given.
    """
    if flags.get("max_ffn_error") is not None and flags.get("recall") is not None:
        raise click.UsageError("give --max-ffn-error or --recall, not both")
