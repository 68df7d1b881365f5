"""A look at the arguments before click reads them, for flags that click would misunderstand.

Click takes `-ngl 33` for `-n gl`, `-hf X` for `-h` and `-f X`, `-fa` for the file `a`. Here only
numbers may follow a short option without a space, so that none of these is anything but unknown.
"""

from collections.abc import Mapping, Sequence

import click

__all__ = ["check_arguments"]


def check_arguments(
    parameters: Sequence[click.Parameter], help_names: Sequence[str], arguments: Sequence[str]
) -> None:
    """Refuse options of other programs, and short ones that stand together with something else.

    Args:
        parameters: of the command.
        help_names: names of the option for help.
        arguments: what follows the command's name.

    Raises:
        click.UsageError: an option is unknown here, or stands together with others.
    """
    options: dict[str, click.Option | None] = dict.fromkeys(help_names)
    for each in parameters:
        if isinstance(each, click.Option):
            options.update(dict.fromkeys((*each.opts, *each.secondary_opts), each))
    remaining = iter(arguments)
    for argument in remaining:
        if argument == "--":
            return
        if not argument.startswith("-") or argument == "-":
            continue
        name = argument.partition("=")[0]
        if argument in options or (name in options and name.startswith("--")):
            option = options[name]
            if option is not None and not option.is_flag and "=" not in argument:
                # A value may look like an option: `-p '-ngl is a flag'`.
                next(remaining, None)
        else:
            _check_unknown(name, argument, options)


def _check_unknown(name: str, argument: str, options: Mapping[str, click.Option | None]) -> None:
    short, rest = argument[:2], argument[2:]
    if _takes_numbers(options.get(short)) and rest.removeprefix("-")[:1].isdigit():
        return
    from powerinfer.cli.foreign_flags import advice_for

    advice = advice_for(name)
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


def _takes_numbers(option: click.Option | None) -> bool:
    return option is not None and isinstance(option.type, click.types.IntParamType)
