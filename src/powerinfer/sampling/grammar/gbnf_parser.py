"""Parser of GBNF, llama.cpp's notation for grammars."""

import re

from powerinfer.errors import PromptError
from powerinfer.sampling.grammar.gbnf_nodes import (
    Alt,
    Chars,
    Node,
    Ranges,
    Ref,
    Rep,
    Rules,
    Seq,
    Token,
    references,
)

__all__ = ["LARGEST_CHARACTER", "parse_gbnf"]

LARGEST_CHARACTER = 0x10FFFF
_MOST_LEVELS = 50

_BLANKS = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_BLANKS_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_COUNTS = re.compile(r"\{\s*(\d+)\s*(?:(,)\s*(\d*)\s*)?\}")
_TOKEN = re.compile(r"(!?)<(\[\d+\]|[^\s<>\[\]]+)>")
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)
_PLAIN_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", **{each: each for each in '\\"[]-^/'}}
_OPERATORS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def parse_gbnf(source: str) -> Rules:
    """Parse the rules of a grammar.

    Raises:
        PromptError: the text is not GBNF; names line, column and what is expected there.
    """
    return _Parser(source).rules()


class _Parser:
    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 0
        self._depth = 0

    def rules(self) -> Rules:
        rules: Rules = {}
        self._match(_BLANKS_AND_LINES)
        while self._at < len(self._source):
            name = self._name()
            if name in rules:
                raise self._error(f"rule {name} is defined a second time")
            self._match(_BLANKS)
            if not self._accept("::="):
                raise self._error(f"expected ::= after the name {name}")
            self._match(_BLANKS_AND_LINES)
            rules[name] = self._alternatives(is_nested=False)
            if self._next not in "\r\n":
                raise self._error("expected the end of the rule")
            self._match(_BLANKS_AND_LINES)
        _check_names(rules)
        return rules

    def _alternatives(self, *, is_nested: bool) -> Node:
        items = [self._sequence(is_nested=is_nested)]
        while self._accept_bar():
            items.append(self._sequence(is_nested=is_nested))
        return items[0] if len(items) == 1 else Alt(tuple(items))

    def _accept_bar(self) -> bool:
        """Skip a bar, perhaps at the beginning of the next line; tell whether there was one."""
        before = self._at
        self._match(_BLANKS_AND_LINES)
        if not self._accept("|"):
            self._at = before
            return False
        self._match(_BLANKS_AND_LINES)
        return True

    def _sequence(self, *, is_nested: bool) -> Node:
        items: list[Node] = []
        blanks = _BLANKS_AND_LINES if is_nested else _BLANKS
        while self._next not in "|)\r\n":
            items.append(self._repeated(self._item(), blanks))
        return items[0] if len(items) == 1 else Seq(tuple(items))

    def _repeated(self, item: Node, blanks: re.Pattern[str]) -> Node:
        self._match(blanks)
        while self._next in _OPERATORS or self._next == "{":
            if self._next == "{":
                low, high = self._counts()
            else:
                low, high = _OPERATORS[self._next]
                self._at += 1
            # llguidance has no {0}.
            item = Seq(()) if high == 0 else Rep(item, low, high)
            self._match(blanks)
        return item

    def _counts(self) -> tuple[int, int | None]:
        found = _COUNTS.match(self._source, self._at)
        if found is None:
            raise self._error("expected {m}, {m,} or {m,n}")
        low = int(found[1])
        high = low if found[2] is None else int(found[3]) if found[3] else None
        if high is not None and high < low:
            raise self._error(f"{found[0]} has its larger number first")
        self._at = found.end()
        return low, high

    def _item(self) -> Node:
        if self._accept('"'):
            return self._literal()
        if self._accept("["):
            return self._set()
        if self._next == "(":
            return self._group()
        if self._accept("."):
            return Chars(((0, LARGEST_CHARACTER),))
        if found := self._match(_TOKEN):
            if not found[1]:
                return Token(f"<{found[2]}>")
            if not found[2].startswith("["):
                raise self._error("only a token by its number can be excluded, as in !<[7]>")
            return Token(f"<[^{found[2][1:-1]}]>")
        return Ref(self._name())

    def _group(self) -> Node:
        self._depth += 1
        if self._depth > _MOST_LEVELS:
            raise self._error(f"more than {_MOST_LEVELS} groups in each other")
        self._at += 1
        self._match(_BLANKS_AND_LINES)
        node = self._alternatives(is_nested=True)
        self._match(_BLANKS_AND_LINES)
        if not self._accept(")"):
            raise self._error("expected )")
        self._depth -= 1
        return node

    def _literal(self) -> Node:
        items: list[Node] = []
        while not self._accept('"'):
            code = self._character('the " that ends the text')
            items.append(Chars(((code, code),)))
        return items[0] if len(items) == 1 else Seq(tuple(items))

    def _set(self) -> Node:
        is_negated = self._accept("^")
        found: list[tuple[int, int]] = []
        while not self._accept("]"):
            first = last = self._character("the ] that ends the set")
            if not self._source.startswith("-]", self._at) and self._accept("-"):
                last = self._character("the last character of the range")
                if last < first:
                    raise self._error("a range ends before it begins")
            found.append((first, last))
        ranges = _joined(found)
        if is_negated:
            ranges = _complement(ranges)
        if not ranges:
            raise self._error("a set without a character")
        return Chars(ranges)

    def _character(self, wanted: str) -> int:
        if self._next in "\r\n":
            raise self._error(f"expected {wanted}")
        found = _ESCAPE.match(self._source, self._at)
        if found is None:
            if self._next == "\\":
                raise self._error("expected an escape")
            self._at += 1
            return ord(self._source[self._at - 1])
        digits = found[1] or found[2] or found[3]
        if digits is None and found[4] not in _PLAIN_ESCAPES:
            raise self._error(f"unknown escape {found[0]}")
        code = int(digits, 16) if digits else ord(_PLAIN_ESCAPES[found[4]])
        if code > LARGEST_CHARACTER or 0xD800 <= code < 0xE000:
            raise self._error(f"{found[0]} is no character")
        self._at = found.end()
        return code

    def _name(self) -> str:
        found = self._match(_NAME)
        if found is None:
            raise self._error("expected the name of a rule")
        return found[0]

    @property
    def _next(self) -> str:
        """Next character; empty at the end."""
        return self._source[self._at : self._at + 1]

    def _accept(self, sign: str) -> bool:
        """Skip a sign if it comes next; tell whether it did."""
        is_next = self._source.startswith(sign, self._at)
        self._at += len(sign) if is_next else 0
        return is_next

    def _match(self, what: re.Pattern[str]) -> re.Match[str] | None:
        """Skip and return a match at this position."""
        found = what.match(self._source, self._at)
        self._at = found.end() if found else self._at
        return found

    def _error(self, what: str) -> PromptError:
        line = self._source.count("\n", 0, self._at) + 1
        column = self._at - self._source.rfind("\n", 0, self._at)
        return PromptError(f"the grammar, line {line}, column {column}: {what}")


def _check_names(rules: Rules) -> None:
    if "root" not in rules:
        raise PromptError("the grammar has no rule named root, which texts begin with")
    for name, body in rules.items():
        for each in references(body):
            if each not in rules:
                raise PromptError(
                    f"the grammar has no rule named {each}, which rule {name} refers to"
                )


def _joined(ranges: list[tuple[int, int]]) -> Ranges:
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return tuple(joined)


def _complement(ranges: Ranges) -> Ranges:
    ends = [-1, *(last for _, last in ranges)]
    starts = [*(first for first, _ in ranges), LARGEST_CHARACTER + 1]
    return tuple(
        (end + 1, start - 1) for end, start in zip(ends, starts, strict=True) if end + 1 < start
    )
