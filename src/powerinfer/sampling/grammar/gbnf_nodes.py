"""What a grammar in GBNF consists of.

Nodes are told apart by identity: the same text in two places is two nodes.
"""

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Alt", "Chars", "Node", "Ref", "Rep", "Rules", "Seq", "Token", "children", "descendants"]

# Code points from the first to the last, in order and apart from each other.
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
    """What a rule stands for."""

    name: str


@dataclass(frozen=True, eq=False, slots=True)
class Seq:
    """One after the other; none of them for the empty text."""

    items: "tuple[Node, ...]"


@dataclass(frozen=True, eq=False, slots=True)
class Alt:
    """One of several."""

    items: "tuple[Node, ...]"


@dataclass(frozen=True, eq=False, slots=True)
class Rep:
    """From `low` to `high` times, which is at least 1; None is without limit."""

    item: "Node"
    low: int
    high: int | None


Node = Chars | Token | Ref | Seq | Alt | Rep
Rules = dict[str, Node]


def children(node: Node) -> tuple[Node, ...]:
    """The nodes directly in a node."""
    if isinstance(node, Seq | Alt):
        return node.items
    return (node.item,) if isinstance(node, Rep) else ()


def descendants(node: Node) -> Iterator[Node]:
    """A node and all nodes in it."""
    yield node
    for child in children(node):
        yield from descendants(child)
