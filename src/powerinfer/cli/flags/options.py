"""Options that several commands share, as decorators."""

import json
import re
from collections.abc import Callable, Mapping

import click

from powerinfer.cli.files import ModelPath
from powerinfer.cli.flags.flags import Command, add_flags, flag
from powerinfer.options.option import options_of
from powerinfer.options.options import ContextOptions, EngineOptions
from powerinfer.sampling.sampling_params import FORMS, SamplingParams

__all__ = [
    "decode_escapes",
    "engine_options",
    "form_options",
    "json_option",
    "model_option",
    "parallel_options",
    "print_json",
    "sampling_options",
]

# A command that has them says so, because their default differs or only it prints the result.
_FLAGS_OF_FEW = ("max_tokens", "logprobs", *FORMS)

model_option = click.option(
    "-m",
    "--model",
    "model",
    type=ModelPath(),
    metavar="PATH",
    help="GGUF file, first part of a split file, a folder with one GGUF file in it, or "
    "hf:ORG/NAME[:QUANT][@REVISION] on huggingface.co. [default: the model in the package]",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object on stdout instead of text."
)


def engine_options(
    command: Command, *, context: Callable[[Command], Command] | None = None
) -> Command:
    """Add -m and the flag of every option that goes into loading a model.

    Args:
        command: to add them to.
        context: the flag -c, for a command where it means something else.
    """
    decorators: list[Callable[[Command], Command]] = [
        context if context is not None and name == "context_length" else flag(name)
        for name, option in options_of(EngineOptions).items()
        if option.flags and name not in options_of(ContextOptions)
    ]
    return add_flags(command, model_option, *decorators)


def parallel_options(command: Command) -> Command:
    """Add the flags of a command that computes texts side by side."""
    return add_flags(
        command,
        click.option(
            "-np",
            "--parallel",
            type=click.IntRange(1, 1 << 16),
            default=8,
            show_default=True,
            help="Most texts that are computed at once; each has a context of its own.",
        ),
        click.option(
            "--kv-tokens",
            type=click.IntRange(1, 1 << 31),
            metavar="N",
            help="Tokens of all texts together whose keys and values there is memory for. "
            "[default: --parallel times -c]",
        ),
    )


def sampling_options(command: Command) -> Command:
    """Add the flags that choose the next token, and those that end a text early."""
    names = (
        name
        for name, option in options_of(SamplingParams).items()
        if option.flags and name not in _FLAGS_OF_FEW
    )
    return add_flags(command, *map(flag, names))


def form_options(command: Command) -> Command:
    """Add the flags that keep the text to a schema, an expression or a grammar."""
    return add_flags(command, *map(flag, FORMS))


def print_json(value: Mapping[str, object]) -> None:
    """Print one JSON object on one line of stdout."""
    click.echo(json.dumps(value, ensure_ascii=False, allow_nan=False))


_ESCAPE = re.compile(rb"\\(?:([ntr0\\\"'])|x([0-9a-fA-F]{2}))")
_ESCAPED = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"0": b"\0"}


def decode_escapes(text: bytes) -> bytes:
    r"""Replace ``\n \t \r \0 \\ \" \'`` and ``\xHH`` (one byte) by what they stand for.

    An unknown escape is kept as it is written.
    """

    def replaced(match: re.Match[bytes]) -> bytes:
        letter, code = match.groups()
        return bytes.fromhex(code.decode()) if code else _ESCAPED.get(letter, letter)

    return _ESCAPE.sub(replaced, text)
