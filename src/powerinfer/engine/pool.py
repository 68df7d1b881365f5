"""Blocks of the KV cache for running texts: reserved, shared, cached and freed."""

import logging
from collections.abc import Iterable

from powerinfer.engine.request import RequestHandle
from powerinfer.engine.text import RunningText, TokenSequence
from powerinfer.kvcache import KVCache
from powerinfer.kvcache.prefix_tree import PrefixTree
from powerinfer.values import FloatArray

__all__ = ["Pool", "SharedPrompt"]

_log = logging.getLogger(__name__)


class SharedPrompt:
    """A prompt shared by the texts of a request, until the last of them has begun.

    Attributes:
        not_begun: texts that have not been admitted, in order.
        logits: f32[vocab_size] after the prompt; None until it is computed.
        spare: sequence of an ended text, kept because no running text holds the prompt.
    """

    def __init__(self, texts: Iterable[RunningText]) -> None:
        """Start with all texts but the first, which computes the prompt."""
        self.not_begun = list(texts)
        self.logits: FloatArray | None = None
        self.spare: TokenSequence | None = None
        self._holders: list[TokenSequence] = []

    def join(self, sequence: TokenSequence) -> None:
        """Add a running sequence that begins with the prompt."""
        self._holders.append(sequence)

    def leave(self, sequence: TokenSequence) -> None:
        """Remove a sequence that is over."""
        if sequence in self._holders:
            self._holders.remove(sequence)

    @property
    def holder(self) -> TokenSequence | None:
        """A running sequence whose blocks still begin with the prompt; None if there is none."""
        return next((each for each in self._holders if not each.num_shifts), None)


class Pool:
    """Allocates the blocks of texts.

    Attributes:
        cache: cache that the blocks belong to; used by nobody else.
        tree: blocks of earlier texts, for texts with the same beginning.
        length_limit: most tokens that a sequence may hold.
    """

    def __init__(self, cache: KVCache, context_length: int) -> None:
        self.cache = cache
        self.tree = PrefixTree(cache)
        self.length_limit = min(context_length, cache.num_blocks * cache.block_size)

    def num_positions(self, handle: RequestHandle) -> int:
        """Return the most positions that a text of a request can hold."""
        most = handle.request.params.max_tokens
        if most is None:
            return self.length_limit
        # The last chosen token is never computed.
        return min(self.length_limit, handle.num_prompt_tokens + max(0, most - 1))

    def needs(self, text: RunningText, shared: SharedPrompt | None, *, is_first: bool) -> int:
        """Return the number of available blocks that a waiting text needs to begin.

        Args:
            text: the waiting text.
            shared: prompt of its request; None if it is the only text.
            is_first: it is the first text of its request to begin in this step.
        """
        total = self.cache.num_blocks_for(self.num_positions(text.handle))
        num_prompt = text.handle.num_prompt_tokens
        if shared is None or (shared.holder is None and shared.spare is None):
            return total
        if shared.holder is None and is_first:
            return total - self.cache.num_blocks_for(num_prompt)
        return total - num_prompt // self.cache.block_size

    def begin(self, text: RunningText, shared: SharedPrompt | None) -> None:
        """Reserve the blocks of a text, reusing what is computed of its prompt.

        Raises:
            PromptError: there is no room for it.
        """
        sequence, num_prompt = text.sequence, text.handle.num_prompt_tokens
        holder = None if shared is None else shared.holder
        if holder is not None:
            self.cache.fork(holder.key, sequence.key, num_prompt)
        elif shared is not None and shared.spare is not None:
            sequence.key, shared.spare = shared.spare.key, None
        else:
            num_prompt = self._reuse(text)
        self.cache.reserve(sequence.key, self.num_positions(text.handle))
        sequence.num_computed = sequence.num_reused = num_prompt
        if shared is not None:
            shared.join(sequence)

    def take_back(self, text: RunningText, shared: SharedPrompt | None) -> None:
        """Undo a `begin` that was interrupted or found no room."""
        self.cache.free(text.sequence.key)
        if shared is not None:
            shared.leave(text.sequence)

    def _reuse(self, text: RunningText) -> int:
        """Share blocks of earlier texts; return the number of positions.

        Tokens whose logits are wanted are always computed.
        """
        sequence, request = text.sequence, text.handle.request
        first = request.first_wanted
        limit = len(sequence.token_ids) - 1 if first is None else first
        if not request.reuses_prefix or not limit:
            return 0
        found = self.tree.match(
            sequence.token_ids,
            sequence.is_prompt,
            shares_answers=request.shares_answers,
            limit=limit,
        )
        num_found = found.num_positions
        self.tree.share(sequence.key, found)
        sequence.is_prompt[:num_found] = found.is_prompt
        text.handle.num_cached_tokens = num_found
        return num_found

    def shift(self, sequence: TokenSequence, num_kept: int) -> None:
        """Make room in a full sequence; its newer half is to be computed again.

        Raises:
            PromptError: `num_kept` leaves nothing to drop.
        """
        length = sequence.num_computed
        sequence.shift(num_kept)
        _log.info(
            "context full: dropped %d of %d tokens",
            length - num_kept - sequence.num_to_read,
            length,
        )
        self.cache.truncate(sequence.key, num_kept)

    def keep(self, text: RunningText, *, is_over: bool = False) -> None:
        """Let later texts reuse what this one has computed."""
        sequence = text.sequence
        if text.handle.request.reuses_prefix and not text.has_failed:
            length = sequence.num_computed
            self.tree.insert(
                sequence.key,
                sequence.token_ids[:length],
                sequence.is_prompt[:length],
                is_over=is_over,
            )

    def end(self, text: RunningText, shared: SharedPrompt | None) -> None:
        """Free the blocks of an ended text, or keep its prompt for other texts of the request."""
        sequence, num_prompt = text.sequence, text.handle.num_prompt_tokens
        if shared is not None:
            is_whole = not sequence.num_shifts and sequence.num_computed >= num_prompt
            shared.leave(sequence)
            if is_whole and shared.not_begun and shared.holder is None:
                self.cache.truncate(sequence.key, num_prompt)
                self.cache.reserve(sequence.key, num_prompt)
                shared.spare = sequence
                return
        if self.cache.blocks_of(sequence.key):  # none after an interrupted end
            self.keep(text, is_over=True)
        self.cache.free(sequence.key)
