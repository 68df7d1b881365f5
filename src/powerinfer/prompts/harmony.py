"""Answers in the format "harmony" of gpt-oss, split into reasoning and text.

An answer is a sequence of parts such as `<|channel|>analysis<|message|>...<|end|>`, and the last is
`<|start|>assistant<|channel|>final<|message|>...`. The template takes reasoning and text apart.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

__all__ = ["HarmonyPart", "HarmonyReader", "shown_parts", "split_parts"]

_MARKS = ("start", "channel", "constrain", "message", "end", "return", "call")
_MARK = re.compile(f"<\\|({'|'.join(_MARKS)})\\|>")
_THOUGHTS = "analysis"
_RECIPIENT = re.compile(r"\bto=(\S+)")


@dataclass(frozen=True, slots=True)
class HarmonyPart:
    """A piece of one part of an answer.

    Attributes:
        is_thought: True for reasoning, False for text to the user.
        starts: True for the first piece of its part.
        text: never empty.
        recipient: receiver of the part, such as `functions.weather`; None for the user.
    """

    is_thought: bool
    starts: bool
    text: str
    recipient: str | None


def shown_parts(pieces: Iterable[str]) -> Iterator[str]:
    """Yield a streamed answer without its marks, reasoning between `<think>` and `</think>`."""
    is_thinking, is_first = False, True
    for part in _read(pieces):
        if part.is_thought is not is_thinking:
            yield "<think>\n" if part.is_thought else "\n</think>\n\n"
        elif part.starts and not is_first:
            yield "\n" if part.is_thought else "\n\n"
        is_thinking, is_first = part.is_thought, False
        yield part.text
    if is_thinking:
        yield "\n</think>\n"


def split_parts(message: Mapping[str, object]) -> Mapping[str, object]:
    """Split an assistant message with marks into reasoning and text, as the template takes it."""
    content = message.get("content")
    if message.get("role") != "assistant" or not isinstance(content, str):
        return message
    if _MARK.search(content) is None:
        return message
    texts: dict[bool, list[str]] = {True: [], False: []}
    for part in _read([content]):
        if part.starts:
            texts[part.is_thought].append("")
        texts[part.is_thought][-1] += part.text
    thoughts, said = (("\n\n".join(map(str.strip, texts[kind]))).strip() for kind in (True, False))
    split = {**message, "content": said}
    return {**split, "reasoning_content": thoughts} if thoughts else split


def _read(pieces: Iterable[str]) -> Iterator[HarmonyPart]:
    reader = HarmonyReader()
    for piece in pieces:
        yield from reader.push(piece)
    yield from reader.finish()


class HarmonyReader:
    """Incremental reader of an answer; text before the first mark is not reasoning."""

    def __init__(self) -> None:
        self._held = ""
        # Text between the mark that begins a part and the one that begins its content.
        self._header: str | None = None
        self._is_thought = False
        self._recipient: str | None = None
        self._starts = True

    def push(self, piece: str) -> list[HarmonyPart]:
        """Read a piece; an end that may become a mark is held back."""
        return list(self._split(self._hold(self._held + piece)))

    def finish(self) -> list[HarmonyPart]:
        """Return the text held back at the end of the answer."""
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
        yield HarmonyPart(self._is_thought, self._starts, text, self._recipient)
        self._starts = False

    def _note(self, mark: str) -> None:
        if mark in ("start", "channel"):
            # The recipient follows the role or the channel.
            self._recipient = self._named() if mark == "channel" else None
            self._header = ""
        elif mark == "message":
            # A header is a channel and perhaps a recipient, or a role.
            self._is_thought = (self._header or "").split()[:1] == [_THOUGHTS]
            self._recipient = self._named()
            self._header, self._starts = None, True
        elif mark != "constrain":
            self._header, self._is_thought, self._starts = None, False, True
            self._recipient = None

    def _named(self) -> str | None:
        """The recipient in the header so far."""
        found = _RECIPIENT.search(self._header or "")
        return found[1] if found else self._recipient
