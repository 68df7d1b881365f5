"""One option: its kind of value, its default, and its names on the command line.

`EngineOptions` and `SamplingParams` are tables of options. Importing this module must stay fast,
because `--help` needs the tables.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, FrozenInstanceError, dataclass, field
from typing import ClassVar, Generic, Protocol, TypeVar, cast, overload

from powerinfer import _plugins
from powerinfer.errors import PromptError, UnsupportedError
from powerinfer.options.option_kinds import Kind, as_python

__all__ = [
    "Option",
    "Table",
    "checks_names",
    "option",
    "options_of",
    "read_in_place",
    "read_options",
]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
_METADATA = "option"
_LONGEST_SHOWN = 60


class Table(Protocol):
    """A dataclass whose fields are options."""

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]


@dataclass(frozen=True, slots=True)
class Option(Generic[T_co]):
    """All that is known about an option but its name, which is the field's.

    Attributes:
        kind: of its value.
        default: value of an option that is not given; None makes None a value.
        help: text for `--help`; of an option without flags, for readers of the table.
        flags: names on the command line, such as `-c` and `--context`, or `--mmap/--no-mmap`.
        metavar: what the command line's help calls the value.
        variable: environment variable that the command line reads.
        none: number that stands for None on the command line; makes None a value, too.
    """

    kind: Kind[T_co]
    default: T_co | None
    help: str
    flags: tuple[str, ...]
    metavar: str | None
    variable: str | None
    none: int | None

    def read(self, name: str, value: object, what: str = "option") -> T_co | None:
        """Check and convert one value; numpy's scalars count as Python's.

        Raises:
            PowerInferError: the value is not of the option's kind.
        """
        value = as_python(value)
        if value is None and (self.default is None or self.none is not None):
            return None
        try:
            return self.kind.read(value)
        except ValueError as error:
            shown = repr(value)[:_LONGEST_SHOWN]
            raise PromptError(f"{what} {name} must be {error}, got {shown}") from None


@overload
def option(
    kind: Kind[T],
    *,
    default: None = None,
    help: str,
    flags: str = "",
    metavar: str | None = None,
    variable: str | None = None,
    none: int | None = None,
) -> T | None: ...
@overload
def option(
    kind: Kind[T],
    *,
    default: T,
    help: str,
    flags: str = "",
    metavar: str | None = None,
    variable: str | None = None,
    none: int | None = None,
) -> T: ...
def option(
    kind: Kind[T],
    *,
    default: T | None = None,
    help: str,  # noqa: A002
    flags: str = "",
    metavar: str | None = None,
    variable: str | None = None,
    none: int | None = None,
) -> T | None:
    """A field of a table of options; see `Option`, whose `flags` stand in one text here.

    Tables that differ only in values that cannot be hashed are not equal, but have the same hash.
    """
    entry = Option(kind, default, help, tuple(flags.split()), metavar, variable, none)
    hashed = None if kind.is_hashable else False
    made: T | None = field(default=default, hash=hashed, metadata={_METADATA: entry})
    return made


def options_of(table: type[Table]) -> dict[str, Option[object]]:
    """The options of a table by their names, in its order."""
    return {name: found.metadata[_METADATA] for name, found in table.__dataclass_fields__.items()}


def read_options(
    table: type[Table], build: Callable[..., T], given: Mapping[str, object], what: str
) -> T:
    """Build a table from values as a caller gave them, each read once.

    Args:
        table: whose options are read.
        build: makes the object; the class itself.
        given: by name; what is missing has its default.
        what: what an option is called in messages.

    Raises:
        UnsupportedError: an option does not exist; names the nearest and all there are.
        PowerInferError: a value is not of its option's kind.
    """
    options = options_of(table)
    _check_names(table, given, what)
    return build(**{name: options[name].read(name, value, what) for name, value in given.items()})


def checks_names(what: str) -> Callable[[type[T]], type[T]]:
    """Make a table say what a misspelt name should have been; a decorator for its class.

    Args:
        what: what an option is called in messages.
    """

    def decorate(table: type[T]) -> type[T]:
        make = table.__init__

        @functools.wraps(make)
        def checked(self: T, *values: object, **given: object) -> None:
            _check_names(cast("type[Table]", table), given, what)
            make(self, *values, **given)

        def refuse(self: T, name: str, _value: object) -> None:
            raise FrozenInstanceError(
                f"{what}s cannot be changed: make new ones for another {name}"
            )

        type.__setattr__(table, "__init__", checked)
        type.__setattr__(table, "__setattr__", refuse)  # Python's own fails for misspelt names
        return table

    return decorate


def read_in_place(table: Table, what: str) -> None:
    """Check all values of an object that a caller is building, and keep them as they are read.

    For `__post_init__` alone: afterwards a frozen table stays as it is.

    Raises:
        PowerInferError: a value is not of its option's kind.
    """
    for name, entry in options_of(type(table)).items():
        object.__setattr__(table, name, entry.read(name, getattr(table, name), what))


def _check_names(table: type[Table], given: Iterable[str], what: str) -> None:
    options = options_of(table)
    for name in given:
        if name in options:
            continue
        flag = "--" + name.replace("_", "-")
        meant = [known for known, entry in options.items() if flag in entry.flags]
        meant += [known for known in _ELSEWHERE.get(name, ()) if known in options]
        if meant:
            hint = f"Did you mean {meant[0]!r}? Supported: {', '.join(options)}."
            raise UnsupportedError(f"{what} {name!r} is not supported. {hint}")
        raise _plugins.unsupported(what, name, tuple(options))


# What other libraries call an option.
_ELSEWHERE: dict[str, tuple[str, ...]] = {
    "n_ctx": ("context_length",),
    "n_threads": ("threads",),
    "n_gpu_layers": ("vram_budget",),
    "n_batch": ("batch_size",),
    "n_keep": ("keep_tokens",),
    "max_new_tokens": ("max_tokens",),
    "num_predict": ("max_tokens",),
    "repetition_penalty": ("repeat_penalty",),
}
