"""Answers in the format "harmony" of gpt-oss: what was thought, and what is said.

An answer is a row of parts such as `<|channel|>analysis<|message|>...<|end|>`, and the last one is
`<|start|>assistant<|channel|>final<|message|>...`. Its template wants thoughts and text apart.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

__all__ = ["shown_parts", "split_parts"]

_MARKS = ("start", "channel", "constrain", "message", "end", "return", "call")
_MARK = re.compile(f"<\\|({'|'.join(_MARKS)})\\|>")
_THOUGHTS = "analysis"


def shown_parts(pieces: Iterable[str]) -> Iterator[str]:
    """A streamed answer without its marks; thoughts stand between `<think>` and `</think>`.

    Args:
        pieces: of the answer as the model writes it, cut anywhere.
    """
    parts, is_thinking, is_first = _Parts(), False, True
    for is_thought, starts, text in parts.read(pieces):
        if is_thought is not is_thinking:
            yield "<think>\n" if is_thought else "\n</think>\n\n"
        elif starts and not is_first:
            yield "\n" if is_thought else "\n\n"
        is_thinking, is_first = is_thought, False
        yield text
    if is_thinking:
        yield "\n</think>\n"


def split_parts(message: Mapping[str, object]) -> Mapping[str, object]:
    """A message of the assistant with thoughts and text apart, as the template wants them.

    Args:
        message: is returned as it is where its content has no marks.
    """
    content = message.get("content")
    if message.get("role") != "assistant" or not isinstance(content, str):
        return message
    if _MARK.search(content) is None:
        return message
    texts: dict[bool, list[str]] = {True: [], False: []}
    for is_thought, starts, text in _Parts().read([content]):
        if starts:
            texts[is_thought].append("")
        texts[is_thought][-1] += text
    thoughts, said = (("\n\n".join(map(str.strip, texts[kind]))).strip() for kind in (True, False))
    split = {**message, "content": said}
    return {**split, "reasoning_content": thoughts} if thoughts else split


class _Parts:
    """Follows the marks of an answer; text before the first of them is said, not thought."""

    def __init__(self) -> None:
        self._held = ""
        # Between the mark that begins a part and the one that begins its text.
        self._header: str | None = None
        self._is_thought = False
        self._starts = True

    def read(self, pieces: Iterable[str]) -> Iterator[tuple[bool, bool, str]]:
        """Yield texts that are not empty: whether each is thought, and begins its part."""
        for piece in pieces:
            yield from self._split(self._hold(self._held + piece))
        yield from self._split(self._held)

    def _hold(self, text: str) -> str:
        """Keep an end that may become a mark; returns what stands before it."""
        _, sign, end = text.rpartition("<")
        may_become = sign and any(f"|{mark}|>".startswith(end) for mark in _MARKS)
        self._held = sign + end if may_become and not end.endswith(">") else ""
        return text.removesuffix(self._held) if self._held else text

    def _split(self, text: str) -> Iterator[tuple[bool, bool, str]]:
        start = 0
        for mark in _MARK.finditer(text):
            yield from self._text(text[start : mark.start()])
            self._note(mark[1])
            start = mark.end()
        yield from self._text(text[start:])

    def _text(self, text: str) -> Iterator[tuple[bool, bool, str]]:
        if not text:
            return
        if self._header is not None:
            self._header += text
            return
        yield self._is_thought, self._starts, text
        self._starts = False

    def _note(self, mark: str) -> None:
        if mark in ("start", "channel"):
            self._header = ""
        elif mark == "message":
            # A header is a channel, then perhaps whom a call is for; without a channel a role.
            self._is_thought = (self._header or "").split()[:1] == [_THOUGHTS]
            self._header, self._starts = None, True
        elif mark != "constrain":
            self._header, self._is_thought, self._starts = None, False, True
