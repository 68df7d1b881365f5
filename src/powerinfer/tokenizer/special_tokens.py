"""Search for special tokens in text, before it is split further.

User-defined tokens are always matched, control tokens only on request: a user's text must not be
able to end its own turn.
"""

import re
from collections.abc import Iterator

from powerinfer.tokenizer.vocabulary import TokenType, Vocabulary

__all__ = ["SpecialTokens"]

# White space of C's isspace() in the default locale, which Phi-3's tokens swallow.
_ASCII_SPACES = re.compile(r"[ \t\n\v\f\r]*")


class SpecialTokens:
    """Splits text at special tokens, leftmost and longest first."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Collect the tokens of `vocabulary` that may stand literally in text."""
        user: dict[str, int] = {}
        control: dict[str, int] = {}
        for token_id, token_type in enumerate(vocabulary.types):
            if token_type is TokenType.USER_DEFINED:
                user[vocabulary.texts[token_id]] = token_id
            elif token_type in (TokenType.CONTROL, TokenType.UNKNOWN):
                control[vocabulary.texts[token_id]] = token_id
        self._user = _Matcher(user)
        self._all = _Matcher(control | user)
        self._strips_right = vocabulary.strips_right
        self._never_strips = {
            vocabulary.ids_by_text.get(text) for text in ("<unk>", "<s>", "<|endoftext|>")
        }

    def partition(self, text: str, *, parse_special: bool) -> Iterator[str | int]:
        """Yield non-empty stretches of plain text, and the ids of the special tokens between them.

        Args:
            parse_special: match control and unknown tokens too, not only user-defined ones.
        """
        matcher = self._all if parse_special else self._user
        start = 0
        for begin, end, token_id in matcher.find(text):
            if begin < start:
                # Part of the white space swallowed by the token before.
                continue
            if begin > start:
                yield text[start:begin]
            yield token_id
            start = end
            if self._strips_right and token_id not in self._never_strips:
                start = _end_of_spaces(text, start)
        if start < len(text):
            yield text[start:]


class _Matcher:
    """Leftmost-longest search for a fixed set of strings.

    A character class finds the first characters (one pass in C), then the first two characters
    select the lengths to try: one alternation of thousands of tokens, as Gemma has, would try them
    all at each position.
    """

    def __init__(self, ids: dict[str, int]) -> None:
        self._ids = ids
        lengths: dict[str, set[int]] = {}
        for text in ids:
            lengths.setdefault(text[:2], set()).add(len(text))
        self._lengths = {pair: sorted(found, reverse=True) for pair, found in lengths.items()}
        first = "".join(re.escape(character) for character in sorted({text[0] for text in ids}))
        self._first = re.compile(f"[{first}]") if ids else None

    def find(self, text: str) -> Iterator[tuple[int, int, int]]:
        """Yield (begin, end, id) of each match, left to right, without overlaps."""
        if self._first is None:
            return
        start = 0
        for candidate in self._first.finditer(text):
            begin = candidate.start()
            if begin < start:
                continue
            found = self._longest(text, begin)
            if found is not None:
                start = begin + len(found)
                yield begin, start, self._ids[found]

    def _longest(self, text: str, begin: int) -> str | None:
        for length in self._lengths.get(text[begin : begin + 2], ()):
            found = text[begin : begin + length]
            if found in self._ids:
                return found
        return text[begin] if text[begin] in self._ids else None


def _end_of_spaces(text: str, start: int) -> int:
    match = _ASCII_SPACES.match(text, start)
    return match.end() if match else start
