"""Checks of option values: what Python callers may pass, and what it is converted to.

Each check takes any object and returns the value to keep. It raises ValueError, whose text says
what the value must be, or a PowerInferError where it has more to say. `--help` imports this module,
so it must import quickly.
"""

import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from powerinfer import _plugins
from powerinfer.errors import PromptError

__all__ = [
    "DRAFT_OFF",
    "DRAFT_SHORTEST",
    "SOLVER_NAMES",
    "Choice",
    "Number",
    "WholeNumber",
    "as_python",
    "read_activation",
    "read_activation_threshold",
    "read_device",
    "read_draft",
    "read_functions",
    "read_kernels",
    "read_logit_bias",
    "read_path",
    "read_share",
    "read_solver",
    "read_sparsity",
    "read_switch",
    "read_texts",
]

# File names alone, so that a new solver is one new file and help stays fast.
_SOLVERS = _plugins.keys("powerinfer.placement.solvers")
SOLVER_NAMES = ", ".join(_SOLVERS)

DRAFT_OFF = "off"
DRAFT_SHORTEST = 3
_DRAFT = re.compile(r"auto|off|ngram(:([1-9]|[1-5][0-9]|6[0-4]))?")
_DEVICE = re.compile(r"cpu|auto|cuda(:\d{1,3})?")
# Exceeds any logit, and a sum with it is still a finite f32.
_LARGEST_BIAS = 1e9


class TokenBias(Mapping[int, float]):
    """Numbers by token id; equal to a dictionary of the same content, and can be pickled."""

    __slots__ = ("_by_id",)

    def __init__(self, by_id: dict[int, float]) -> None:
        """Take a dictionary over, which nobody may change from now on."""
        self._by_id = by_id

    def __getitem__(self, token_id: int) -> float:
        return self._by_id[token_id]

    def __iter__(self) -> Iterator[int]:
        return iter(self._by_id)

    def __len__(self) -> int:
        return len(self._by_id)

    def __repr__(self) -> str:
        return repr(self._by_id)


def as_python(value: object) -> object:
    """Convert a NumPy scalar or zero-dimensional array to Python's number; pass the rest on."""
    item = getattr(value, "item", None)
    # Told by the shape, because importing numpy would slow `--help` down.
    if callable(item) and getattr(value, "shape", None) == ():
        number: object = item()
        return number
    return value


@dataclass(frozen=True)
class WholeNumber:
    """Check for a whole number from `low` to `high`; `note` ends the message."""

    low: int
    high: int | None = None
    note: str = ""

    def __call__(self, value: object) -> int:
        """Return the number."""
        if _is_whole(value) and _is_within(value, self.low, self.high):
            return value
        limits = (
            f", {self.low} or more" if self.high is None else f" from {self.low} to {self.high}"
        )
        raise ValueError(f"a whole number{limits}{self.note}")


@dataclass(frozen=True)
class Number:
    """Check for a finite number from `low` to `high`; `is_open` excludes `low` itself.

    `wanted` completes the message "must be ...".
    """

    low: float
    high: float | None
    wanted: str
    is_open: bool = False

    def __call__(self, value: object) -> float:
        """Return the number."""
        if (
            not _is_number(value)
            # Unlike `math.isfinite`, this takes integers too large for a float.
            or not abs(value) <= sys.float_info.max
            or not _is_within(value, self.low, self.high)
            or (self.is_open and value == self.low)
        ):
            raise ValueError(self.wanted)
        return value


@dataclass(frozen=True)
class Choice:
    """Check for one of a few names; `what` is the noun in the message."""

    what: str
    names: tuple[str, ...]

    def __call__(self, value: object) -> str:
        """Return the name."""
        if value not in self.names:
            raise _plugins.unsupported(self.what, value, self.names)
        return str(value)


def read_share(value: object) -> float:
    """Check for a share above 0, at most 1."""
    if not _is_number(value) or not 0 < value <= 1:
        raise ValueError("above 0 and at most 1")
    return value


def read_switch(value: object) -> bool:
    """Check for True or False; on the command line a flag without a value."""
    if not isinstance(value, bool):
        raise ValueError("True or False")
    return value


def read_path(value: object) -> Path:
    """Convert the path of a file; refuse an empty one, which would mean the current folder."""
    if not isinstance(value, str | Path) or value == "":
        raise ValueError("the path of a file")
    return Path(value)


def read_texts(value: object) -> str | tuple[str, ...]:
    """Check for one text or several, none of them empty; turn several into a tuple."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise ValueError("a text or a list of texts")
    if not all(texts):
        raise ValueError("a text that is not empty: an empty one stops before the first token")
    return value if isinstance(value, str) else tuple(texts)


def read_functions(value: object) -> tuple[Callable[..., object], ...]:
    """Check for several functions; turn them into a tuple."""
    if not isinstance(value, Sequence) or not all(callable(each) for each in value):
        raise ValueError("a list of functions")
    return tuple(value)


def read_logit_bias(value: object) -> TokenBias:
    """Convert a mapping from token ids to biases; minus infinity bans a token."""
    if not isinstance(value, Mapping):
        raise ValueError(_BIASES)
    biases: dict[int, float] = {}
    for key, each in value.items():
        token_id, bias = as_python(key), as_python(each)
        if not (_is_whole(token_id) and token_id >= 0 and _is_number(bias)):
            raise ValueError(_BIASES)
        if not (abs(bias) <= _LARGEST_BIAS or bias == -math.inf):
            raise ValueError(_BIASES)
        biases[token_id] = float(bias)
    return TokenBias(biases)


_BIASES = (
    "a dictionary of token ids and what is added to their logits, from -1e9 to 1e9, or -inf for "
    "tokens that must not be chosen"
)


def read_sparsity(value: object) -> str:
    """Check for `off`, `auto` or the name of a predictor; return it in lower case."""
    name = str(value).strip().lower()
    if name not in ("off", "auto"):
        from powerinfer.predictors import parse_kind

        parse_kind(name)
    return name


def read_activation(value: object) -> str:
    """Check for the name of an activation; FatReLU includes its threshold."""
    from powerinfer.models.activation import parse_activation

    parse_activation(str(value))
    return str(value)


def read_activation_threshold(value: object) -> float | str:
    """Check for `auto` or a threshold of an activation, which texts may give, too."""
    name = str(value).strip().lower()
    try:
        return name if name == "auto" else _THRESHOLD(float(name))
    except ValueError:
        raise ValueError(_THRESHOLD.wanted) from None


_THRESHOLD = Number(0.0, 1e9, "auto, or a number from 0 to 1e9")


def read_kernels(value: object) -> str | None:
    """Take any name; an empty one, such as an empty environment variable, stands for None."""
    return str(value) or None


def read_device(value: object) -> str:
    """Check for the name of a device; return it in lower case."""
    name = str(value).strip().lower()
    if not _DEVICE.fullmatch(name):
        raise PromptError(f"device must be cpu, cuda, cuda:N or auto, got {name!r:.60}")
    return name


def read_solver(value: object) -> str:
    """Check for the name of a placement solver; return it in lower case."""
    name = str(value).strip().lower()
    if name not in _SOLVERS:
        raise _plugins.unsupported("solver", name, _SOLVERS)
    return name


# Python counts True and False as numbers.
def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_within(value: float, low: float, high: float | None) -> bool:
    return low <= value and (high is None or value <= high)


def read_draft(value: object) -> str:
    """Check for `auto`, `off`, `ngram` or `ngram:N`; return it in lower case."""
    name = str(value).strip().lower()
    if not _DRAFT.fullmatch(name):
        raise ValueError("auto, off, ngram or ngram:N with N from 1 to 64")
    return name
