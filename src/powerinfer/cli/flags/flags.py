"""Flags made from the tables of options, which Python and the command line share.

The tables are `engine.options.EngineOptions` and `engine.sampling_params.SamplingParams`.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar, cast

import click

from powerinfer._plugins import unsupported
from powerinfer.cli.files import PathType, read_text
from powerinfer.errors import PowerInferError, PromptError
from powerinfer.options import option_kinds as kinds
from powerinfer.options.llm_options import LLMOptions
from powerinfer.options.option import Option, options_of
from powerinfer.options.options import EngineOptions
from powerinfer.options.vram_budget import VramBudget
from powerinfer.sampling.grammar.option_kinds import GrammarSource, JsonSchema
from powerinfer.sampling.sampling_params import FORMS, SamplingParams

__all__ = [
    "Command",
    "add_flags",
    "change_sampling",
    "chat_flags",
    "flag",
    "in_flags",
    "llm_options",
    "sampling_params",
]

Command = TypeVar("Command", bound=Callable[..., object])

# Larger limits are checked, but not shown in the help.
_LARGEST_LIMIT_SHOWN = 1 << 20


def flag(
    name: str,
    *,
    help: str | None = None,  # noqa: A002  as click calls it
    default: object = None,
) -> Callable[[Command], Command]:
    """The flag of an option of the tables, as a decorator for a command.

    Args:
        name: of the option; the command gets the value under it.
        help: instead of the table's, where the option means something else to a command.
        default: likewise.
    """
    option = _OPTIONS[name]
    if default is None:
        default = option.default
    is_switch = isinstance(option.kind, kinds.Switch)
    return click.option(
        *option.flags,
        name,
        type=_click_type(option),
        default=default,
        show_default=bool(default) and not is_switch,
        is_flag=is_switch,
        multiple=isinstance(option.kind, kinds.Texts),
        metavar=option.metavar,
        envvar=option.variable,
        show_envvar=option.variable is not None,
        callback=_reading(name, option),
        help=help or option.help,
    )


def add_flags(command: Command, *flags: Callable[[Command], Command]) -> Command:
    """Add flags to a command; the first one stands first in its help."""
    for decorate in reversed(flags):
        command = decorate(command)
    return command


def llm_options(flags: Mapping[str, object], vram_budget: VramBudget | None = None) -> LLMOptions:
    """The options of `LLM` among the parameters of a command.

    Args:
        flags: parameters; those that are no such options are left alone.
        vram_budget: GPU memory to take, where the command has it as a parameter of its own.
    """
    names = options_of(EngineOptions)
    options = cast("LLMOptions", {name: flags[name] for name in names if name in flags})
    if vram_budget is not None:
        options["vram_budget"] = vram_budget
    return options


def sampling_params(flags: Mapping[str, object], max_tokens: int | None) -> SamplingParams:
    """Sampling parameters from the parameters of a command.

    Args:
        flags: parameters; those that are not of sampling are left alone.
        max_tokens: most tokens to generate; None for no limit.

    Raises:
        PromptError: a value is out of its range.
    """
    given = {name: flags[name] for name in options_of(SamplingParams) if name in flags}
    given["max_tokens"] = max_tokens
    # The values come from flags; it checks their types itself.
    build: Callable[..., SamplingParams] = SamplingParams
    return build(**given)


def chat_flags() -> dict[str, str]:
    """The sampling parameters that a conversation can change: names in Python, flags without `--`.

    Probabilities are not shown there, and what is said has no prescribed form.
    """
    return {
        name: next(each for each in found.flags if each.startswith("--")).lstrip("-")
        for name, found in options_of(SamplingParams).items()
        if found.flags and name not in ("logprobs", *FORMS)
    }


def change_sampling(params: SamplingParams, name: str, text: str) -> tuple[str, SamplingParams]:
    """Sampling parameters with one of them changed, as its flag would.

    Args:
        params: as they are.
        name: a flag with or without its hyphens, or the name that Python uses.
        text: the value as the command line takes it; `default` is the one of `SamplingParams`.
            Several texts stand in quotation marks, separated by spaces.

    Returns:
        The name that Python uses, and the new parameters.

    Raises:
        UnsupportedError: there is no such parameter; names the nearest.
        click.ClickException: the value is not valid.
    """
    shown = chat_flags()
    options = {each: options_of(SamplingParams)[each] for each in shown}
    names = {each: each for each in options}
    # The flags come second and win: they are what is typed here.
    for each, found in options.items():
        names.update({flag_name.lstrip("-").replace("-", "_"): each for flag_name in found.flags})
    wanted = names.get(name.lstrip("-").replace("-", "_"))
    if wanted is None:
        raise unsupported("sampling parameter", name, tuple(shown.values()))
    value: object = options[wanted].default
    if text.startswith(('"', "'")) and isinstance(options[wanted].kind, kinds.Texts):
        value = _quoted_texts(text)
    elif text != "default":
        try:
            value = _click_type(options[wanted]).convert(text, None, None)
        except click.BadParameter as error:
            raise click.ClickException(f"{shown[wanted]}: {error.message}") from None
        if options[wanted].none is not None and value == options[wanted].none:
            value = None
    # It checks the value's type itself.
    changed: Callable[..., SamplingParams] = partial(replace, params)
    return wanted, changed(**{wanted: value})


def _quoted_texts(text: str) -> tuple[str, ...]:
    """Texts in quotation marks, as a shell reads them; two marks alone stand for none."""
    import shlex

    try:
        return tuple(each for each in shlex.split(text) if each)
    except ValueError:
        raise click.ClickException(f"{text}: a quotation mark is not closed") from None


def in_flags(error: PowerInferError, command: click.Command | None = None) -> str:
    """What an error says, with flags in its remedy.

    Args:
        error: to put into words.
        command: whose flags are meant; None for the one that runs.
    """
    context = click.get_current_context(silent=True)
    if command is None and context is not None:
        command = context.command
    names = {} if command is None else {each.name: each for each in command.params}

    def phrase(name: str, value: str | None) -> str:
        shown = names.get(name)
        first = shown.opts[0] if shown is not None else _first_flag(name)
        variable = _OPTIONS[name].variable if name in _OPTIONS else None
        if variable and os.environ.get(variable):
            # Whoever set it long ago would look for the flag in vain.
            first = f"{first} or the variable {variable}, which is set"
        if value == "False" and shown is not None and shown.secondary_opts:
            return shown.secondary_opts[0]
        return first if value in (None, "True") else f"{first} {value.strip(_QUOTES)}"

    return error.worded(phrase)


_QUOTES = "'\""
_OPTIONS: dict[str, Option[object]] = options_of(EngineOptions) | options_of(SamplingParams)


def _first_flag(name: str) -> str:
    """The flag of an option that the command itself does not have."""
    option = _OPTIONS.get(name)
    return option.flags[0].partition("/")[0] if option is not None and option.flags else name


def _click_type(option: Option[object]) -> "click.ParamType[object]":
    kind = option.kind
    if isinstance(kind, kinds.WholeNumber):
        low = kind.low if option.none is None else option.none
        is_shown = kind.high is not None and kind.high < _LARGEST_LIMIT_SHOWN
        return _WholeNumber(low, kind.high if is_shown else None)
    if isinstance(kind, kinds.Number):
        return _Number(kind.low, kind.high, min_open=kind.is_open)
    if isinstance(kind, kinds.Choice):
        return click.Choice(kind.names)
    if isinstance(kind, kinds.FilePath):
        return PathType()
    if isinstance(kind, JsonSchema | GrammarSource):
        return _FormFile()
    return _PLAIN.get(type(kind), click.STRING)


# Messages say `'abc' is not a valid NAME`.
class _WholeNumber(click.IntRange):
    name = "whole number"


class _Number(click.FloatRange):
    name = "number"


class _FormFile(PathType):
    """A file whose text is the value."""

    def convert(  # type: ignore[override]
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str:
        text = os.fspath(value)
        if "::=" in text or text.lstrip().startswith("{"):
            self.fail("expected the name of a file that holds it; - is stdin", param, ctx)
        return read_text(super().convert(value, param, ctx)).decode("utf-8")


class _AnyNumber(click.types.FloatParamType):
    name = "number"


class _Switch(click.types.BoolParamType):
    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> bool:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r} is neither on nor off", param, ctx)


_PLAIN: "dict[type, click.ParamType[object]]" = {
    kinds.Share: _AnyNumber(),
    kinds.Switch: _Switch(),
}


def _reading(
    name: str, option: Option[object]
) -> Callable[[click.Context, click.Parameter, object], object]:
    """A callback that reads a value as Python's would be, before anything is loaded."""

    def read(_context: click.Context, _parameter: click.Parameter, value: object) -> object:
        if option.none is not None and value == option.none:
            return None
        try:
            return option.read(option.flags[0].partition("/")[0], value)
        except PromptError as error:
            raise click.BadParameter(in_flags(error)) from None

    return read
