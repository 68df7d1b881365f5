"""States in the prefix tree: which beginning a sequence can go on from."""

from powerinfer.kvcache import KVCache, PrefixMatch, PrefixTree
from powerinfer.kvcache.state_slots import StateSlots
from powerinfer.ops.protocol import KVType

SIZE = 4


class Tree:
    """A tree over a cache without layers, and sequences that are computed in pieces."""

    def __init__(self, num_slots: int = 12, num_blocks: int = 40) -> None:
        self.states = StateSlots(num_slots)
        self.cache = KVCache(
            num_blocks,
            SIZE,
            states=self.states,
            layers=[],
            kv_type=KVType.F16,
            bytes_per_position=0,
        )
        self.tree = PrefixTree(self.cache)

    def compute(
        self, text: str, *kept: int, found: PrefixMatch | None = None, is_over: bool = True
    ) -> None:
        """Compute a text of one-character tokens, and keep states after some of them."""
        ids = list(map(ord, text))
        start = 0
        if found is not None:
            self.tree.share(text, found)
            start = found.num_positions
        for end in (*kept, len(ids)):
            if end > start:
                self.cache.batch([(text, ids[start:end], start)], [True])
            if end in kept:
                self.tree.keep_state(text, end)
            start = end
        self.tree.insert(text, ids, [True] * len(ids), is_over=is_over)
        if is_over:
            self.cache.free(text)
        self.cache.check_integrity()

    def match(self, text: str, limit: int | None = None) -> PrefixMatch:
        return self.tree.match(list(map(ord, text)), limit=limit)

    def lengths(self, text: str) -> tuple[int, int]:
        """Positions that can be resumed, and those whose keys and values are there."""
        found = self.match(text)
        assert (found.slot is None) == (found.num_positions == 0)
        assert len(found.blocks) == found.num_positions // SIZE
        assert (found.source is None) == (found.num_positions % SIZE == 0)
        return found.num_positions, found.num_known


def test_a_text_is_resumed_where_a_state_is_kept() -> None:
    tree = Tree()
    tree.compute("abcdefghijk", 2, 6, 8)
    assert tree.lengths("abcdefghijkl") == (8, 11)
    assert tree.lengths("abcdefgXijkl") == (6, 7)
    assert tree.lengths("abcdeX") == (2, 5)
    assert tree.lengths("aX") == (0, 1)
    assert tree.lengths("") == (0, 0)
    assert tree.match("abcdefghijk", limit=7).num_positions == 6


def test_kinds_count_unless_answers_are_shared() -> None:
    tree = Tree()
    tree.compute("abcdefgh", 6)
    ids = list(map(ord, "abcdefgh"))
    is_prompt = [True] * 5 + [False] * 3
    assert tree.tree.match(ids, is_prompt).num_positions == 0
    shared = tree.tree.match(ids, is_prompt, shares_answers=True)
    assert (shared.num_positions, shared.is_prompt) == (6, (True,) * 6)


def test_a_running_text_shares_the_states_of_its_whole_blocks() -> None:
    tree = Tree()
    tree.compute("abcdefghij", 4, 6, 9, is_over=False)
    assert tree.lengths("abcdefghij") == (6, 8)
    tree.tree.insert("abcdefghij", list(map(ord, "abcdefghij")), [True] * 10, is_over=True)
    assert tree.lengths("abcdefghij") == (9, 10)


def test_states_go_with_the_sequence_if_their_block_never_comes() -> None:
    tree = Tree()
    tree.compute("abcdefghij", 9, is_over=False)
    assert len(tree.tree.slots) == 1
    tree.cache.free("abcdefghij")
    assert not tree.tree.slots


def test_the_newest_block_that_begins_alike_inherits_states() -> None:
    """So that a chat whose turns each replace the end of the one before keeps them all."""
    tree = Tree(num_blocks=5)
    tree.compute("abcdefghi", 6)
    tree.compute("abcdefXYZ", found=tree.match("abcdefXYZ"))
    # The block of the first text is the oldest.
    tree.tree.reclaim(2)
    assert tree.lengths("abcdefghi") == (6, 6)


def test_states_go_with_their_blocks() -> None:
    tree = Tree()
    tree.compute("abcdefgh", 4, 8)
    assert len(tree.tree.slots) == 2
    assert tree.lengths("abcdefgh") == (8, 8)
    tree.tree.reclaim(1)
    assert tree.lengths("abcdefgh") == (4, 4)
    assert len(tree.tree.slots) == 1


def test_the_least_recently_used_state_goes_first() -> None:
    tree = Tree(num_slots=4)
    tree.compute("abcdefgh", 4)
    tree.compute("XYZW", 4)
    tree.compute("abcdX", found=tree.match("abcdX"))
    tree.tree.reclaim_slot()
    assert tree.lengths("abcd") == (4, 4)
    assert tree.lengths("XYZW") == (0, 4)
    tree.tree.reclaim_slot()
    tree.tree.reclaim_slot()
    assert not tree.tree.slots


def test_one_state_for_each_place() -> None:
    tree = Tree()
    tree.compute("abcdefgh", 6, is_over=False)
    tree.compute("abcdefghX", 6)
    assert len(tree.tree.slots) == 1
