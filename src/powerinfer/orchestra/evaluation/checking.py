"""Checkers of answers: whether a text gives the answer that is wanted."""

import re
from enum import StrEnum

__all__ = ["Check", "is_right"]

_NUMBER = re.compile(r"(?<![\w.])[-+\N{MINUS SIGN}]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?!\w)")
_INTRODUCTION = re.compile(r"^(?:the )?(?:final )?answer(?: is|:)\s+")
_TOLERANCE = 1e-6
_LONGEST = 10_000
"""Characters of an answer that are read."""


class Check(StrEnum):
    """How an answer is compared with the right one.

    EXACT: equal apart from space around it. NUMERIC: its last number is equal. NORMALIZED: equal
    apart from case, punctuation at the ends, space and "the answer is".
    """

    EXACT = "exact"
    NUMERIC = "numeric"
    NORMALIZED = "normalized"


def is_right(answer: str, gold: str, check: Check) -> bool:
    """Compare an answer with the right one."""
    answer = answer[:_LONGEST]
    match check:
        case Check.EXACT:
            return answer.strip() == gold.strip()
        case Check.NORMALIZED:
            return _normalized(answer) == _normalized(gold)
        case Check.NUMERIC:
            found, wanted = _last_number(answer), _last_number(gold)
            if found is None or wanted is None:
                return False
            return abs(found - wanted) <= _TOLERANCE * max(1.0, abs(wanted))


def _last_number(text: str) -> float | None:
    found = _NUMBER.findall(text)
    return float(found[-1].replace(",", "").replace("\N{MINUS SIGN}", "-")) if found else None


def _normalized(text: str) -> str:
    words = " ".join(text.casefold().split())
    return _INTRODUCTION.sub("", words).strip(" .,;:!?\"'`*()[]")
