"""Blocks of keys and values for texts that run: promised, shared, kept for later, given back."""

import logging
from collections.abc import Iterable

from powerinfer.engine.request import RequestHandle
from powerinfer.engine.sequence import RunningSequence
from powerinfer.engine.text import RunningText
from powerinfer.errors import PowerInferError
from powerinfer.kvcache import KVCache
from powerinfer.kvcache.prefix_tree import PrefixTree
from powerinfer.values import FloatArray

__all__ = ["Pool", "SharedPrompt"]


_log = logging.getLogger(__name__)


class SharedPrompt:
    """What the texts of a request share until the last of them has begun.

    Attributes:
        not_begun: texts that have not been admitted, in order.
        logits: f32[vocab_size] behind the prompt; None until it is computed.
        spare: sequence of a text that is over, kept because nobody else holds the prompt.
    """

    def __init__(self, texts: Iterable[RunningText]) -> None:
        """Start with a prompt that is not computed.

        Args:
            texts: of the request but its first, which computes the prompt.
        """
        self.not_begun = list(texts)
        self.logits: FloatArray | None = None
        self.spare: RunningSequence | None = None
        self._holders: list[RunningSequence] = []

    def join(self, sequence: RunningSequence) -> None:
        """A sequence that runs begins with the prompt."""
        self._holders.append(sequence)

    def leave(self, sequence: RunningSequence) -> None:
        """It is over."""
        if sequence in self._holders:
            self._holders.remove(sequence)

    @property
    def holder(self) -> RunningSequence | None:
        """A sequence that runs whose blocks still begin with the prompt; None: there is none."""
        return next((each for each in self._holders if not each.num_shifts), None)


class Pool:
    """Gives texts their blocks.

    Attributes:
        cache: whose blocks they are.
        tree: blocks that texts left, for those that begin alike.
        length_limit: most tokens that a sequence may hold.
    """

    def __init__(self, cache: KVCache, context_length: int) -> None:
        """Start with no texts.

        Args:
            cache: that nobody else uses.
            context_length: most tokens that the model computes in a sequence.
        """
        self.cache = cache
        self.tree = PrefixTree(cache)
        self.length_limit = min(context_length, cache.num_blocks * cache.block_size)

    def num_positions(self, handle: RequestHandle) -> int:
        """Most positions that a text of a request comes to hold."""
        most = handle.request.params.max_tokens
        if most is None:
            return self.length_limit
        # The last token that is chosen is never computed.
        return min(self.length_limit, handle.num_prompt_tokens + max(0, most - 1))

    def needs(self, text: RunningText, shared: SharedPrompt | None, *, is_first: bool) -> int:
        """Blocks that must be available for a text to begin.

        Args:
            text: that waits.
            shared: of its request; None if it is the only one.
            is_first: no other text of its request begins in the same step before it.
        """
        total = self.cache.num_blocks_for(self.num_positions(text.handle))
        num_prompt = text.handle.num_prompt_tokens
        if shared is None:
            return total
        if shared.holder is None and shared.spare is None:
            return total
        if shared.holder is None and is_first:
            return total - self.cache.num_blocks_for(num_prompt)
        return total - num_prompt // self.cache.block_size

    def begin(self, text: RunningText, shared: SharedPrompt | None) -> None:
        """Promise a text its blocks, and let it have what is computed of its prompt.

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
        """Undo a beginning that was interrupted or found no room."""
        self.cache.free(text.sequence.key)
        if shared is not None:
            shared.leave(text.sequence)

    def _reuse(self, text: RunningText) -> int:
        """Share what earlier texts left: how many positions of it.

        Tokens whose logits are wanted are computed in any case.
        """
        sequence, request = text.sequence, text.handle.request
        first = request.first_scored
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
        sequence.is_prompt[:num_found] = found.marks
        text.handle.num_cached_tokens = num_found
        return num_found

    def shift(self, sequence: RunningSequence, num_kept: int) -> None:
        """Make room in a full sequence; what is kept of its newer half is to be computed anew.

        Raises:
            PromptError: so much is to be kept that nothing can be dropped.
        """
        length = sequence.num_computed
        sequence.shift(num_kept)
        _log.info(
            "context full: dropped %d of %d tokens",
            length - num_kept - sequence.num_to_read,
            length,
        )
        self.cache.truncate(sequence.key, num_kept)

    def keep(self, text: RunningText) -> None:
        """Let texts to come begin with what this one has computed."""
        sequence = text.sequence
        if text.handle.request.reuses_prefix and not text.has_failed:
            length = sequence.num_computed
            self.tree.insert(sequence.key, sequence.token_ids[:length], sequence.is_prompt[:length])

    def end(self, text: RunningText, shared: SharedPrompt | None) -> None:
        """Take the blocks of a text that is over, or keep its prompt for others of the request."""
        sequence, num_prompt = text.sequence, text.handle.num_prompt_tokens
        length = sequence.num_computed
        if shared is not None:
            is_whole = not sequence.num_shifts and length >= num_prompt
            shared.leave(sequence)
            if is_whole and shared.not_begun and shared.holder is None:
                self.cache.truncate(sequence.key, num_prompt)
                self.cache.reserve(sequence.key, num_prompt)
                shared.spare = sequence
                return
        held = self.cache.blocks_of(sequence.key)  # none after an end that was interrupted
        if held and text.handle.request.reuses_prefix and not text.has_failed:
            self.tree.insert(
                sequence.key,
                sequence.token_ids[:length],
                sequence.is_prompt[:length],
                is_over=True,
            )
        self.cache.free(sequence.key)

    def release(self, sequence: RunningSequence) -> None:
        """Take the blocks of a sequence that nobody goes on with."""
        self.cache.free(sequence.key)

    def check(self, *, is_idle: bool) -> None:
        """Check that no block is lost.

        Args:
            is_idle: nobody runs, so that no block may be in use.

        Raises:
            PowerInferError: one is lost, or in use.
        """
        self.cache.check_integrity()
        used = self.cache.num_used_blocks
        if is_idle and used:
            raise PowerInferError(f"{used} blocks of keys and values are in use, but by nobody")
