"""Blocks of keys and values that sequences left in the cache, indexed by their tokens.

Keys and values depend only on the tokens up to their position and on which of them were prompt
(`Batch.is_prompt`): in a block of the same tokens, prompt or not alike, every bit is what a new
sequence would compute. A node of the tree is one block, keyed by its tokens and their kinds;
the path to it is everything before. Only whole blocks are shared. The partly used last block of a
finished sequence is a leaf, to be copied.

A model with recurrent layers can only go on where its state is known. The tree therefore keeps
states of running sequences, too, as one more holder of their slots, and finds the longest beginning
that ends at one. A state belongs to the block of its last position, and goes with it.
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
class _Snapshot:
    """A kept state.

    Attributes:
        position: number of positions that it contains.
        place: node with the last of them; the key of a sequence whose block is not in the tree yet.
    """

    position: int
    place: _Node | Hashable


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """Cached blocks that a new sequence can start with.

    Attributes:
        blocks: whole blocks to share.
        source: block whose first positions are to be copied, or None.
        is_prompt: bool[num_positions], whether each position was computed as prompt.
        num_known: number of positions with cached keys and values; more than `num_positions` if no
            state is kept after them.
        slot: the state after `num_positions`; None for models without state.
    """

    blocks: tuple[int, ...] = ()
    source: int | None = None
    is_prompt: tuple[bool, ...] = ()
    num_known: int = 0
    slot: int | None = None

    @property
    def num_positions(self) -> int:
        """Number of positions that need not be computed."""
        return len(self.is_prompt)


class PrefixTree:
    """Keeps blocks and states of sequences until another sequence needs their space.

    Evicts the least recently used block first, and never before its continuations; of the states,
    which take slots of their own, the least recently used, too. The tree is the keeper of its cache
    (`KVCache.set_keeper`, `StateSlots.set_keeper`), which asks it for blocks and slots.
    """

    def __init__(self, cache: KVCache) -> None:
        """Start empty; blocks of a previous tree of the cache are released."""
        self._cache = cache
        self._root = _Node(((), ()), -1, None)
        # By block, least recently used first, and each before its ancestors.
        self._nodes: OrderedDict[int, _Node] = OrderedDict()
        # By slot, least recently used first.
        self._snapshots: OrderedDict[int, _Snapshot] = OrderedDict()
        cache.set_keeper(self)
        if cache.states is not None:
            cache.states.set_keeper(self)

    @property
    def blocks(self) -> Collection[int]:
        """Blocks kept, in use or not."""
        return self._nodes.keys()

    @property
    def slots(self) -> Collection[int]:
        """Slots of kept states, in use or not."""
        return self._snapshots.keys()

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
        now on, and its own is released. States kept of the sequence go with the blocks.

        Args:
            token_ids: tokens whose keys and values are computed.
            is_prompt: whether each token is prompt.
            is_over: keep a partly used last block too; nothing may be written into it any more.
        """
        held, size = self._cache.blocks_of(sequence), self._cache.block_size
        node, num_whole = self._root, len(token_ids) // size
        path = []
        for index in range(num_whole):
            key = _key(token_ids, is_prompt, index * size, (index + 1) * size)
            known = node.children.get(key)
            if known is not None and known.block != held[index]:
                self._cache.replace(sequence, index, known.block)
            node = self._add(node, key, held[index]) if known is None else known
            path.append(node)
        key = _key(token_ids, is_prompt, num_whole * size, len(token_ids))
        if is_over and key[0]:
            longer, length = _longest(node, *key)
            if longer is None or length < len(key[0]):
                longer = self._add(node, key, held[num_whole])
            node = longer
            path.append(node)
        self._touch(node)
        for slot, each in self._snapshots_at(sequence):
            if each.position <= (len(token_ids) if is_over else num_whole * size):
                self._settle(slot, each, path[(each.position - 1) // size])

    def keep_state(self, sequence: Hashable, num_positions: int) -> None:
        """Keep the state that a sequence has after `num_positions`, all of them computed.

        It is found once `insert` has got the block of its last position. Without state or without
        this one, nothing happens.
        """
        states = self._cache.states
        slot = None if states is None else states.slot_of(sequence, num_positions)
        if slot is not None and slot not in self._snapshots:
            self._snapshots[slot] = _Snapshot(num_positions, sequence)

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
        kinds = None if shares_answers else own
        levels = self._walk(wanted, kinds)
        found = self._matched(levels[-1], wanted, kinds)
        if self._cache.states is None:
            return found
        return self._resumable(levels, wanted, kinds, found.num_positions)

    def share(self, sequence: Hashable, found: PrefixMatch) -> None:
        """Start a sequence without blocks with what was found, see `KVCache.share`."""
        blocks = [*found.blocks] if found.source is None else [*found.blocks, found.source]
        if blocks:
            self._touch(self._nodes[blocks[-1]])
        if found.slot is not None:
            self._snapshots.move_to_end(found.slot)
        self._cache.share(sequence, blocks, found.num_positions, found.slot)

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

    def reclaim_slot(self) -> None:
        """Drop the least recently used state that no sequence holds."""
        states = self._cache.states
        unused = (slot for slot in self._snapshots if states and states.is_unused(slot))
        if (slot := next(unused, None)) is not None:
            del self._snapshots[slot]

    def forget_states(self, sequence: Hashable, num_positions: int) -> None:
        """Drop states of a sequence after more than `num_positions` whose block is not here yet."""
        for slot, each in self._snapshots_at(sequence):
            if each.position > num_positions:
                del self._snapshots[slot]

    def _add(self, parent: _Node, key: _Key, block: int) -> _Node:
        with self._cache.changing():
            node = _Node(key, block, parent)
            others = list(parent.children.values())
            parent.children[key] = self._nodes[block] = node
            self._cache.keep(block)
            for other in others:
                self._inherit(node, other)
                if _begins(key, other.key):
                    self._remove(other)
        return node

    def _inherit(self, node: _Node, other: _Node) -> None:
        """Move states from an older block to one that begins alike, as older ones go first."""
        for slot, each in self._snapshots_at(other):
            offset = _offset(each.position, self._cache.block_size)
            if _cut(node.key, offset) == _cut(other.key, offset):
                self._snapshots[slot] = _Snapshot(each.position, node)

    def _settle(self, slot: int, snapshot: _Snapshot, node: _Node) -> None:
        """Say which node a state belongs to, unless that has one for the same position."""
        at_node = {each.position: known for known, each in self._snapshots_at(node)}
        known = at_node.get(snapshot.position)
        if known is None:
            self._snapshots[slot] = _Snapshot(snapshot.position, node)
        else:
            self._snapshots.move_to_end(known)
            del self._snapshots[slot]

    def _snapshots_at(self, place: _Node | Hashable) -> list[tuple[int, _Snapshot]]:
        return [(slot, each) for slot, each in self._snapshots.items() if each.place == place]

    def _remove(self, node: _Node) -> None:
        """Remove a node and its descendants; only within `changing`."""
        for child in list(node.children.values()):
            self._remove(child)
        for slot, _ in self._snapshots_at(node):
            del self._snapshots[slot]
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

    def _walk(
        self, token_ids: tuple[int, ...], is_prompt: tuple[bool, ...] | None
    ) -> list[list[_Node]]:
        """Follow whole blocks with these tokens as far as possible: the nodes after each block.

        Args:
            is_prompt: kinds that they must have, too; None: any.
        """
        levels, size = [[self._root]], self._cache.block_size
        for start in range(0, len(token_ids) - size + 1, size):
            nodes, wanted = levels[-1], token_ids[start : start + size]
            if is_prompt is None:
                children = (child for node in nodes for child in node.children.values())
                found = [child for child in children if child.key[0] == wanted]
            else:
                key = wanted, is_prompt[start : start + size]
                found = [node.children[key] for node in nodes if key in node.children]
            if not found:
                break
            levels.append(found)
        return levels

    def _resumable(
        self,
        levels: list[list[_Node]],
        token_ids: tuple[int, ...],
        is_prompt: tuple[bool, ...] | None,
        num_known: int,
    ) -> PrefixMatch:
        """Build the longest match that ends at a kept state."""
        best, node = -1, self._root
        length, size = 0, self._cache.block_size
        for slot, each in self._snapshots.items():
            place = each.place
            if not (length < each.position <= len(token_ids) and isinstance(place, _Node)):
                continue
            offset = _offset(each.position, size)
            start, end = each.position - offset, each.position
            kinds = place.key[1][:offset] if is_prompt is None else is_prompt[start:end]
            is_alike = (token_ids[start:end], kinds) == _cut(place.key, offset)
            depth = start // size
            if is_alike and depth < len(levels) and place.parent in levels[depth]:
                best, node, length = slot, place, each.position
        if not length:
            return PrefixMatch(num_known=num_known)
        path = list(_path(node))[::-1]
        kinds = tuple(mark for each in path for mark in each.key[1])[:length]
        num_whole = length // size
        source = None if length % size == 0 else node.block
        blocks = tuple(each.block for each in path[:num_whole])
        return PrefixMatch(blocks, source, kinds, num_known, best)

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
        return PrefixMatch(tuple(node.block for node in path), block, kept, len(kept))


def _key(token_ids: Sequence[int], is_prompt: Sequence[bool], start: int, end: int) -> _Key:
    return tuple(token_ids[start:end]), tuple(is_prompt[start:end])


def _offset(position: int, size: int) -> int:
    """Return the number of positions in the last of the blocks that hold `position` of them."""
    return (position - 1) % size + 1


def _cut(key: _Key, length: int) -> _Key:
    """Return the first tokens and kinds of a key."""
    return key[0][:length], key[1][:length]


def _path(node: _Node) -> Iterator[_Node]:
    """Yield a node and its ancestors, without the root."""
    while node.parent is not None:
        yield node
        node = node.parent


def _begins(key: _Key, start: _Key) -> bool:
    """Return whether `start` is a proper prefix of `key`."""
    length = len(start[0])
    return length < len(key[0]) and _cut(key, length) == start


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
