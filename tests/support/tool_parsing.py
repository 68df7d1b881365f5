"""Answers cut into pieces and parsed, for tests of the forms of tool calls."""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from powerinfer.serve.chat.deltas import ChatDelta, ChatOutputParser

__all__ = ["PLACES", "VALUES", "cut", "gathered", "read"]

# Places to cut a text, and values of JSON.
PLACES = st.lists(st.integers(0, 10**6), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def read(parser: ChatOutputParser, pieces: Sequence[str]) -> dict[str, Any]:
    """What is said, thought and called in an answer; checks the order of a call's parts."""
    deltas = [delta for piece in pieces for delta in parser.push(piece)] + parser.finish()
    return gathered(deltas)


def gathered(deltas: Sequence[ChatDelta]) -> dict[str, Any]:
    calls: list[dict[str, str]] = []
    for delta in deltas:
        given = [delta.content, delta.reasoning, delta.tool_call]
        assert sum(bool(each) for each in given) == 1
        if delta.tool_call is None:
            continue
        if delta.tool_call.index == len(calls):
            assert delta.tool_call.id
            assert delta.tool_call.name
            calls.append({"name": delta.tool_call.name, "arguments": ""})
        else:
            assert delta.tool_call.index == len(calls) - 1
            assert delta.tool_call.name is None
        calls[-1]["arguments"] += delta.tool_call.arguments
    return {
        "content": "".join(delta.content for delta in deltas),
        "reasoning": "".join(delta.reasoning for delta in deltas),
        "calls": [(call["name"], call["arguments"]) for call in calls],
    }


def cut(text: str, places: Sequence[int]) -> list[str]:
    ends = [*sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
