"""Which parts of a grammar are lexemes: read by a lexer, not by the parser.

llguidance's lexer takes the longest match of all lexemes that may stand in a place, and it is what
makes large vocabularies fast. GBNF knows no lexer. So that texts are the same, a part becomes a
lexeme only if a longer match never takes away what the grammar needs next: in every state of the
automaton that reads all lexemes at once, what may follow a lexeme that ends there differs from
what any other could go on with. Lexemes that break this are divided, at most into characters.
"""

from collections.abc import Callable, Iterator
from typing import Any

from powerinfer.errors import PromptError
from powerinfer.sampling.grammar.gbnf_automaton import Automaton, Budget, atoms_of
from powerinfer.sampling.grammar.gbnf_nodes import (
    Alt,
    Chars,
    Node,
    Ref,
    Rep,
    Rules,
    Seq,
    Token,
    children,
    descendants,
)

__all__ = ["Lexemes"]

_MOST_ROUNDS = 100
_MOST_RULES = 2000


class Lexemes:
    """The lexemes of a grammar.

    Attributes:
        regular: rules that are lexemes or parts of lexemes alone.
        nodes: the lexemes, in rules that are not regular.
        reached: rules that are not regular, as far as texts need them.
    """

    def __init__(self, rules: Rules) -> None:
        """Find them.

        Raises:
            PromptError: the grammar is too large for it.
        """
        if len(rules) > _MOST_RULES:
            raise PromptError(
                f"the grammar has {len(rules)} rules; at most {_MOST_RULES} are possible"
            )
        self._rules = rules
        self._budget = Budget()
        self._divided: set[Node] = set()
        self.reached: dict[str, None] = {}
        self.regular: set[str] = set()
        self._atoms = atoms_of(
            node for body in rules.values() for node in descendants(body) if isinstance(node, Chars)
        )
        for _ in range(_MOST_ROUNDS):
            self._find_regular()
            self.nodes = self._lexemes()
            conflicting = self._conflicting()
            if not conflicting:
                return
            self._divided |= conflicting
        raise PromptError(
            "the grammar cannot be enforced: what its rules begin and end with is too ambiguous"
        )

    def is_lexeme(self, node: Node) -> bool:
        """Whether a node is read by the lexer as a whole."""
        if node in self._divided or isinstance(node, Token):
            return False
        if isinstance(node, Ref):
            return node.name in self.regular
        return all(map(self.is_lexeme, children(node)))

    def _find_regular(self) -> None:
        """Rules without recursion, tokens and divided nodes; found from the innermost outwards."""
        self.regular = set()
        missing = {name: set(_names(body)) for name, body in self._rules.items()}
        users: dict[str, list[str]] = {}
        for name, needed in missing.items():
            for each in needed:
                users.setdefault(each, []).append(name)
        ready = [name for name, needed in missing.items() if not needed]
        while ready:
            name = ready.pop()
            if not self.is_lexeme(self._rules[name]):
                continue
            self.regular.add(name)
            for user in users.get(name, ()):
                missing[user].discard(name)
                if not missing[user]:
                    ready.append(user)

    def _lexemes(self) -> list[Node]:
        """The largest nodes that are lexemes, of all rules that are not."""
        if "root" in self.regular:
            self.reached = {}
            return []
        found: dict[Node, None] = {}
        names, self.reached = ["root"], {"root": None}
        while names:
            nodes = [self._rules[names.pop()]]
            while nodes:
                node = nodes.pop()
                if self.is_lexeme(node):
                    found[node] = None
                elif isinstance(node, Ref):
                    if node.name not in self.reached:
                        self.reached[node.name] = None
                        names.append(node.name)
                else:
                    nodes += children(node)
        return list(found)

    def _conflicting(self) -> set[Node]:
        """Nodes to divide."""
        automaton = Automaton(self._rules, self._atoms, self.nodes, self._budget)
        follow = _Follow(self._rules, self, automaton).of_lexemes
        divided: set[Node] = set()
        for state in automaton.states():
            for lexeme in state.ended:
                for other, characters in state.goes_on.items():
                    if characters & follow.get(lexeme, 0):
                        divided |= {lexeme, other}
        return {node for node in map(self._body, divided) if not isinstance(node, Chars)}

    def _body(self, node: Node) -> Node:
        """What a node stands for, in the end."""
        while isinstance(node, Ref):
            node = self._rules[node.name]
        return node


def _names(body: Node) -> Iterator[str]:
    return (node.name for node in descendants(body) if isinstance(node, Ref))


class _Follow:
    """What may follow each lexeme, as a set of atoms."""

    def __init__(self, rules: Rules, lexemes: Lexemes, automaton: Automaton) -> None:
        self._rules = rules
        self._lexemes = lexemes
        self._automaton = automaton
        self._first: dict[str, tuple[int, bool]] = dict.fromkeys(rules, (0, False))
        self.of_lexemes: dict[Node, int] = {}
        self._of_rules: dict[str, int] = dict.fromkeys(rules, 0)
        names = list(lexemes.reached)
        while self._changes(self._first, self._find_first, names):
            pass
        while self._changes(self._of_rules, self._find_follow, names):
            pass

    def _changes(
        self, known: dict[str, Any], find: Callable[[str], None], names: list[str]
    ) -> bool:
        """One round over all rules; the next goes the other way.

        Rules lean on earlier or on later ones.
        """
        before = dict(known)
        for name in names:
            find(name)
        names.reverse()
        return before != known

    def _find_first(self, name: str) -> None:
        self._first[name] = self._begins(self._rules[name])

    def _find_follow(self, name: str) -> None:
        self._visit(self._rules[name], self._of_rules[name])

    def _begins(self, node: Node) -> tuple[int, bool]:
        """The characters that a node may begin with, and whether it may be empty."""
        if self._lexemes.is_lexeme(node):
            return self._automaton.begins(node)
        if isinstance(node, Token):
            return 0, False
        if isinstance(node, Ref):
            return self._first[node.name]
        if isinstance(node, Rep):
            first, is_empty = self._begins(node.item)
            return first, is_empty or node.low == 0
        first, is_empty = 0, isinstance(node, Seq)
        for item in children(node):
            of_item, item_is_empty = self._begins(item)
            if isinstance(node, Alt):
                first, is_empty = first | of_item, is_empty or item_is_empty
            elif is_empty:
                first, is_empty = first | of_item, item_is_empty
        return first, is_empty

    def _visit(self, node: Node, follow: int) -> None:
        if self._lexemes.is_lexeme(node):
            self.of_lexemes[node] = self.of_lexemes.get(node, 0) | follow
        elif isinstance(node, Ref):
            self._of_rules[node.name] |= follow
        elif isinstance(node, Rep):
            again = 0 if node.high == 1 else self._begins(node.item)[0]
            self._visit(node.item, follow | again)
        elif isinstance(node, Seq):
            for item in reversed(node.items):
                self._visit(item, follow)
                first, is_empty = self._begins(item)
                follow = first | (follow if is_empty else 0)
        else:
            for item in children(node):
                self._visit(item, follow)
