"""Translation of GBNF, llama.cpp's notation for grammars, to that of llguidance."""

from collections.abc import Callable

from powerinfer.errors import PromptError
from powerinfer.sampling.grammar.gbnf_lexemes import Lexemes
from powerinfer.sampling.grammar.gbnf_nodes import (
    Alt,
    Chars,
    Node,
    Ref,
    Rep,
    Rules,
    Token,
    children,
)
from powerinfer.sampling.grammar.gbnf_parser import LARGEST_CHARACTER, parse_gbnf

__all__ = ["gbnf_to_lark"]

_EMPTY = '""'


def gbnf_to_lark(source: str) -> str:
    """Translate a grammar, which allows the same texts afterwards.

    Raises:
        PromptError: it is not valid, or too large.
    """
    try:
        rules = parse_gbnf(source)
        return _Writer(rules, Lexemes(rules)).lark()
    except RecursionError:
        # Nobody nests rules this deeply by hand.
        raise PromptError("the grammar is nested too deeply") from None


class _Writer:
    """Rules become r0, r1 ..., regular ones T0, T1 ..., lexemes in other rules L0, L1 ..."""

    def __init__(self, rules: Rules, lexemes: Lexemes) -> None:
        self._rules = rules
        self._lexemes = lexemes
        self._numbers = {name: number for number, name in enumerate(rules)}
        self._used: dict[str, None] = {}
        self._lexeme_names: dict[str, str] = {}

    def lark(self) -> str:
        lines = ["%llguidance {}", f"start: {self._name('root')}"]
        written: set[str] = set()
        while left := [name for name in self._used if name not in written]:
            for name in left:
                written.add(name)
                body = self._rules[name]
                text = self._regex(body) if self._is_regular(name) else self._rule(body)
                lines.append(f"{self._name(name)}: {text}")
        lines += (f"{name}: {text}" for text, name in self._lexeme_names.items())
        return "\n".join(lines) + "\n"

    def _is_regular(self, name: str) -> bool:
        return name in self._lexemes.regular

    def _name(self, name: str) -> str:
        self._used[name] = None
        return f"{'T' if self._is_regular(name) else 'r'}{self._numbers[name]}"

    def _rule(self, node: Node) -> str:
        """Write a node of a rule that is not regular."""
        if isinstance(node, Ref) or not self._lexemes.is_lexeme(node):
            return self._combined(node, self._rule)
        text = self._regex(node)
        if text == _EMPTY:
            return text
        return self._lexeme_names.setdefault(text, f"L{len(self._lexeme_names)}")

    def _regex(self, node: Node) -> str:
        """Write a node of a lexeme."""
        return f"/{_set(node)}/" if isinstance(node, Chars) else self._combined(node, self._regex)

    def _combined(self, node: Node, write: Callable[[Node], str]) -> str:
        """Write a node, and its parts with `write`."""
        if isinstance(node, Token):
            return node.text
        if isinstance(node, Ref):
            return self._name(node.name)
        if isinstance(node, Rep):
            return f"({write(node.item)}){_times(node)}"
        parts = [write(item) for item in children(node)]
        if isinstance(node, Alt):
            return f"({' | '.join(parts)})"
        return f"({_sequence(parts)})" if parts else _EMPTY


def _sequence(parts: list[str]) -> str:
    """Join parts; adjacent characters become one expression."""
    joined: list[str] = []
    for part in parts:
        if joined and part[0] == part[-1] == joined[-1][0] == joined[-1][-1] == "/":
            joined[-1] = joined[-1][:-1] + part[1:]
        else:
            joined.append(part)
    return " ".join(joined)


def _times(node: Rep) -> str:
    if (node.low, node.high) == (0, 1):
        return "?"
    if node.high is None and node.low < 2:
        return "+" if node.low else "*"
    if node.low == node.high:
        return f"{{{node.low}}}"
    return f"{{{node.low},{'' if node.high is None else node.high}}}"


def _set(node: Chars) -> str:
    """Write a set of characters as a regular expression, with special characters escaped."""
    if node.ranges == ((0, LARGEST_CHARACTER),):
        return "(?s:.)"
    if len(node.ranges) == 1 and node.ranges[0][0] == node.ranges[0][1]:
        return _character(node.ranges[0][0])
    return "[" + "".join(f"{_character(low)}-{_character(high)}" for low, high in node.ranges) + "]"


def _character(code: int) -> str:
    # Move the border of a range out of the surrogates.
    if 0xD800 <= code < 0xE000:
        code = 0xD7FF
    return chr(code) if chr(code).isascii() and chr(code).isalnum() else f"\\x{{{code:x}}}"
