"""`--settings`: what commands share that measure several settings of sparsity on one model."""

from dataclasses import replace
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from powerinfer.engine.llm_options import LLMOptions
    from powerinfer.engine.options import EngineOptions

__all__ = ["options_but_settings", "read_names"]


def read_names(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[str, ...]:
    """Read `off,exact,lowbit:2`: a callback of click.

    Raises:
        UnsupportedError: there is no such setting.
    """
    names = tuple(part.strip().lower() for part in text.split(",") if part.strip())
    for name in names:
        if name not in ("off", "auto", "default"):
            from powerinfer.predictors import parse_kind

            parse_kind(name)
    return names


def options_but_settings(given: "LLMOptions", what: str, *, settings: str) -> "EngineOptions":
    """The options of a command, of which none may be what the settings vary; on the CPU.

    Args:
        given: options of the command.
        what: measures, for messages: `eval`.
        settings: flags that name the settings, for messages.

    Raises:
        click.UsageError: an option names one setting, or asks for a GPU.
    """
    from powerinfer.engine.options import CPU, engine_options

    for name in ("sparsity", "max_ffn_error", "recall", "measure_recall"):
        if given.get(name):
            raise click.UsageError(
                f"{what} measures {settings}; leave --{name.replace('_', '-')} out"
            )
    options = engine_options(**given)
    if options.wants_gpu:
        raise click.UsageError(f"{what} measures on the CPU: leave --device and GPU options out")
    return replace(options, device=CPU)
