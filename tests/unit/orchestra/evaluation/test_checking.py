"""Checkers of answers."""

import pytest

from powerinfer.orchestra.evaluation.checking import Check, is_right


@pytest.mark.parametrize(
    ("answer", "gold", "check", "expected"),
    [
        (" 42\n", "42", Check.EXACT, True),
        ("42.", "42", Check.EXACT, False),
        ("42.", "42", Check.NUMERIC, True),
        ("12 * 3 + 6 = 42", "42", Check.NUMERIC, True),
        ("42 or 43", "42", Check.NUMERIC, False),
        ("about 1,234.50 pieces", "1234.5", Check.NUMERIC, True),
        ("\N{MINUS SIGN}7", "-7", Check.NUMERIC, True),
        ("7", "-7", Check.NUMERIC, False),
        ("1e9", "9", Check.NUMERIC, False),
        ("x42", "42", Check.NUMERIC, False),
        ("none", "42", Check.NUMERIC, False),
        ("The answer is **Monday**.", "monday", Check.NORMALIZED, True),
        ("Answer: Ada  Berg", "Ada Berg", Check.NORMALIZED, True),
        ("Monday or Tuesday", "Monday", Check.NORMALIZED, False),
        ("", "Monday", Check.NORMALIZED, False),
    ],
)
def test_answers_are_compared(answer: str, gold: str, check: Check, *, expected: bool) -> None:
    assert is_right(answer, gold, check) is expected


def test_a_flood_of_digits_is_read_in_part() -> None:
    assert not is_right("9" * 1_000_000, "42", Check.NUMERIC)
