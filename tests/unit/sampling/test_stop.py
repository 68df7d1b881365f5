"""Stop strings in text that arrives in pieces."""

import pytest

from powerinfer.sampling.stop import StopMatcher


@pytest.mark.parametrize("length", range(1, 5))
def test_every_beginning_of_a_stop_string_is_held_back(length: int) -> None:
    matcher = StopMatcher(["STOPS"])
    assert matcher.push("one " + "STOPS"[:length]) == "one "
    assert matcher.push("STOPS"[length:] + " two") == ""
    assert matcher.is_stopped
    assert matcher.finish() == ""


def test_what_turns_out_to_be_no_stop_string_is_shown() -> None:
    matcher = StopMatcher(["abc", "bd"])
    assert matcher.push("ab") == ""
    assert matcher.push("b") == "ab"
    assert matcher.push("e") == "be"
    assert not matcher.is_stopped
