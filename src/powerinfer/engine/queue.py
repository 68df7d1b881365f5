"""Waiting and running texts, and their room in the KV cache: promised, shared, kept and freed."""

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from powerinfer.engine.policy import Running, Waiting
from powerinfer.engine.request import RequestHandle
from powerinfer.engine.snapshots import snapshot_positions
from powerinfer.engine.text import RunningText, TokenSequence
from powerinfer.errors import PromptError
from powerinfer.kvcache import KVCache
from powerinfer.kvcache.prefix_tree import PrefixTree
from powerinfer.loading.loader import LoadedModel
from powerinfer.models.metrics import TokenCounts
from powerinfer.prompts.messages import message_ends
from powerinfer.sampling.finish_reason import FinishReason
from powerinfer.values import FloatArray

__all__ = ["Queue"]

_log = logging.getLogger(__name__)
# What gives logits or hidden states takes no place of a text, so it need not wait for one.
_in_order = attrgetter("takes_place", "id")


def _without(left: RunningText, texts: Sequence[RunningText]) -> list[RunningText]:
    # A function of its own: in Python 3.12 and 3.13 no `try` covers the jump back from an element
    # that a comprehension in it filters out (CPython's issue 108214), and Ctrl-C comes at jumps.
    return [text for text in texts if text is not left]


@dataclass(slots=True, eq=False)
class _SharedPrompt:
    """A prompt shared by the texts of a request, until the last of them has begun.

    In the KV cache it is a holder of the state after the prompt, as each text soon leaves that.

    Attributes:
        not_begun: texts that have not been admitted, in order; at first all but the one that
            computes the prompt.
        holders: running sequences that begin with the prompt.
        logits: f32[vocab_size] after the prompt; None until it is computed.
        spare: sequence of an ended text, kept because no running text holds the prompt.
    """

    not_begun: list[RunningText]
    holders: list[TokenSequence] = field(default_factory=list)
    logits: FloatArray | None = None
    spare: TokenSequence | None = None

    @property
    def holder(self) -> TokenSequence | None:
        """A running sequence whose blocks still begin with the prompt; None if there is none."""
        return next((each for each in self.holders if not each.num_shifts), None)

    def leave(self, sequence: TokenSequence) -> None:
        """Remove a sequence that is over."""
        if sequence in self.holders:
            self.holders.remove(sequence)


class Queue:
    """Turns requests into waiting texts, and waiting texts into running ones, which have blocks.

    Lists are replaced and never changed, so that other threads may read them.

    Attributes:
        cache: cache that the blocks belong to.
        length_limit: most tokens that a sequence may hold.
        waiting: waiting texts in order of arrival, those that take no place first; of each request
            only the first text until the prompt is computed.
        running: admitted texts.
        num_prompt_tokens: prompt tokens of all admitted requests.
        num_cached_tokens: number of these that were found in the cache.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        """Allocate the KV cache, and start without texts."""
        self._loaded = loaded
        self.cache: KVCache = loaded.new_cache()
        # Blocks of earlier texts, for texts with the same beginning.
        self._tree = PrefixTree(self.cache)
        num_positions = self.cache.num_blocks * self.cache.block_size
        self.length_limit = min(loaded.model.context_length, num_positions)
        self._arrivals: deque[list[RunningText]] = deque()
        self._shared_prompts: dict[RequestHandle, _SharedPrompt] = {}
        self._last_id = 0
        self.waiting: list[RunningText] = []
        self.running: list[RunningText] = []
        self.num_prompt_tokens = self.num_cached_tokens = 0
        self._ended_counts = TokenCounts()  # of texts that are over

    @property
    def is_empty(self) -> bool:
        """True if no text waits or runs."""
        return not (self._arrivals or self.waiting or self.running)

    @property
    def num_waiting(self) -> int:
        """Number of new requests and waiting texts."""
        return len(self._arrivals) + len(self.waiting)

    @property
    def token_counts(self) -> TokenCounts:
        """Counts of all texts, past and present."""
        running = (text.token_counts for text in self.running)
        return TokenCounts.total([self._ended_counts, *running])

    @property
    def handles(self) -> list[RequestHandle]:
        """Handles of all requests that are not over."""
        texts = [*self.running, *self.waiting, *(texts[0] for texts in self._arrivals)]
        return list(dict.fromkeys(text.handle for text in texts))

    def enter(self, handle: RequestHandle) -> None:
        """Queue a request; any thread may call this."""
        indexes = range(handle.request.params.n)
        self._arrivals.append([RunningText(self._loaded, handle, index) for index in indexes])

    def collect(self) -> None:
        """Move the texts of new requests to the waiting ones."""
        while self._arrivals:
            texts = self._arrivals[0]
            for number, text in enumerate(texts, self._last_id + 1):
                text.id = number
            if len(texts) > 1:
                self._shared_prompts[texts[0].handle] = _SharedPrompt(texts[1:])
            self.waiting = sorted([*_without(texts[0], self.waiting), texts[0]], key=_in_order)
            self._last_id = texts[-1].id
            self._arrivals.popleft()
        for shared in self._shared_prompts.values():
            if shared.logits is not None:
                self._line_up(shared)

    def end_cancelled(self) -> None:
        """End the texts of cancelled requests."""
        for text in (*self.running, *self.waiting):
            if text.handle.is_cancelled and not text.is_over:
                text.end(FinishReason.CANCELLED)
                shared = self._shared_prompts.get(text.handle)
                for other in () if shared is None else shared.not_begun:
                    if not other.is_over:
                        other.end(FinishReason.CANCELLED)

    def admit(self, ids: Sequence[int]) -> None:
        """Run the waiting texts with these ids, which are the first in line."""
        for text in self.waiting[: len(ids)]:
            try:
                self._admit(text)
            except PromptError as error:
                # Less is free than expected; there will be more once a running text has left.
                if not self.running:
                    text.fail(error)
                return

    def _admit(self, text: RunningText) -> None:
        shared = self._shared_prompts.get(text.handle)
        waiting, running = self.waiting, self.running
        kept = None if shared is None else (shared.not_begun, shared.spare)
        key = text.sequence.key
        try:
            self._begin(text, shared)
            if shared is not None:
                shared.not_begun = _without(text, shared.not_begun)
            self.running = [*running, text]
            self.waiting = _without(text, waiting)
        except BaseException:
            # A waiting text that keeps its reservation would keep all others from beginning.
            self.waiting, self.running = waiting, running
            text.sequence.key = key
            self.cache.free(key)
            if shared is not None and kept is not None:
                shared.leave(text.sequence)
                shared.not_begun, shared.spare = kept
                if shared.logits is None:
                    self.cache.free(shared)
                if shared.spare is not None:
                    self.cache.shrink(shared.spare.key, text.handle.num_prompt_tokens)
            raise
        handle = text.handle
        if handle.times.admitted is None:
            handle.times.admitted = time.monotonic()
            self.num_prompt_tokens += handle.num_prompt_tokens
            self.num_cached_tokens += handle.num_cached_tokens

    def prompt_is_computed(self, text: RunningText, logits: FloatArray) -> None:
        """Line up the other texts of a request, one of which has computed their prompt.

        Args:
            text: the one that has.
            logits: f32[vocab_size], after the prompt's last token.
        """
        shared = self._shared_prompts.get(text.handle)
        if shared is None:
            return
        self.cache.hold_state(shared, text.sequence.key, len(text.sequence.token_ids))
        # A copy, as a backend may reuse its array. After an interrupt `logits_of` begins the text.
        shared.logits = logits.copy()
        text.sequence.num_computed = len(text.sequence.token_ids)
        self._line_up(shared)

    def logits_of(self, text: RunningText) -> FloatArray | None:
        """Return the f32[vocab_size] logits that another text of its request computed, if any."""
        shared = self._shared_prompts.get(text.handle)
        return None if shared is None else shared.logits

    def sweep(self) -> None:
        """Remove texts that are over and free their blocks."""
        for text in self.running:
            if text.is_over:
                self._leave(text)
        if any(text.is_over for text in self.waiting):
            for text in self.waiting:
                if text.is_over:
                    self._forget(text.handle)
            self.waiting = [text for text in self.waiting if not text.is_over]

    def policy_waiting(self, num_places: int) -> list[Waiting]:
        """Return the first waiting texts as the policy sees them.

        Args:
            num_places: number of texts that may begin; those without a place are always listed.
        """
        num_listed = max(num_places, 0) + sum(not text.takes_place for text in self.waiting)
        seen: set[RequestHandle] = set()
        listed = []
        for text in self.waiting[:num_listed]:
            shared = self._shared_prompts.get(text.handle)
            needs = self._num_needed(text, shared, is_first=text.handle not in seen)
            has_logits = shared is not None and shared.logits is not None
            num_pending = 0 if has_logits else text.sequence.num_pending
            listed.append(
                Waiting(
                    id=text.id,
                    needs_blocks=needs,
                    num_pending=num_pending,
                    takes_place=text.takes_place,
                )
            )
            seen.add(text.handle)
        return listed

    def policy_running(self) -> list[Running]:
        """Return the running texts as the policy sees them."""
        return [
            Running(
                id=text.id,
                is_decoding=not text.sequence.num_pending,
                num_pending=text.sequence.num_pending,
                position=text.sequence.num_computed,
                takes_place=text.takes_place,
            )
            for text in self.running
        ]

    def _line_up(self, shared: _SharedPrompt) -> None:
        """Add the remaining texts of a computed prompt to the waiting ones."""
        if not all(text in self.waiting for text in shared.not_begun):
            self.waiting = sorted({*self.waiting, *shared.not_begun}, key=_in_order)

    def _leave(self, text: RunningText) -> None:
        self._free(text, self._shared_prompts.get(text.handle))
        self._forget(text.handle)  # first: nobody comes back to a text that does not run
        self.running = _without(text, self.running)
        self._ended_counts = TokenCounts.total([self._ended_counts, text.token_counts])

    def _forget(self, handle: RequestHandle) -> None:
        """Drop the shared prompt of a request once no text needs it."""
        shared = self._shared_prompts.get(handle)
        if shared is None or not (handle.is_over or not shared.not_begun):
            return
        if shared.spare is not None:
            self.cache.free(shared.spare.key)
        self.cache.free(shared)
        del self._shared_prompts[handle]

    # Blocks.

    def _num_positions(self, handle: RequestHandle) -> int:
        """Return the most positions that a text of a request can hold."""
        most = handle.request.params.max_tokens
        if most is None:
            return self.length_limit
        # The last chosen token is never computed.
        return min(self.length_limit, handle.num_prompt_tokens + max(0, most - 1))

    def _num_needed(
        self, text: RunningText, shared: _SharedPrompt | None, *, is_first: bool
    ) -> int:
        """Return the number of available blocks that a waiting text needs to begin.

        Args:
            shared: prompt of its request; None if it is the only text.
            is_first: it is the first text of its request to begin in this step.
        """
        total = self.cache.num_blocks_for(self._num_positions(text.handle))
        num_prompt = text.handle.num_prompt_tokens
        if shared is None or (shared.holder is None and shared.spare is None):
            return total
        if shared.holder is None and is_first:
            return total - self.cache.num_blocks_for(num_prompt)
        return total - num_prompt // self.cache.block_size

    def _begin(self, text: RunningText, shared: _SharedPrompt | None) -> None:
        """Reserve the blocks of a text, reusing what is computed of its prompt.

        Raises:
            PromptError: there is no room for it.
        """
        sequence, num_prompt = text.sequence, text.handle.num_prompt_tokens
        holder = None if shared is None else shared.holder
        if holder is not None:
            self.cache.fork(holder.key, sequence.key, num_prompt, state_of=shared)
        elif shared is not None and shared.spare is not None:
            sequence.key, shared.spare = shared.spare.key, None
            self.cache.hold_state(sequence.key, shared, num_prompt)
        else:
            num_prompt = self._reuse(text)
            if shared is not None:
                self.cache.hold_state(shared, sequence.key, 0)  # promises it a place
        self.cache.reserve(sequence.key, self._num_positions(text.handle))
        sequence.num_computed = sequence.num_reused = num_prompt
        if shared is not None:
            shared.holders.append(sequence)

    def _reuse(self, text: RunningText) -> int:
        """Share blocks of earlier texts; return the number of positions.

        Tokens whose logits are wanted are always computed.
        """
        sequence, request = text.sequence, text.handle.request
        first = request.first_wanted
        limit = len(sequence.token_ids) - 1 if first is None else first
        if not request.reuses_prefix or not limit:
            return 0
        found = self._tree.match(
            sequence.token_ids,
            sequence.is_prompt,
            shares_answers=request.shares_answers,
            limit=limit,
        )
        num_found = found.num_positions
        self._tree.share(sequence.key, found)
        sequence.is_prompt[:num_found] = found.is_prompt
        if self.cache.states is not None:
            tokenizer, interval = self._loaded.tokenizer, self._loaded.options.state_interval
            ends = request.snapshot_positions or message_ends(tokenizer, request.prompt_ids)
            text.snapshot_positions = snapshot_positions(
                sequence.is_prompt, num_found, found.num_known, ends, interval
            )
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

    def keep_state(self, text: RunningText) -> None:
        """Let later texts go on here, if that is wanted."""
        num_computed = text.sequence.num_computed
        if num_computed in text.snapshot_positions and not text.has_failed:
            self._tree.keep_state(text.sequence.key, num_computed)

    def keep(self, text: RunningText, *, is_over: bool = False) -> None:
        """Let later texts reuse what this one has computed."""
        sequence = text.sequence
        if text.handle.request.reuses_prefix and not text.has_failed:
            length = sequence.num_computed
            token_ids, is_prompt = sequence.token_ids[:length], sequence.is_prompt[:length]
            self._tree.insert(sequence.key, token_ids, is_prompt, is_over=is_over)

    def _free(self, text: RunningText, shared: _SharedPrompt | None) -> None:
        """Free the blocks of an ended text, or keep its prompt for other texts of the request."""
        sequence, num_prompt = text.sequence, text.handle.num_prompt_tokens
        if shared is not None:
            is_whole = not sequence.num_shifts and sequence.num_computed >= num_prompt
            shared.leave(sequence)
            if is_whole and shared.not_begun and shared.holder is None:
                self.cache.shrink(sequence.key, num_prompt)
                shared.spare = sequence
                return
        if self.cache.blocks_of(sequence.key):  # none after an interrupted end
            self.keep(text, is_over=True)
        self.cache.free(sequence.key)
