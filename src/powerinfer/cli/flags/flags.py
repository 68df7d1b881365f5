"""Click options built from the fields of `EngineOptions` and `SamplingParams`, and their values.

A field's annotation holds an `Option`: its check, which Python callers share, its flags and help.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar, cast

import click

from powerinfer._plugins import unsupported
from powerinfer.cli.files import PathType, read_text
from powerinfer.errors import PowerInferError, PromptError
from powerinfer.options import option_kinds as kinds
from powerinfer.options.llm_options import LLMOptions
from powerinfer.options.option import Option, options_of
from powerinfer.options.options import EngineOptions
from powerinfer.sampling.grammar.option_kinds import read_grammar, read_json_schema
from powerinfer.sampling.sampling_params import FORMS, SamplingParams

__all__ = [
    "CHAT_DEFAULTS",
    "Command",
    "change_sampling",
    "chat_flags",
    "flag",
    "flags",
    "in_flags",
    "llm_options",
    "sampling_params",
    "together",
]

Command = TypeVar("Command", bound=Callable[..., object])

# A field of both is a flag of the former: what texts that say nothing of it get.
_OPTIONS = options_of(SamplingParams) | options_of(EngineOptions)
_DEFAULTS: dict[str, object] = {
    field.name: field.default
    for table in (SamplingParams, EngineOptions)
    for field in fields(table)
}

CHAT_DEFAULTS = SamplingParams(max_tokens=1024)
"""Sampling parameters of a chat: its answers end before a loop fills the context."""

# Larger limits are checked, but not shown in the help.
_LARGEST_LIMIT_SHOWN = 1 << 20


def flag(
    name: str,
    *,
    help: str | None = None,  # noqa: A002  as click calls it
    default: object = None,
) -> Callable[[Command], Command]:
    """Create a decorator that adds an option's flag to a command.

    Args:
        name: field of `EngineOptions` or `SamplingParams`; the command's parameter has this name.
        help: replaces the help of the field where the option means something else to a command.
        default: replaces the default of the field.
    """
    option = _OPTIONS[name]
    if default is None:
        default = _DEFAULTS[name]
    is_switch = option.check is kinds.read_switch

    def read(_context: click.Context, _parameter: click.Parameter, value: object) -> object:
        if value in (None, option.none):
            return None
        try:
            return option.read(_first_flag(name), value)
        except PromptError as error:
            raise click.BadParameter(in_flags(error)) from None

    return click.option(
        *option.flags,
        name,
        type=_click_type(option),
        default=default,
        show_default=bool(default) and not is_switch,
        is_flag=is_switch,
        multiple=option.check is kinds.read_texts,
        metavar=option.metavar,
        envvar=option.variable,
        show_envvar=option.variable is not None,
        callback=read,
        help=help or option.help,
    )


def flags(*names: str) -> Callable[[Command], Command]:
    """Create a decorator that adds several flags, each as `flag` does."""
    return together(*map(flag, names))


def together(*decorators: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Create a decorator that adds what several add; help lists it in the order given."""

    def decorate(command: Command) -> Command:
        for each in reversed(decorators):
            command = each(command)
        return command

    return decorate


def llm_options(flags: Mapping[str, object]) -> LLMOptions:
    """Pick the options of `LLM` from a command's parameters."""
    given = {name: flags[name] for name in options_of(EngineOptions) if name in flags}
    return cast("LLMOptions", given)


def sampling_params(flags: Mapping[str, object]) -> SamplingParams:
    """Create sampling parameters from a command's parameters.

    Raises:
        PromptError: two forms are given.
    """
    names = options_of(SamplingParams).keys() - options_of(EngineOptions).keys()
    given: dict[str, Any] = {name: flags[name] for name in names & flags.keys()}
    return SamplingParams(**given)


def chat_flags() -> dict[str, str]:
    """The sampling parameters that a chat can change: name of the field to flag without `--`."""
    return {
        name: next(each for each in option.flags if each.startswith("--")).lstrip("-")
        for name, option in options_of(SamplingParams).items()
        if option.flags and name not in ("logprobs", *FORMS)
    }


def change_sampling(params: SamplingParams, name: str, text: str) -> tuple[str, SamplingParams]:
    """Change one sampling parameter as its flag would.

    Args:
        params: parameters to start from, not changed.
        name: a flag with or without its hyphens, or the field's name.
        text: the value as the command line takes it; `default` restores that of `CHAT_DEFAULTS`.
            Several texts are in quotation marks, separated by spaces.

    Returns:
        The field's name, and the new parameters.

    Raises:
        UnsupportedError: there is no such parameter; suggests the nearest.
        click.ClickException: the value is not valid.
    """
    shown = chat_flags()
    names = {each: each for each in shown}
    # Flags override fields of the same name, because flags are what users type here.
    for each in shown:
        names |= dict.fromkeys(map(_bare, _OPTIONS[each].flags), each)
    wanted = names.get(_bare(name))
    if wanted is None:
        raise unsupported("sampling parameter", name, tuple(shown.values()))
    change: dict[str, Any] = {wanted: _parse_value(wanted, text, shown[wanted])}
    return wanted, replace(params, **change)


def _bare(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def _parse_value(name: str, text: str, shown: str) -> object:
    option = _OPTIONS[name]
    if text == "default":
        return getattr(CHAT_DEFAULTS, name)
    if text.startswith(('"', "'")) and option.check is kinds.read_texts:
        return _quoted_texts(text)
    try:
        value: object = _click_type(option).convert(text, None, None)
    except click.BadParameter as error:
        raise click.ClickException(f"{shown}: {error.message}") from None
    return None if value == option.none else value


def _quoted_texts(text: str) -> tuple[str, ...]:
    """Split texts in quotation marks as a shell does; empty ones are dropped."""
    import shlex

    try:
        return tuple(each for each in shlex.split(text) if each)
    except ValueError:
        raise click.ClickException(f"{text}: a quotation mark is not closed") from None


def in_flags(error: PowerInferError, command: click.Command | None = None) -> str:
    """Word an error, with the flags of a command (None: the running one) in its remedy."""
    context = click.get_current_context(silent=True)
    if command is None and context is not None:
        command = context.command
    names = {} if command is None else {each.name: each for each in command.params}

    def phrase(name: str, value: str | None) -> str:
        shown = names.get(name)
        first = shown.opts[0] if shown is not None else _first_flag(name)
        variable = _OPTIONS[name].variable if name in _OPTIONS else None
        if variable and os.environ.get(variable):
            # Users may have set it long ago and would look for the flag in vain.
            first = f"{first} or the variable {variable}, which is set"
        if value == "False" and shown is not None and shown.secondary_opts:
            return shown.secondary_opts[0]
        return first if value in (None, "True") else f"{first} {value.strip(_QUOTES)}"

    return error.worded(phrase)


_QUOTES = "'\""


def _first_flag(name: str) -> str:
    """The first flag of an option, or the name of one that has no flag."""
    flags = _OPTIONS[name].flags if name in _OPTIONS else ()
    return flags[0].partition("/")[0] if flags else name


def _click_type(option: Option) -> "click.ParamType[Any]":
    check = option.check
    if isinstance(check, kinds.WholeNumber):
        is_shown = check.high is not None and check.high < _LARGEST_LIMIT_SHOWN
        low = check.low if option.none is None else option.none
        return _WholeNumber(low, check.high if is_shown else None)
    if isinstance(check, kinds.Number):
        return _Number(check.low, check.high, min_open=check.is_open)
    if isinstance(check, kinds.Choice):
        return click.Choice(check.names)
    return _TYPES.get(check, click.STRING)


# Messages read `'abc' is not a valid NAME`.
class _WholeNumber(click.IntRange):
    name = "whole number"


class _Number(click.FloatRange):
    name = "number"


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
            self.fail("expected the name of a file, not its content; - is stdin", param, ctx)
        return read_text(super().convert(value, param, ctx)).decode("utf-8")


_TYPES: "dict[Callable[[object], object], click.ParamType[Any]]" = {
    kinds.read_share: _AnyNumber(),
    kinds.read_switch: _Switch(),
    kinds.read_path: PathType(),
    read_json_schema: _FormFile(),
    read_grammar: _FormFile(),
}
