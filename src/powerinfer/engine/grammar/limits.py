"""What a form may cost: sizes that are checked before llguidance sees it, and its own limits."""

import re
from functools import cache

from llguidance import LLParserLimits

from powerinfer.errors import PromptError

__all__ = ["check_repetitions", "parser_limits"]

MOST_REPETITIONS = 10_000
# A lexer state takes up to a kilobyte.
_LEXER_STATES = 100_000

_COUNTS = re.compile(r"\{\s*(\d*)\s*,?\s*(\d*)\s*\}")


@cache
def parser_limits() -> LLParserLimits:
    """Limits of compiling and of each step, in memory and in work."""
    return LLParserLimits(
        max_lexer_states=_LEXER_STATES,
        # Error messages go to clients: without the grammar and the text so far.
        verbose_errors=False,
    )


def check_repetitions(source: str, what: str) -> None:
    """Check the numbers in braces, as in `a{3,5}`.

    Raises:
        PromptError: one is too large; the work grows with it.
    """
    for found in _COUNTS.finditer(source):
        for digits in found.groups():
            if len(digits) > len(str(MOST_REPETITIONS)) or int(digits or 0) > MOST_REPETITIONS:
                raise PromptError(
                    f"{what} repeats something {found[0]:.40} times; "
                    f"at most {MOST_REPETITIONS} are possible"
                )
