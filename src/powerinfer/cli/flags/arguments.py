"""Check of the arguments before click parses them, for flags that click would misread.

Click takes `-ngl 33` for `-n gl`, `-hf X` for `-h` and `-f X`, `-fa` for the file `a`. Here only
numbers may follow a short option without a space, so that all of these are unknown options.
"""

from collections import deque
from collections.abc import Mapping, Sequence

import click

__all__ = ["check_arguments"]


def check_arguments(
    parameters: Sequence[click.Parameter],
    help_names: Sequence[str],
    arguments: Sequence[str],
    command: str | None = None,
) -> None:
    """Refuse options of other programs, and short options joined to something else.

    Raises:
        click.UsageError: an option is unknown or joined to others, or an argument is unexpected.
    """
    options: dict[str, click.Option | None] = dict.fromkeys(help_names)
    for each in parameters:
        if isinstance(each, click.Option):
            options.update(dict.fromkeys((*each.opts, *each.secondary_opts), each))
    takes_arguments = any(isinstance(each, click.Argument) for each in parameters)
    remaining = deque(arguments)
    without_value = ""
    while remaining:
        argument = remaining.popleft()
        if argument == "--":
            return
        if not argument.startswith("-") or argument == "-":
            if not takes_arguments and command is not None:
                raise click.UsageError(without_value or _about_argument(argument, options))
            continue
        name = argument.partition("=")[0]
        if argument in options or (name in options and name.startswith("--")):
            option = options[name]
            if option is not None and not option.is_flag and "=" not in argument:
                value = _skip_value(option, remaining)
                # `--zeros -f text.txt`: what follows it is no argument of the command.
                without_value = f"{name} needs a value before {value}" if value in options else ""
        elif not _is_short_with_number(argument, options):
            _check_unknown(name, argument, options, command)


def _skip_value(option: click.Option, remaining: deque[str]) -> str:
    """Remove the value of an option from the remaining arguments; empty if it may have none."""
    # A value may look like an option: `-p '-ngl is a flag'`. An optional one does not.
    may_be_missing = isinstance(option.flag_value, str)
    if remaining and not (may_be_missing and remaining[0].startswith("-")):
        return remaining.popleft()
    return ""


def _is_short_with_number(argument: str, options: Mapping[str, click.Option | None]) -> bool:
    option, rest = options.get(argument[:2]), argument[2:]
    takes_numbers = option is not None and isinstance(option.type, click.types.IntParamType)
    return takes_numbers and rest.removeprefix("-")[:1].isdigit()


def _about_argument(argument: str, options: Mapping[str, click.Option | None]) -> str:
    models = ": models are named with -m" if "-m" in options else ""
    prompts = ", and `powerinfer run` takes a prompt" if models else ""
    return f"unexpected argument {argument!r}{models}{prompts}"


def _check_unknown(
    name: str,
    argument: str,
    options: Mapping[str, click.Option | None],
    command: str | None,
) -> None:
    from powerinfer.cli.flags.foreign_flags import about_option, advice_for

    short, rest = argument[:2], argument[2:]
    advice = advice_for(name, command)
    if advice is not None:
        raise click.UsageError(f"no option {name}: {advice}")
    if not argument.startswith("--") and rest and short in options:
        import shlex

        option = options[short]
        is_switch = option is None or option.is_flag
        # The value as a shell needs it; `-t=4` is how other programs write `-t 4`.
        value = rest.removeprefix("=") if name == short else rest
        shown = shlex.quote(value) if value else "VALUE"
        apart = "" if is_switch else f"; if {short} was meant, write {short} {shown}"
        raise click.UsageError(f"no option {argument}{apart}")
    if command is not None:
        raise click.UsageError(about_option(name, options, command))
