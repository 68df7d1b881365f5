"""Tables of options: frozen dataclasses whose fields are annotated with an `Option`.

`EngineOptions` and `SamplingParams` are the two tables. `--help` imports this module, so it must
import quickly.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from types import NoneType
from typing import Self, get_args

from powerinfer import _plugins
from powerinfer.errors import PromptError, UnsupportedError
from powerinfer.options.option_kinds import as_python

__all__ = ["Option", "OptionTable", "options_of"]

_LONGEST_SHOWN = 60


@dataclass(frozen=True)
class Option:
    """Check, flag and help of an option, kept in the annotation of its field.

    Attributes:
        check: returns a value converted; raises ValueError, whose text completes "must be ...",
            or a PowerInferError. Checking a result again changes nothing.
        usage: flags and metavar as help shows them, such as `-t --threads N` or
            `--mmap/--no-mmap`; empty for an option that only Python has.
        variable: environment variable that the command line reads.
        none: number that stands for None on the command line.
    """

    check: Callable[[object], object]
    usage: str = ""
    help: str = ""
    variable: str | None = None
    none: int | None = None

    # Short, because `help(SamplingParams)` shows it for every parameter.
    def __repr__(self) -> str:
        return f"Option({self.usage!r})"

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags; a pair such as `--mmap/--no-mmap` is one of them."""
        return tuple(word for word in self.usage.split() if word.startswith("-"))

    @property
    def metavar(self) -> str | None:
        """The name of the value in help."""
        return next((word for word in self.usage.split() if not word.startswith("-")), None)

    def read(self, name: str, value: object, what: str = "option") -> object:
        """Check and convert a value.

        Args:
            what: noun for the option in messages.

        Raises:
            PowerInferError: the check refuses the value.
        """
        try:
            return self.check(value)
        except ValueError as error:
            shown = repr(value)[:_LONGEST_SHOWN]
            raise PromptError(f"{what} {name} must be {error}, got {shown}") from None


@dataclass(frozen=True)
class OptionTable:
    """Base of frozen dataclasses with fields `name: Annotated[type, Option(...)] = default`.

    Values are checked and converted when an object is created.
    """

    # The noun for an option in messages.
    _what = "option"

    def __new__(cls, *_values: object, **given: object) -> Self:
        """Refuse a misspelt name with a suggestion; `__init__` would raise a bare TypeError."""
        for name in given:
            if name not in cls.__dataclass_fields__:
                raise _unknown(cls, name)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for field in fields(self):
            hint, option = get_args(field.type)
            value = as_python(getattr(self, field.name))
            # Checks need not know None where the type allows it.
            if value is not None or NoneType not in get_args(hint):
                value = option.read(field.name, value, self._what)
            object.__setattr__(self, field.name, value)


def options_of(table: type[OptionTable]) -> dict[str, Option]:
    """The options of a table by name, in order."""
    return {field.name: get_args(field.type)[1] for field in fields(table)}


def _unknown(table: type[OptionTable], name: str) -> UnsupportedError:
    options = options_of(table)
    flag = "--" + name.replace("_", "-")
    meant = [known for known, option in options.items() if flag in option.flags]
    if _ELSEWHERE.get(name) in options:
        meant.append(_ELSEWHERE[name])
    if not meant:
        return _plugins.unsupported(table._what, name, tuple(options))
    hint = f"Did you mean {meant[0]!r}? Supported: {', '.join(options)}."
    return UnsupportedError(f"{table._what} {name!r} is not supported. {hint}")


# Names in other libraries.
_ELSEWHERE = {
    "n_ctx": "context_length",
    "n_threads": "threads",
    "n_gpu_layers": "vram_budget",
    "n_batch": "batch_size",
    "n_keep": "keep_tokens",
    "max_new_tokens": "max_tokens",
    "num_predict": "max_tokens",
    "repetition_penalty": "repeat_penalty",
}
