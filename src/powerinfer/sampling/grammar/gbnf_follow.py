"""Follow sets: the characters that may follow each part of a grammar."""

from powerinfer.sampling.grammar.gbnf_automaton import Atoms
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
    reached_rules,
)

__all__ = ["follow_sets"]


def follow_sets(rules: Rules, atoms: Atoms) -> dict[Node, int]:
    """Return the atoms that may follow each node, in all rules that texts need."""
    return _Follow(rules, atoms).of


class _Follow:
    def __init__(self, rules: Rules, atoms: Atoms) -> None:
        self.of: dict[Node, int] = {}
        self._atoms = atoms
        self._first: dict[str, tuple[int, bool]] = dict.fromkeys(rules, (0, False))
        self._of_rules: dict[str, int] = dict.fromkeys(rules, 0)
        names = reached_rules(rules)
        while True:
            before = self._first.copy(), self._of_rules.copy()
            for name in names:
                self._first[name] = self._begins(rules[name])
                self._visit(rules[name], self._of_rules[name])
            if before == (self._first, self._of_rules):
                return
            # Alternate directions: rules depend on earlier and on later ones.
            names.reverse()

    def _begins(self, node: Node) -> tuple[int, bool]:
        """Return the atoms that a node may begin with, and whether it may be empty."""
        if isinstance(node, Chars | Token):
            return self._atoms.get(node, 0), False
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
        self.of[node] = follow
        if isinstance(node, Ref):
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
