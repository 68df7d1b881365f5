"""Nodes of a GBNF grammar, compared by identity: the same text in two places is two nodes."""

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = [
    "Alt",
    "Chars",
    "Node",
    "Ref",
    "Rep",
    "Rules",
    "Seq",
    "Token",
    "children",
    "descendants",
    "reached_rules",
    "references",
]

# First and last code points of ranges, sorted and neither overlapping nor adjacent.
Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False, slots=True)
class Chars:
    """One character of a set."""

    ranges: Ranges


@dataclass(frozen=True, eq=False, slots=True)
class Token:
    """One token of the vocabulary, as llguidance writes it."""

    text: str


@dataclass(frozen=True, eq=False, slots=True)
class Ref:
    """The body of a rule."""

    name: str


@dataclass(frozen=True, eq=False, slots=True)
class Seq:
    """Nodes one after the other; the empty text if there are none."""

    items: "tuple[Node, ...]"


@dataclass(frozen=True, eq=False, slots=True)
class Alt:
    """One of several nodes."""

    items: "tuple[Node, ...]"


@dataclass(frozen=True, eq=False, slots=True)
class Rep:
    """A node `low` to `high` times; `high` is at least 1, or None for no limit."""

    item: "Node"
    low: int
    high: int | None


Node = Chars | Token | Ref | Seq | Alt | Rep
Rules = dict[str, Node]


def children(node: Node) -> tuple[Node, ...]:
    """Return the direct parts of a node."""
    if isinstance(node, Seq | Alt):
        return node.items
    return (node.item,) if isinstance(node, Rep) else ()


def descendants(node: Node) -> Iterator[Node]:
    """Yield a node and all nodes in it."""
    yield node
    for child in children(node):
        yield from descendants(child)


def references(node: Node) -> list[str]:
    """Return the names of the rules that a node itself refers to, in order."""
    return [each.name for each in descendants(node) if isinstance(each, Ref)]


def reached_rules(rules: Rules) -> list[str]:
    """Return the names of the rules that texts need, root first."""
    names = {"root": None}
    waiting = ["root"]
    while waiting:
        new = [each for each in references(rules[waiting.pop()]) if each not in names]
        names |= dict.fromkeys(new)
        waiting += new
    return list(names)
