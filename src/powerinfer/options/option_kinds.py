"""The kinds of values that options have: what Python may pass, and how it is converted.

Importing this module must stay fast, because `--help` needs it.
"""

import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Generic, TypeVar, cast

from powerinfer import _plugins
from powerinfer.errors import PromptError
from powerinfer.options.token_bias import TokenBias

__all__ = [
    "SOLVER_NAMES",
    "Choice",
    "FilePath",
    "Functions",
    "Kind",
    "LogitBias",
    "Number",
    "Share",
    "Switch",
    "Text",
    "Texts",
    "WholeNumber",
    "as_python",
    "read_activation",
    "read_device",
    "read_kernels",
    "read_solver",
    "read_sparsity",
]

# A new solver is one new file, and shows in help and messages.
_SOLVERS = _plugins.keys("powerinfer.placement.solvers")
SOLVER_NAMES = ", ".join(_SOLVERS)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
_DEVICE = re.compile(r"cpu|auto|cuda(:\d{1,3})?")
# Beyond any logit, and a sum with one is still a finite f32.
_LARGEST_BIAS = 1e9


def as_python(value: object) -> object:
    """A scalar of numpy, or an array without dimensions, as Python's own number; else `value`."""
    item = getattr(value, "item", None)
    # The shape tells them from other things with items, without importing numpy.
    if callable(item) and getattr(value, "shape", None) == ():
        number: object = item()
        return number
    return value


class Kind(Generic[T_co]):
    """A kind of value: what Python may pass, and how it is converted.

    Attributes:
        is_hashable: of the values that `read` returns.
    """

    is_hashable: ClassVar[bool] = True

    def read(self, value: object) -> T_co:
        """Check a value and convert it; reading the result again changes nothing.

        Raises:
            ValueError: it is of another kind; the text of the error says what is wanted.
            PowerInferError: as above, where a parser has more to say.
        """
        raise NotImplementedError


class WholeNumber(Kind[int]):
    """A whole number from `low` to `high`; `note` explains a special value."""

    def __init__(self, low: int, high: int | None = None, note: str = "") -> None:
        """Keep the limits, which belong to the range."""
        self.low, self.high, self.note = low, high, note

    def read(self, value: object) -> int:
        """See `Kind`."""
        if not isinstance(value, int) or isinstance(value, bool) or not self._holds(value):
            limits = (
                f", {self.low} or more" if self.high is None else f" from {self.low} to {self.high}"
            )
            raise ValueError(f"a whole number{limits}{self.note}")
        return value

    def _holds(self, value: int) -> bool:
        return value >= self.low and (self.high is None or value <= self.high)


class Number(Kind[float]):
    """A finite number from `low` to `high`; `is_open` excludes `low` itself."""

    def __init__(
        self, low: float, high: float | None, wanted: str, *, is_open: bool = False
    ) -> None:
        self.low, self.high, self.wanted, self.is_open = low, high, wanted, is_open

    def read(self, value: object) -> float:
        """See `Kind`."""
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or not abs(value) <= sys.float_info.max  # as `math.isfinite`, which refuses long ints
            or not self.low <= value <= (math.inf if self.high is None else self.high)
            or (self.is_open and value == self.low)
        ):
            raise ValueError(self.wanted)
        return value


class Share(Kind[float]):
    """A share above 0, at most 1."""

    def read(self, value: object) -> float:
        """See `Kind`."""
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1:
            raise ValueError("above 0 and at most 1")
        return value


class Switch(Kind[bool]):
    """True or False, on the command line a flag without a value."""

    def read(self, value: object) -> bool:
        """See `Kind`."""
        if not isinstance(value, bool):
            raise ValueError("True or False")
        return value


class Choice(Kind[str]):
    """One of a few names."""

    def __init__(self, what: str, *names: str) -> None:
        self.what, self.names = what, names

    def read(self, value: object) -> str:
        """See `Kind`."""
        if value not in self.names:
            raise _plugins.unsupported(self.what, value, self.names)
        return str(value)


class FilePath(Kind[Path]):
    """The path of a file; an empty one would mean the current folder."""

    def read(self, value: object) -> Path:
        """See `Kind`."""
        if not isinstance(value, str | Path) or value == "":
            raise ValueError("the path of a file")
        return Path(value)


class Text(Kind[T_co]):
    """A text that a parser reads; the parser gets whatever Python passed."""

    def __init__(self, parse: Callable[[object], T_co]) -> None:
        self.parse = parse

    def read(self, value: object) -> T_co:
        """See `Kind`."""
        return self.parse(value)


class Texts(Kind[str | Sequence[str]]):
    """One text or several, none of them empty; several become a tuple."""

    def read(self, value: object) -> str | Sequence[str]:
        """See `Kind`."""
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
            raise ValueError("a text or a list of texts")
        if not all(texts):
            raise ValueError("a text that is not empty: an empty one stops before the first token")
        return value if isinstance(value, str) else tuple(texts)


class LogitBias(Kind[Mapping[int, float]]):
    """What is added to the logits of some tokens, by token id; minus infinity bans a token."""

    is_hashable = False

    def read(self, value: object) -> Mapping[int, float]:
        """See `Kind`; nobody can change the result."""
        if not isinstance(value, Mapping):
            raise ValueError(_BIAS)
        pairs = [(as_python(token_id), as_python(bias)) for token_id, bias in value.items()]
        read = {
            token_id: float(bias)
            for token_id, bias in pairs
            if isinstance(token_id, int)
            and not isinstance(token_id, bool)
            and token_id >= 0
            and isinstance(bias, int | float)
            and not isinstance(bias, bool)
            and (abs(bias) <= _LARGEST_BIAS or bias == -math.inf)
        }
        if len(read) < len(pairs):
            raise ValueError(_BIAS)
        return TokenBias(read)


_BIAS = (
    "a dictionary of token ids and what is added to their logits, from -1e9 to 1e9, or -inf for "
    "tokens that must not be chosen"
)


class Functions(Kind[Sequence[T]]):
    """Several functions; they become a tuple."""

    def read(self, value: object) -> Sequence[T]:
        """See `Kind`."""
        if not isinstance(value, Sequence) or not all(callable(each) for each in value):
            raise ValueError("a list of functions")
        return cast("tuple[T, ...]", tuple(value))


def read_sparsity(value: object) -> str:
    """Check the name of a sparsity: `off`, `auto`, or what predictors can be; in lower case."""
    name = str(value).strip().lower()
    if name not in ("off", "auto"):
        from powerinfer.predictors import parse_kind

        parse_kind(name)
    return name


def read_activation(value: object) -> str:
    """Check the name of an activation, FatReLU with its threshold."""
    from powerinfer.models.activation import parse_activation

    parse_activation(str(value))
    return str(value)


def read_kernels(value: object) -> str | None:
    """Take any name; an empty one, as of an environment variable, means none was given."""
    return str(value) or None


def read_device(value: object) -> str:
    """Check the name of a device; in lower case."""
    name = str(value).strip().lower()
    if not _DEVICE.fullmatch(name):
        raise PromptError(f"device must be cpu, cuda, cuda:N or auto, got {name!r:.60}")
    return name


def read_solver(value: object) -> str:
    """Check the name of a placement solver, from the file names alone; in lower case."""
    name = str(value).strip().lower()
    if name not in _SOLVERS:
        raise _plugins.unsupported("solver", name, _SOLVERS)
    return name
