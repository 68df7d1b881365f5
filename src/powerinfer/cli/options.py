"""Options that several commands share, as decorators, and what turns them into engine arguments.

Nothing here imports the engine: `--help` must stay cheap.
"""

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from powerinfer.cli.device_options import device_options
from powerinfer.cli.files import PathType
from powerinfer.cli.sparsity_options import sparsity_options

__all__ = [
    "activation_option",
    "context_option",
    "decode_escapes",
    "engine_options",
    "json_option",
    "kernels_option",
    "kv_type_option",
    "model_option",
    "print_json",
    "sampling_options",
    "threads_option",
]

Command = TypeVar("Command", bound=Callable[..., Any])
MAX_THREADS = 512

model_option = click.option(
    "-m",
    "--model",
    "model",
    type=PathType(),
    metavar="PATH",
    help="GGUF file, first part of a split file, or a folder with one GGUF file in it. "
    "[default: the model in the package]",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object on stdout instead of text."
)
threads_option = click.option(
    "-t",
    "--threads",
    type=click.IntRange(1, MAX_THREADS),
    metavar="N",
    help="Threads to compute with. [default: physical cores, beside a GPU two fewer]",
)
context_option = click.option(
    "-c",
    "--context",
    "--ctx-size",
    "context_length",
    type=click.IntRange(min=1),
    metavar="N",
    help="Context in tokens, prompt and answer together. [default: the model's, at most 4096]",
)
activation_option = click.option(
    "--activation",
    metavar="NAME",
    help="FFN activation, where the file does not say it: silu, gelu, relu, drelu, relu2 or "
    "fatrelu:THRESHOLD.",
)
kv_type_option = click.option(
    "--kv-type",
    type=click.Choice(["f16", "q8_0"]),
    default="f16",
    show_default=True,
    help="Element type of the KV cache.",
)
_mmap_option = click.option(
    "--mmap/--no-mmap",
    default=True,
    help="--no-mmap copies the weights into huge pages instead of using the mapped file: a slower "
    "start, faster decoding, above all of sparse F16 models. [default: --mmap]",
)
kernels_option = click.option(
    "--kernels",
    envvar="POWERINFER_KERNELS",
    show_envvar=True,
    metavar="SET",
    help="Instruction set of the kernels, or 'reference' for plain numpy. "
    "[default: the best this machine has]",
)


def engine_options(
    command: Command, *, context: Callable[[Command], Command] = context_option
) -> Command:
    """Add every option that goes into loading a model, -m to --kernels.

    Args:
        command: to add them to.
        context: the option -c, for a command where it means something else.
    """
    for option in (
        kernels_option,
        _mmap_option,
        device_options,
        sparsity_options,
        activation_option,
        kv_type_option,
        threads_option,
        context,
        model_option,
    ):
        command = option(command)
    return command


def sampling_options(command: Command) -> Command:
    """Add the options that choose the next token, with the defaults of `SamplingParams`."""
    for option in reversed(_SAMPLING):
        command = option(command)
    return command


_SAMPLING = (
    click.option(
        "--temp",
        "temperature",
        type=click.FloatRange(min=0.0),
        default=0.8,
        show_default=True,
        metavar="T",
        help="Temperature; 0 always takes the likeliest token.",
    ),
    click.option(
        "--top-k",
        type=click.IntRange(min=0),
        default=40,
        show_default=True,
        metavar="K",
        help="Keep the K likeliest tokens; 0 keeps all.",
    ),
    click.option(
        "--top-p",
        type=click.FloatRange(0.0, 1.0, min_open=True),
        default=0.95,
        show_default=True,
        metavar="P",
        help="Keep the likeliest tokens that together reach probability P.",
    ),
    click.option(
        "--min-p",
        type=click.FloatRange(0.0, 1.0),
        default=0.05,
        show_default=True,
        metavar="P",
        help="Drop tokens less likely than P times the likeliest.",
    ),
    click.option(
        "--repeat-penalty",
        type=click.FloatRange(1e-3, 1e3),
        default=1.0,
        show_default=True,
        metavar="X",
        help="Divide the scores of recent tokens by X; 1 leaves them.",
    ),
    click.option(
        "--repeat-last-n",
        type=click.IntRange(min=0),
        default=64,
        show_default=True,
        metavar="N",
        help="How many recent tokens the penalty sees.",
    ),
    click.option(
        "-s",
        "--seed",
        type=click.IntRange(min=-1),
        metavar="N",
        help="Seed of the sampler; the same seed gives the same text. [default: -1, a new one]",
    ),
    click.option(
        "--stop",
        multiple=True,
        metavar="TEXT",
        help="Stop before this text; may be given several times.",
    ),
    click.option(
        "--ignore-eos", is_flag=True, help="Never choose a token that ends the generation."
    ),
)


def print_json(value: dict[str, Any]) -> None:
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
