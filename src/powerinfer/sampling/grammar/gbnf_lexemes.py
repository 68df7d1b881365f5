"""Lexemes: the parts of a grammar that the lexer reads instead of the parser.

llguidance's lexer takes the longest match of all lexemes possible at a position, which makes large
vocabularies fast. GBNF has no lexer. To allow the same texts, a part becomes a lexeme only if a
longer match never takes away what the grammar needs next: in every state of the automaton that
reads all lexemes at once, no character may both follow a lexeme that ends there and continue
another. Lexemes that break this are divided, down to characters if necessary.

llguidance's own `gbnf_to_lark` makes every rule without recursion a lexeme and so refuses texts
that the grammar allows. Single characters would be right, but cost a hundred times more per token.
"""

from collections.abc import Iterator
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter

from powerinfer.errors import PromptError
from powerinfer.sampling.grammar.gbnf_automaton import Automaton, Budget, atoms_of
from powerinfer.sampling.grammar.gbnf_follow import follow_sets
from powerinfer.sampling.grammar.gbnf_nodes import (
    Chars,
    Node,
    Ref,
    Rules,
    Token,
    children,
    descendants,
    reached_rules,
    references,
)

__all__ = ["Lexemes"]

_MOST_RULES = 2000


class Lexemes:
    """The lexemes of a grammar.

    Attributes:
        regular: rules that are lexemes or parts of lexemes only.
    """

    def __init__(self, rules: Rules) -> None:
        """Find them; raise PromptError if the grammar is too large."""
        if len(rules) > _MOST_RULES:
            raise PromptError(
                f"the grammar has {len(rules)} rules; at most {_MOST_RULES} are possible"
            )
        self._rules = rules
        self._divided: set[Node] = set()
        budget = Budget()
        inner_first = list(_inner_first(rules))
        atoms = atoms_of(
            node for body in rules.values() for node in descendants(body) if isinstance(node, Chars)
        )
        follow = follow_sets(rules, atoms)
        while True:
            self.regular: set[str] = set()
            for name in inner_first:
                if self.is_lexeme(rules[name]):
                    self.regular.add(name)
            automaton = Automaton(rules, atoms, self._lexemes(), budget)
            bodies = map(self._body, automaton.conflicting(follow))
            if not (conflicting := {node for node in bodies if not isinstance(node, Chars)}):
                return
            self._divided |= conflicting

    def is_lexeme(self, node: Node) -> bool:
        """Tell whether the lexer reads a node as a whole."""
        if node in self._divided or isinstance(node, Token):
            return False
        if isinstance(node, Ref):
            return node.name in self.regular
        return all(map(self.is_lexeme, children(node)))

    def _lexemes(self) -> Iterator[Node]:
        """Yield the largest nodes that are lexemes, in all rules that are not."""
        for name in reached_rules(self._rules):
            if name not in self.regular:
                yield from self._largest(self._rules[name])

    def _largest(self, node: Node) -> Iterator[Node]:
        if self.is_lexeme(node):
            yield node
        else:
            for child in children(node):
                yield from self._largest(child)

    def _body(self, node: Node) -> Node:
        """Return the node at the end of a chain of references."""
        while isinstance(node, Ref):
            node = self._rules[node.name]
        return node


def _inner_first(rules: Rules) -> Iterator[str]:
    """Yield the rules without recursion, each after those that it refers to."""
    sorter = TopologicalSorter({name: references(body) for name, body in rules.items()})
    with suppress(CycleError):
        sorter.prepare()
    while ready := sorter.get_ready():
        yield from ready
        sorter.done(*ready)
