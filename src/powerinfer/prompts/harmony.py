"""The harmony answer format of gpt-oss: reasoning and text as separate parts.

An answer is a row of parts such as `<|channel|>analysis<|message|>...<|end|>`, and the last one is
`<|start|>assistant<|channel|>final<|message|>...`. Its template expects
reasoning and text as separate fields.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

__all__ = ["HarmonyPart", "HarmonyReader", "shown_parts", "split_parts"]

_MARKS = ("start", "channel", "constrain", "message", "end", "return", "call")
_MARK = re.compile(f"<\\|({'|'.join(_MARKS)})\\|>")
_REASONING = "analysis"
_RECIPIENT = re.compile(r"\bto=(\S+)")


@dataclass(frozen=True, slots=True)
class HarmonyPart:
    """A piece of one part of an answer.

    Attributes:
        is_reasoning: not part of the text that the user gets.
        starts: nothing of this part came before.
        text: is not empty.
        recipient: whom the part is for, such as `functions.weather`; None for the user.
    """

    is_reasoning: bool
    starts: bool
    text: str
    recipient: str | None


def shown_parts(pieces: Iterable[str]) -> Iterator[str]:
    """Strip the marks of a streamed answer; put reasoning between `<think>` and `</think>`."""
    is_thinking, is_first = False, True
    for part in _read(pieces):
        if part.is_reasoning is not is_thinking:
            yield "<think>\n" if part.is_reasoning else "\n</think>\n\n"
        elif part.starts and not is_first:
            yield "\n" if part.is_reasoning else "\n\n"
        is_thinking, is_first = part.is_reasoning, False
        yield part.text
    if is_thinking:
        yield "\n</think>\n"


def split_parts(message: Mapping[str, object]) -> Mapping[str, object]:
    """Split an assistant message into reasoning and text; without marks return it unchanged."""
    content = message.get("content")
    if message.get("role") != "assistant" or not isinstance(content, str):
        return message
    if _MARK.search(content) is None:
        return message
    texts: dict[bool, list[str]] = {True: [], False: []}
    for part in _read([content]):
        if part.starts:
            texts[part.is_reasoning].append("")
        texts[part.is_reasoning][-1] += part.text
    reasoning, said = (("\n\n".join(map(str.strip, texts[kind]))).strip() for kind in (True, False))
    split = {**message, "content": said}
    return {**split, "reasoning_content": reasoning} if reasoning else split


def _read(pieces: Iterable[str]) -> Iterator[HarmonyPart]:
    reader = HarmonyReader()
    for piece in pieces:
        yield from reader.push(piece)
    yield from reader.finish()


class HarmonyReader:
    """Parser of an answer's marks; text before the first mark is no reasoning."""

    def __init__(self) -> None:
        self._held = ""
        # Text between the mark that begins a part and the one that begins its text.
        self._header: str | None = None
        self._is_reasoning = False
        self._recipient: str | None = None
        self._starts = True

    def push(self, piece: str) -> list[HarmonyPart]:
        """Parse the next piece; hold back an end that may become a mark."""
        return list(self._split(self._hold(self._held + piece)))

    def finish(self) -> list[HarmonyPart]:
        """Parse what was held back, at the end of the answer."""
        held, self._held = self._held, ""
        return list(self._split(held))

    def _hold(self, text: str) -> str:
        """Hold back an end that may become a mark; return the text before it."""
        _, sign, end = text.rpartition("<")
        may_become = sign and any(f"|{mark}|>".startswith(end) for mark in _MARKS)
        self._held = sign + end if may_become and not end.endswith(">") else ""
        return text.removesuffix(self._held) if self._held else text

    def _split(self, text: str) -> Iterator[HarmonyPart]:
        start = 0
        for mark in _MARK.finditer(text):
            yield from self._text(text[start : mark.start()])
            self._note(mark[1])
            start = mark.end()
        yield from self._text(text[start:])

    def _text(self, text: str) -> Iterator[HarmonyPart]:
        if not text:
            return
        if self._header is not None:
            self._header += text
            return
        yield HarmonyPart(self._is_reasoning, self._starts, text, self._recipient)
        self._starts = False

    def _note(self, mark: str) -> None:
        if mark in ("start", "channel"):
            # The recipient follows the role or the channel.
            self._recipient = self._named() if mark == "channel" else None
            self._header = ""
        elif mark == "message":
            # A header is a channel, perhaps with the recipient of a call; without a channel a role.
            self._is_reasoning = (self._header or "").split()[:1] == [_REASONING]
            self._recipient = self._named()
            self._header, self._starts = None, True
        elif mark != "constrain":
            self._header, self._is_reasoning, self._starts = None, False, True
            self._recipient = None

    def _named(self) -> str | None:
        """Recipient in the header so far."""
        found = _RECIPIENT.search(self._header or "")
        return found[1] if found else self._recipient
