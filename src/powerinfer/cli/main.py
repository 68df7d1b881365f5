"""Entry point of `powerinfer`: lazy commands, and errors as exit codes.

Exit codes: 0 done; 2 a mistake of the user or a bad file, shown in one line; 129 SIGHUP;
130 Ctrl-C; 141 the reader of the output went away; 143 SIGTERM.
"""

import ast
import errno
import importlib.util
import io
import itertools
import logging
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any, TextIO

import click

from powerinfer import _plugins
from powerinfer._version import __version__
from powerinfer.cli.flags.arguments import check_arguments
from powerinfer.cli.report.progress import clear_line
from powerinfer.cli.signals import (
    TerminatedError,
    exit_code_of_signal,
    ignore_further_signals,
)
from powerinfer.errors import PowerInferError

__all__ = ["HelpContext", "WarningFormatter", "command_names", "main"]

_NON_BREAKING_HYPHEN = "\N{NON-BREAKING HYPHEN}"

_COMMANDS = "powerinfer.cli.commands"
EXIT_ERROR = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

_EPILOG = """\b
Examples:
  powerinfer run -p 'Once upon a time' -n 64
  powerinfer run -m model.gguf -f prompt.txt --temp 0 --json
  powerinfer chat -m model.gguf --system 'You are brief.'
  powerinfer inspect model.gguf

Without -m, commands use the small model that is bundled with the package.
`powerinfer COMMAND --help` explains a command and shows examples.
"""


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


def command_names() -> list[str]:
    """Names of the commands and their parts, from the names of their files alone.

    `train_predictors` is `train-predictors`, but `bench_serve` is `bench serve`, a part of `bench`.
    """
    names, keys = [], _plugins.keys(_COMMANDS)
    for key in keys:
        command, _, part = key.partition("_")
        name = f"{command} {part}" if part and command in keys else key
        names.append(name.replace("_", "-"))
    return names


class CommandFolder(click.Group):
    """A group whose commands are the files of `cli/commands`, imported on first use."""

    context_class = HelpContext

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the commands, without their parts."""
        return [name for name in command_names() if " " not in name]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command (`bench`) or a part of it (`bench serve`); None if there is none."""
        if cmd_name not in command_names():
            return None
        module = _module(cmd_name)
        command = _plugins.load(_COMMANDS, module, "COMMAND", what="command")
        if not isinstance(command, click.Command):
            raise TypeError(f"{_COMMANDS}.{module}.COMMAND is not a click command")
        command.context_class = HelpContext
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does, with better advice on options before the command."""
        if not ctx.resilient_parsing:
            before = list(itertools.takewhile(lambda each: each.startswith("-"), args))
            check_arguments(self.params, ctx.help_option_names, before)
            own = {name for each in self.params for name in each.opts}
            for each in before:
                if each not in own | {"--", *ctx.help_option_names}:
                    ctx.fail(f"{each} goes after a command, as in: powerinfer run {each} ...")
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve as click does, with better advice on unknown commands and options."""
        names = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in names:
            from powerinfer.cli.flags.foreign_flags import about_command

            ctx.fail(about_command(args[0], names))
        name, command, rest = super().resolve_command(ctx, args)
        if rest and (part := f"{name} {rest[0]}") in command_names():
            name, command, rest = part, self.get_command(ctx, part), rest[1:]
        if command is not None and not ctx.resilient_parsing:
            check_arguments(command.params, ctx.help_option_names, rest, name)
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands from the docstrings of their files."""
        rows = [(name, _summary(name)) for name in self.list_commands(ctx)]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command and flush, so that a full disk or closed pipe is noticed in here.

        Raises:
            click.ClickException: a `PowerInferError`, worded with the command's flags.
        """
        # Python sets sys.stdout to None if descriptor 1 was closed before the start.
        if sys.stdout is None:
            _fail("stdout is closed; redirect it to /dev/null to discard the output")
        try:
            result: object = super().invoke(ctx)
            _flush_stdout()
        except PowerInferError as error:
            from powerinfer.cli.flags.flags import in_flags

            command = self.get_command(ctx, ctx.invoked_subcommand or "")
            raise click.ClickException(in_flags(error, command)) from error
        except BrokenPipeError:
            _silence_stdout()
            sys.exit(EXIT_BROKEN_PIPE)
        return result

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: FBT001, FBT002  click's signature
        **extra: object,
    ) -> Any:  # as click declares it, whose overloads leave nothing narrower
        """Run the command line; in the standalone mode (the default) never returns."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        if sys.stderr is None:
            # Closed before the start, so nobody wants to read messages.
            sys.stderr = io.StringIO()
        try:
            result = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except click.ClickException as error:
            _fail(error.format_message())
        except (click.Abort, KeyboardInterrupt):
            _ignore_interrupts()
            _finish(EXIT_INTERRUPTED)
        except TerminatedError as error:
            ignore_further_signals()
            _finish(error.exit_code)
        except MemoryError as error:
            _fail(f"not enough memory: {error or 'allocation failed'}. Try a smaller -c or model.")
        except OSError as error:
            # A closed terminal shows no message.
            if code := exit_code_of_signal():
                _finish(code)
            _fail(_describe(error))
        sys.exit(result if isinstance(result, int) else 0)


def _module(name: str) -> str:
    return name.replace("-", "_").replace(" ", "_")


def _summary(name: str) -> str:
    """First line of the docstring of a command's file, read without importing it."""
    spec = importlib.util.find_spec(f"{_COMMANDS}.{_module(name)}")
    if spec is None or spec.origin is None:
        return ""
    docstring = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8")))
    return (docstring or "").split("\n", 1)[0]


def _describe(error: OSError) -> str:
    """An operating system error as one sentence with the file it is about."""
    reason = error.strerror or str(error)
    if error.filename:
        return f"{error.filename}: {reason}"
    # Errors about files have a file name, so this one is about stdout.
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return f"cannot write the output (stdout): {reason}" if is_full else reason


def _fail(message: str) -> None:
    """Print one line on stderr and leave with exit code 2."""
    line = " ".join(message.split())
    with suppress(OSError):
        click.echo(f"error: {line}", err=True)
    _finish(EXIT_ERROR)


def _finish(code: int) -> None:
    """Exit; buffered output is written if possible."""
    try:
        _flush_stdout()
    except OSError:
        _silence_stdout()
    sys.exit(code)


def _ignore_interrupts() -> None:
    """Ignore further Ctrl-C while the program leaves because of the first one."""
    # Only the main thread may; elsewhere no Ctrl-C arrives.
    with suppress(ValueError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _flush_stdout() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def _silence_stdout() -> None:
    """Redirect stdout to /dev/null, so that the interpreter's flush at exit cannot fail again."""
    if sys.stdout is None:
        return
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


class WarningFormatter(logging.Formatter):
    """Formatter that words errors in warnings with flags, as the command line does."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record; other handlers get it unchanged."""
        if not isinstance(record.args, tuple):
            return super().format(record)
        from powerinfer.cli.flags.flags import in_flags

        worded = copy(record)
        worded.args = tuple(
            in_flags(each) if isinstance(each, PowerInferError) else each for each in record.args
        )
        return super().format(worded)


class _AboveBars(logging.StreamHandler[TextIO]):
    """Handler that removes a progress bar before it writes to stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; the bar returns with its next report."""
        clear_line()
        super().emit(record)


def _show_warnings() -> None:
    """Send the library's warnings to stderr, one line each."""
    handler = _AboveBars()
    handler.setFormatter(WarningFormatter("%(levelname)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    for level in (logging.WARNING, logging.ERROR):
        logging.addLevelName(level, logging.getLevelName(level).lower())


@click.group(
    cls=CommandFolder,
    invoke_without_command=True,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, "--version", prog_name="powerinfer")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Run language models fast by computing only the neurons that fire."""
    _show_warnings()
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character gets a question mark, not an exception.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        sys.exit(EXIT_ERROR)
