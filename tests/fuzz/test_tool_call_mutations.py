"""Answers with tool calls that were damaged at random are read the same however they are cut."""

from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from tool_call_target import check, read_everything, seeds

_LETTERS = "<>=/|[](){},:'\"\\ \n\t-0aé\x00\u2028\U0001f642"
_WORDS = ("</parameter>", "</function>", "</tool_call>", "<parameter=integer>", "\\ud800")
_MORE = ("<|tool_call_end|>", "<|tool_call_start|>", "null", "True", "weather(place=")
_parts = st.lists(st.sampled_from((*_LETTERS, *_WORDS, *_MORE)), max_size=4).map("".join)


def test_the_seeds_are_read(tmp_path: Path) -> None:
    for seed in (*seeds(), b"", b"\xff", b"unknown\n<tool_call>"):
        path = tmp_path / "answer"
        path.write_bytes(seed)
        read_everything(path)


@example(seed=b'lfm2\n<|tool_call_start|>[weather(integer="\\ud800")]', at=0, inserted="", length=0)
@given(
    seed=st.sampled_from(seeds()), at=st.integers(0, 400), inserted=_parts, length=st.integers(0, 9)
)
def test_other_characters(seed: bytes, at: int, inserted: str, length: int) -> None:
    name, _, text = seed.decode().partition("\n")
    at %= len(text) + 1
    check(name, text[:at] + inserted + text[at + length :])
