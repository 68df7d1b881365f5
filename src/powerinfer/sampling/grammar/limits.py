"""Limits on the cost of a form: checks before llguidance sees it, and llguidance's own."""

import re
from functools import cache

from llguidance import LLParserLimits

from powerinfer.errors import PromptError

__all__ = ["MOST_SIGNS", "check_repetitions", "check_terminals", "parser_limits", "too_many_signs"]

_MOST_REPETITIONS = 10_000
_LARGEST_PRODUCT = 100_000
MOST_SIGNS = 2000
_MOST_TERMINALS = 500
# A lexer state takes up to a kilobyte.
_LEXER_STATES = 100_000

# Skips escapes, character sets and quoted texts; finds brackets and counts.
_PARTS = re.compile(
    r"""\\. | \[(?:[^\]\\]|\\.)*\] | "(?:[^"\\\n]|\\.)*" | (\() | (\))
    | \{\s*(\d*)\s*,?\s*(\d*)\s*\} | ([?*+])""",
    re.DOTALL | re.VERBOSE,
)


_TERMINAL = re.compile(r"^\s*[A-Z][A-Z0-9_]*\s*:", re.MULTILINE)


@cache
def parser_limits() -> LLParserLimits:
    """Limits of compiling and of each step, in memory and in work."""
    return LLParserLimits(
        max_lexer_states=_LEXER_STATES,
        # Error messages go to clients, so they leave out the grammar and the text so far.
        verbose_errors=False,
    )


def check_repetitions(source: str, what: str) -> int:
    """Check the counts in braces, as in `a{3,5}`, and their products, as in `(a{3}b){5}`.

    Returns:
        The number of repetition signs; compile time grows with its square.

    Raises:
        PromptError: a count or the number is too large.
    """
    # Highest repetition of anything outside groups and inside each open group.
    most = [1]
    last = 1
    num_signs = 0
    for found in _PARTS.finditer(source):
        if found[1]:
            most.append(1)
        elif found[2]:
            last = most.pop() if len(most) > 1 else most[0]
            most[-1] = max(most[-1], last)
        elif found[5]:
            num_signs += 1
        elif found[3] or found[4]:
            num_signs += 1
            last *= _count(found[0], what, found[3], found[4])
            most[-1] = max(most[-1], last)
            if last > _LARGEST_PRODUCT:
                raise PromptError(
                    f"{what} repeats something {last} times, counts within counts multiplied; "
                    f"at most {_LARGEST_PRODUCT} are possible"
                )
        if not found[2]:
            last = 1
    if num_signs > MOST_SIGNS:
        raise too_many_signs(num_signs, what)
    return num_signs


def too_many_signs(count: int, what: str) -> PromptError:
    """Make the error for more repetition signs than `MOST_SIGNS`."""
    return PromptError(
        f"{what} repeats things in {count} places; at most {MOST_SIGNS} are possible"
    )


def check_terminals(lark: str, what: str) -> None:
    """Raise PromptError for too many lexemes in a grammar; each may contain all others."""
    count = len(_TERMINAL.findall(lark))
    if count > _MOST_TERMINALS:
        raise PromptError(
            f"{what} has {count} parts for the lexer; at most {_MOST_TERMINALS} are possible"
        )


def _count(shown: str, what: str, *numbers: str) -> int:
    """Return the larger of two numbers, one of which may be empty."""
    if any(len(each) > len(str(_MOST_REPETITIONS)) for each in numbers):
        count = _MOST_REPETITIONS + 1
    else:
        count = max(int(each or 0) for each in numbers)
    if count > _MOST_REPETITIONS:
        raise PromptError(
            f"{what} repeats something {shown:.40} times; at most {_MOST_REPETITIONS} are possible"
        )
    return max(count, 1)
