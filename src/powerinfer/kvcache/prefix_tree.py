"""Blocks of keys and values that sequences left behind, found again by what they were made of.

Keys and values depend on the tokens up to their position and on which of them were prompt
(`Batch.is_prompt`), and on nothing else: of a block that belongs to the same tokens with the same
marks every bit is what a new sequence would compute. A node of the tree is one block; its key are
the tokens and marks of the block, and the path to it is everything before. Only whole blocks are
shared. Of a sequence that is over, the last block may be partly used: it is a leaf, and serves to
be copied.
"""

from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from powerinfer.kvcache.kv_cache import KVCache

__all__ = ["PrefixMatch", "PrefixTree"]

_Key: TypeAlias = tuple[tuple[int, ...], tuple[bool, ...]]
"""Token ids and marks of a block, as many as it has positions or, of a leaf, fewer."""


@dataclass(slots=True, eq=False)
class _Node:
    """A block, and those that go on after it; `block` is -1 for the root."""

    key: _Key
    block: int
    parent: "_Node | None"
    children: dict[_Key, "_Node"] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """What a new sequence may begin with.

    Attributes:
        blocks: all of whose positions it shares.
        source: a block whose first positions it may copy; None if none is worth it.
        marks: bool[positions], of those of `blocks` and those to be copied, whether they were
            computed as prompt.
    """

    blocks: tuple[int, ...] = ()
    source: int | None = None
    marks: tuple[bool, ...] = ()

    @property
    def num_positions(self) -> int:
        """Positions that need not be computed."""
        return len(self.marks)


class PrefixTree:
    """Keeps blocks of sequences, as long as no sequence needs their room.

    The one longest unused goes first, and none before those that go on after it. The tree is the
    keeper of its cache (`KVCache.set_keeper`), which asks it for blocks.
    """

    def __init__(self, cache: KVCache) -> None:
        """Start empty; what another tree of the cache kept goes."""
        self._cache = cache
        self._root = _Node(((), ()), -1, None)
        # By block, the one longest unused first, and each before those that it goes on after.
        self._nodes: OrderedDict[int, _Node] = OrderedDict()
        cache.set_keeper(self)

    def __len__(self) -> int:
        """Blocks that are kept, in use or not."""
        return len(self._nodes)

    @property
    def blocks(self) -> Collection[int]:
        """Those it keeps."""
        return self._nodes.keys()

    @property
    def num_evictable(self) -> int:
        """Blocks that no sequence uses."""
        return self._cache.num_unused_blocks

    def insert(
        self,
        sequence: Hashable,
        token_ids: Sequence[int],
        marks: Sequence[bool],
        *,
        is_over: bool = False,
    ) -> None:
        """Keep the blocks that a sequence has filled, also while it goes on.

        Where there is a block of the same tokens and marks, the sequence holds that one from now
        on, and its own is free.

        Args:
            sequence: its key in the cache.
            token_ids: those whose keys and values are computed, in order.
            marks: of each whether it is prompt.
            is_over: keep a last block that is partly used, too; nothing may follow in it.
        """
        held, size = self._cache.blocks_of(sequence), self._cache.block_size
        node, num_whole = self._root, len(token_ids) // size
        for index in range(num_whole):
            key = _key(token_ids, marks, index * size, (index + 1) * size)
            known = node.children.get(key)
            if known is not None and known.block != held[index]:
                self._cache.replace(sequence, index, known.block)
            node = self._add(node, key, held[index]) if known is None else known
        key = _key(token_ids, marks, num_whole * size, len(token_ids))
        if is_over and key[0]:
            longer, length = _longest(node, *key)
            if longer is None or length < len(key[0]):
                longer = self._add(node, key, held[num_whole])
            node = longer
        self._touch(node)

    def match(
        self,
        token_ids: Sequence[int],
        marks: Sequence[bool] | None = None,
        *,
        shares_answers: bool = False,
        limit: int | None = None,
    ) -> PrefixMatch:
        """Find what a sequence of these tokens may begin with; use it before any other call.

        Args:
            token_ids: of the sequence.
            marks: of each whether it is prompt; None: all are.
            shares_answers: take keys and values however they were computed.
            limit: most positions to find; None: all.
        """
        wanted = tuple(token_ids) if limit is None else tuple(token_ids[:limit])
        own = (True,) * len(wanted) if marks is None else tuple(marks[: len(wanted)])
        if not shares_answers:
            return self._matched([self._walk(wanted, own)], wanted, own)
        return self._matched(self._walk_all(wanted), wanted, None)

    def num_needed(self, found: PrefixMatch, num_positions: int) -> int:
        """Blocks that must be available so that a sequence can share them and grow to a length."""
        num_unused = sum(map(self._cache.is_unused, found.blocks))
        return self._cache.num_blocks_for(num_positions) - len(found.blocks) + num_unused

    def share(self, sequence: Hashable, found: PrefixMatch) -> None:
        """Let a sequence without blocks begin with what was found.

        Raises:
            PromptError: there is no room, see `KVCache.share`.
        """
        blocks = [*found.blocks] if found.source is None else [*found.blocks, found.source]
        if blocks:
            self._touch(self._nodes[blocks[-1]])
        self._cache.share(sequence, blocks, found.num_positions)

    def clear(self) -> None:
        """Keep nothing any more; what sequences use stays theirs."""
        with self._cache.changing():
            for node in list(self._root.children.values()):
                self._remove(node)

    # What the cache asks for.

    def reclaim(self, num_blocks: int) -> None:
        """Drop blocks that nobody uses, the one longest unused first."""
        unused = (node for node in self._nodes.values() if self._cache.is_unused(node.block))
        leaves = [node for node, _ in zip(unused, range(num_blocks), strict=False)]
        for node in leaves:
            self._remove(node)

    def forget(self, block: int) -> None:
        """Drop a block and all that go on after it."""
        self._remove(self._nodes[block])

    # Within.

    def _add(self, parent: _Node, key: _Key, block: int) -> _Node:
        with self._cache.changing():
            for other in [node for node in parent.children.values() if _begins(key, node.key)]:
                self._remove(other)
            node = _Node(key, block, parent)
            parent.children[key] = self._nodes[block] = node
            self._cache.pool.keep(block)
        return node

    def _remove(self, node: _Node) -> None:
        """Within `changing`: the cache asks for it there."""
        for child in list(node.children.values()):
            self._remove(child)
        if node.parent is not None:
            node.parent.children.pop(node.key, None)
        if self._nodes.pop(node.block, None) is not None:
            self._cache.pool.drop(node.block)

    def _touch(self, last: _Node) -> None:
        """Call a path the one used last, its end before its beginning."""
        node: _Node | None = last
        while node is not None and node is not self._root:
            self._nodes.move_to_end(node.block)
            node = node.parent

    def _walk(self, token_ids: tuple[int, ...], marks: tuple[bool, ...]) -> _Node:
        """The last block that all positions of are found, with these marks."""
        node, size = self._root, self._cache.block_size
        for start in range(0, len(token_ids) - size + 1, size):
            known = node.children.get(_key(token_ids, marks, start, start + size))
            if known is None:
                break
            node = known
        return node

    def _walk_all(self, token_ids: tuple[int, ...]) -> list[_Node]:
        """The last blocks that are found whatever their marks are."""
        nodes, size = [self._root], self._cache.block_size
        for start in range(0, len(token_ids) - size + 1, size):
            wanted = token_ids[start : start + size]
            children = (child for node in nodes for child in node.children.values())
            found = [child for child in children if child.key[0] == wanted]
            if not found:
                break
            nodes = found
        return nodes

    def _matched(
        self, nodes: list[_Node], token_ids: tuple[int, ...], marks: tuple[bool, ...] | None
    ) -> PrefixMatch:
        """The longest that begins with one of these nodes, which are equally deep."""
        start = sum(1 for _ in _path(nodes[0])) * self._cache.block_size
        own = None if marks is None else marks[start:]
        best, (source, length) = max(
            ((node, _longest(node, token_ids[start:], own)) for node in nodes),
            key=lambda found: found[1][1],
        )
        path = list(_path(best))[::-1]
        kept = tuple(mark for node in path for mark in node.key[1])
        if source is not None:
            kept += source.key[1][:length]
        block = None if source is None else source.block
        return PrefixMatch(tuple(node.block for node in path), block, kept)


def _key(token_ids: Sequence[int], marks: Sequence[bool], start: int, end: int) -> _Key:
    return tuple(token_ids[start:end]), tuple(marks[start:end])


def _path(node: _Node) -> Iterator[_Node]:
    """From a node up to the first block."""
    while node.parent is not None:
        yield node
        node = node.parent


def _begins(key: _Key, start: _Key) -> bool:
    """Whether a key goes on after another."""
    length = len(start[0])
    return length < len(key[0]) and (key[0][:length], key[1][:length]) == start


def _longest(
    node: _Node, token_ids: Sequence[int], marks: Sequence[bool] | None
) -> tuple[_Node | None, int]:
    """The child that begins with most of some tokens, and with how many.

    Args:
        node: the parent.
        token_ids: to begin with.
        marks: of them, which must be equal, too; None: any.
    """
    best: tuple[_Node | None, int] = (None, 0)
    for child in node.children.values():
        length = _num_equal(child.key[0], token_ids)
        if marks is not None and length > best[1]:
            length = min(length, _num_equal(child.key[1], marks))
        if length > best[1]:
            best = child, length
    return best


def _num_equal(left: Sequence[int], right: Sequence[int]) -> int:
    """Elements at the beginning that are equal."""
    pairs = enumerate(zip(left, right, strict=False))
    shorter = min(len(left), len(right))
    return next((index for index, (a, b) in pairs if a != b), shorter)
