"""Automaton that reads all lexemes of a grammar at once.

Characters that no set distinguishes are one atom, and a set of characters is an integer with a bit
for each of its atoms. Counts above one stand for any count, which allows more and so only makes
`Lexemes` more careful.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping

from powerinfer.errors import PromptError
from powerinfer.sampling.grammar.gbnf_nodes import Alt, Chars, Node, Ref, Rep, Rules, Seq

__all__ = ["Atoms", "Automaton", "Budget", "atoms_of"]

# Most places visited in all automata of a grammar: some seconds of work.
_MOST_WORK = 2_000_000
_WORK_OF_PLACE = 10

Atoms = Mapping[Node, int]
"""Atoms of each set of characters."""


class Budget:
    """Work that a grammar may still cost."""

    def __init__(self) -> None:
        self._left = _MOST_WORK

    def spend(self, work: int) -> None:
        """Count work; raise PromptError if it exceeds the budget."""
        self._left -= work
        if self._left < 0:
            raise PromptError(
                "the grammar is too large: its parts without recursion have too many states"
            )


def atoms_of(sets: Iterable[Chars]) -> Atoms:
    """Divide sets of characters into atoms."""
    sets = list(sets)
    borders = {border for each in sets for low, high in each.ranges for border in (low, high + 1)}
    starts = sorted(borders)
    atoms: dict[Node, int] = {}
    for each in sets:
        atoms[each] = 0
        for low, high in each.ranges:
            begin, end = bisect_left(starts, low), bisect_left(starts, high + 1)
            atoms[each] |= (1 << end) - (1 << begin)
    return atoms


class Automaton:
    """Reads the lexemes, and finds those that cannot be distinguished in time."""

    def __init__(self, rules: Rules, atoms: Atoms, lexemes: Iterable[Node], budget: Budget) -> None:
        """Build it; raise PromptError if it is too large."""
        self._rules = rules
        self._atoms = atoms
        self._budget = budget
        # For each place: places reached without a character, and (atoms, place) reached with one.
        self._free: list[list[int]] = []
        self._moves: list[tuple[int, int]] = []
        self._owner: list[Node] = []
        self._end_of: dict[int, Node] = {}
        self._starts: set[int] = set()
        for lexeme in lexemes:
            self._lexeme = lexeme
            end = self._place()
            self._end_of[end] = lexeme
            self._starts.add(self._build(lexeme, end))

    def conflicting(self, follow: Mapping[Node, int]) -> set[Node]:
        """Find lexemes that end where one goes on with a character that may follow the end.

        Args:
            follow: atoms that may follow each lexeme.

        Raises:
            PromptError: there are too many states.
        """
        found: set[Node] = set()
        for places in self._states():
            for lexeme in [self._end_of[place] for place in places if place in self._end_of]:
                for place in places:
                    if self._moves[place][0] & follow[lexeme]:
                        found |= {lexeme, self._owner[place]}
        return found

    def _states(self) -> Iterator[frozenset[int]]:
        """Yield the places of every state reached by a text of at least one character."""
        start = self._closure(set(self._starts))
        seen, waiting = {start}, [start]
        while waiting:
            for after in self._steps(waiting.pop()):
                if after not in seen:
                    seen.add(after)
                    waiting.append(after)
                    yield after

    def _steps(self, places: frozenset[int]) -> Iterator[frozenset[int]]:
        moves = [self._moves[place] for place in places if self._moves[place][0]]
        rest = 0
        for atoms, _ in moves:
            rest |= atoms
        while rest:
            # All atoms that lead to the same places as the lowest one are one step.
            lowest = rest & -rest
            alike, targets = rest, set()
            for atoms, target in moves:
                if atoms & lowest:
                    alike &= atoms
                    targets.add(target)
                else:
                    alike &= ~atoms
            rest &= ~alike
            yield self._closure(targets)

    def _closure(self, places: set[int]) -> frozenset[int]:
        waiting = list(places)
        while waiting:
            for place in self._free[waiting.pop()]:
                if place not in places:
                    places.add(place)
                    waiting.append(place)
        self._budget.spend(len(places))
        return frozenset(places)

    def _place(self, *free: int, move: tuple[int, int] = (0, 0)) -> int:
        self._budget.spend(_WORK_OF_PLACE)
        self._free.append(list(free))
        self._moves.append(move)
        self._owner.append(self._lexeme)
        return len(self._free) - 1

    def _build(self, node: Node, end: int) -> int:
        """Add a node before the place `end`; return the place before the node."""
        if isinstance(node, Chars):
            return self._place(move=(self._atoms[node], end))
        if isinstance(node, Ref):
            return self._build(self._rules[node.name], end)
        if isinstance(node, Seq):
            for item in reversed(node.items):
                end = self._build(item, end)
            return end
        if isinstance(node, Alt):
            return self._place(*(self._build(item, end) for item in node.items))
        if not isinstance(node, Rep):
            return end
        if node.high == 1:
            start = self._build(node.item, end)
            return self._place(start, end) if node.low == 0 else start
        again = self._place(end)
        start = self._build(node.item, again)
        self._free[again].append(start)
        return again if node.low == 0 else start
