"""Blocks of keys and values that sequences left in the cache, indexed by their tokens.

Keys and values depend only on the tokens up to their position and on which of them were prompt
(`Batch.is_prompt`): in a block of the same tokens, prompt or not alike, every bit is what a new
sequence would compute. A node of the tree is one block, keyed by its tokens and their kinds;
the path to it is everything before. Only whole blocks are shared. The partly used last block of a
finished sequence is a leaf, to be copied.
"""

from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from powerinfer.kvcache.kv_cache import KVCache

__all__ = ["PrefixMatch", "PrefixTree"]

_Key: TypeAlias = tuple[tuple[int, ...], tuple[bool, ...]]
"""Token ids of a block and which are prompt: one per position, fewer in a leaf."""


@dataclass(slots=True, eq=False)
class _Node:
    """A block and its continuations; `block` is -1 for the root."""

    key: _Key
    block: int
    parent: "_Node | None"
    children: dict[_Key, "_Node"] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """Cached blocks that a new sequence can start with.

    Attributes:
        blocks: whole blocks to share.
        source: block whose first positions are to be copied, or None.
        is_prompt: bool[num_positions], whether each position was computed as prompt.
    """

    blocks: tuple[int, ...] = ()
    source: int | None = None
    is_prompt: tuple[bool, ...] = ()

    @property
    def num_positions(self) -> int:
        """Number of positions that need not be computed."""
        return len(self.is_prompt)


class PrefixTree:
    """Keeps blocks of sequences until another sequence needs their space.

    Evicts the least recently used block first, and never before its continuations. The tree is the
    keeper of its cache (`KVCache.set_keeper`), which asks it for blocks.
    """

    def __init__(self, cache: KVCache) -> None:
        """Start empty; blocks of a previous tree of the cache are released."""
        self._cache = cache
        self._root = _Node(((), ()), -1, None)
        # By block, least recently used first, and each before its ancestors.
        self._nodes: OrderedDict[int, _Node] = OrderedDict()
        cache.set_keeper(self)

    @property
    def blocks(self) -> Collection[int]:
        """Blocks kept, in use or not."""
        return self._nodes.keys()

    def insert(
        self,
        sequence: Hashable,
        token_ids: Sequence[int],
        is_prompt: Sequence[bool],
        *,
        is_over: bool = False,
    ) -> None:
        """Keep the full blocks of a sequence, which may still be running.

        Where the tree has a block of the same tokens and kinds, the sequence holds that one from
        now on, and its own is released.

        Args:
            token_ids: tokens whose keys and values are computed.
            is_prompt: whether each token is prompt.
            is_over: keep a partly used last block too; nothing may be written into it any more.
        """
        held, size = self._cache.blocks_of(sequence), self._cache.block_size
        node, num_whole = self._root, len(token_ids) // size
        for index in range(num_whole):
            key = _key(token_ids, is_prompt, index * size, (index + 1) * size)
            known = node.children.get(key)
            if known is not None and known.block != held[index]:
                self._cache.replace(sequence, index, known.block)
            node = self._add(node, key, held[index]) if known is None else known
        key = _key(token_ids, is_prompt, num_whole * size, len(token_ids))
        if is_over and key[0]:
            longer, length = _longest(node, *key)
            if longer is None or length < len(key[0]):
                longer = self._add(node, key, held[num_whole])
            node = longer
        self._touch(node)

    def match(
        self,
        token_ids: Sequence[int],
        is_prompt: Sequence[bool] | None = None,
        *,
        shares_answers: bool = False,
        limit: int | None = None,
    ) -> PrefixMatch:
        """Find the longest cached beginning of a sequence; the result is valid until the next call.

        Args:
            is_prompt: whether each token is prompt; None if all are.
            shares_answers: accept keys and values however they were computed.
            limit: maximum number of positions to find.
        """
        wanted = tuple(token_ids) if limit is None else tuple(token_ids[:limit])
        own = (True,) * len(wanted) if is_prompt is None else tuple(is_prompt[: len(wanted)])
        if not shares_answers:
            return self._matched([self._walk(wanted, own)], wanted, own)
        return self._matched(self._walk_all(wanted), wanted, None)

    def share(self, sequence: Hashable, found: PrefixMatch) -> None:
        """Start a sequence without blocks with what was found, see `KVCache.share`."""
        blocks = [*found.blocks] if found.source is None else [*found.blocks, found.source]
        if blocks:
            self._touch(self._nodes[blocks[-1]])
        self._cache.share(sequence, blocks, found.num_positions)

    # Called by the cache.

    def reclaim(self, num_blocks: int) -> None:
        """Drop up to `num_blocks` unused blocks, the least recently used first."""
        unused = (node for node in self._nodes.values() if self._cache.is_unused(node.block))
        leaves = [node for node, _ in zip(unused, range(num_blocks), strict=False)]
        for node in leaves:
            self._remove(node)

    def forget(self, block: int) -> None:
        """Drop a block and all its continuations."""
        self._remove(self._nodes[block])

    def _add(self, parent: _Node, key: _Key, block: int) -> _Node:
        with self._cache.changing():
            for other in [node for node in parent.children.values() if _begins(key, node.key)]:
                self._remove(other)
            node = _Node(key, block, parent)
            parent.children[key] = self._nodes[block] = node
            self._cache.keep(block)
        return node

    def _remove(self, node: _Node) -> None:
        """Remove a node and its descendants; only within `changing`."""
        for child in list(node.children.values()):
            self._remove(child)
        if node.parent is not None:
            node.parent.children.pop(node.key, None)
        if self._nodes.pop(node.block, None) is not None:
            self._cache.drop(node.block)

    def _touch(self, last: _Node) -> None:
        """Mark a path as most recently used, each block before its ancestors."""
        node: _Node | None = last
        while node is not None and node is not self._root:
            self._nodes.move_to_end(node.block)
            node = node.parent

    def _walk(self, token_ids: tuple[int, ...], is_prompt: tuple[bool, ...]) -> _Node:
        """Follow whole blocks with these tokens and kinds as far as possible."""
        node, size = self._root, self._cache.block_size
        for start in range(0, len(token_ids) - size + 1, size):
            known = node.children.get(_key(token_ids, is_prompt, start, start + size))
            if known is None:
                break
            node = known
        return node

    def _walk_all(self, token_ids: tuple[int, ...]) -> list[_Node]:
        """Follow whole blocks with these tokens, whatever their kinds, as far as possible."""
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
        self, nodes: list[_Node], token_ids: tuple[int, ...], is_prompt: tuple[bool, ...] | None
    ) -> PrefixMatch:
        """Build the longest match through one of these equally deep nodes."""
        start = sum(1 for _ in _path(nodes[0])) * self._cache.block_size
        own = None if is_prompt is None else is_prompt[start:]
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


def _key(token_ids: Sequence[int], is_prompt: Sequence[bool], start: int, end: int) -> _Key:
    return tuple(token_ids[start:end]), tuple(is_prompt[start:end])


def _path(node: _Node) -> Iterator[_Node]:
    """Yield a node and its ancestors, without the root."""
    while node.parent is not None:
        yield node
        node = node.parent


def _begins(key: _Key, start: _Key) -> bool:
    """Return whether `start` is a proper prefix of `key`."""
    length = len(start[0])
    return length < len(key[0]) and (key[0][:length], key[1][:length]) == start


def _longest(
    node: _Node, token_ids: Sequence[int], is_prompt: Sequence[bool] | None
) -> tuple[_Node | None, int]:
    """Find the child with the longest common prefix, and its length."""
    best: tuple[_Node | None, int] = (None, 0)
    for child in node.children.values():
        length = _num_equal(child.key[0], token_ids)
        if is_prompt is not None and length > best[1]:
            length = min(length, _num_equal(child.key[1], is_prompt))
        if length > best[1]:
            best = child, length
    return best


def _num_equal(left: Sequence[int], right: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    pairs = enumerate(zip(left, right, strict=False))
    shorter = min(len(left), len(right))
    return next((index for index, (a, b) in pairs if a != b), shorter)
