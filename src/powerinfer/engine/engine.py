"""Many texts on one model: each step computes the next token of every text that has begun."""

import time

from powerinfer.engine.costs import StepCosts
from powerinfer.engine.forward import Chunk, Forward, Prefill
from powerinfer.engine.policy import Begun, Limits, Policy, PolicyState, StepPlan
from powerinfer.engine.pool import Pool
from powerinfer.engine.queue import Queue
from powerinfer.engine.request import EngineStatistics, Output, Request, Ticket
from powerinfer.engine.text import PROMPT_LOGPROB_ROWS, Text
from powerinfer.errors import PowerInferError, PromptError
from powerinfer.kvcache import KVCache
from powerinfer.loading.loader import LoadedModel, Progress
from powerinfer.values import FloatArray

__all__ = ["Engine"]


class Engine:
    """Runs requests side by side on one model, each with the bits that it has alone.

    It has no thread: whoever calls `step` computes. Any thread may submit and cancel; steps are for
    one thread at a time. An exception in a step (Ctrl-C) leaves every text as it was before.

    Attributes:
        max_unread: see `__init__`.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        reading: Progress | None = None,
        *,
        max_unread: int | None = None,
    ) -> None:
        """Make room for keys and values.

        Args:
            loaded: model, tokenizer and options.
            reading: called with (tokens computed, tokens in all) while prompts are computed.
            max_unread: a request pauses while so many of its outputs are unread, unless another
                one waits to be admitted; None: never. For those who read `Ticket.unread`.
        """
        options = loaded.options
        self._loaded = loaded
        self.max_unread = max_unread
        self._pool = Pool(loaded.new_pool(), loaded.model.context_length)
        self._queue = Queue(loaded, self._pool)
        self._forward = Forward(loaded, self._pool.cache, reading)
        self._policy = Policy()
        self._costs = StepCosts()
        self._limits = Limits(
            parallel=options.parallel,
            batch_size=options.batch_size,
            num_slices=self._forward.num_slices,
        )
        self._begun: Prefill | None = None
        self._length_limit = None if options.context_shift else self._pool.length_limit
        self._undelivered: dict[Ticket, None] = {}
        self._num_steps = 0

    def submit(self, request: Request) -> Ticket:
        """Line up a request; nothing is computed before the next step.

        Raises:
            PromptError: it can never run: it is longer than the context or all of the blocks.
        """
        ticket = self.ticket(request)
        self.enter(ticket)
        return ticket

    def ticket(self, request: Request) -> Ticket:
        """The ticket of a request, for `enter`.

        Raises:
            PromptError: as for `submit`.
        """
        return self._queue.ticket(request)

    def enter(self, ticket: Ticket) -> None:
        """Line up a request that has its ticket; `Ticket.times` count from there."""
        ticket.times.submitted = time.monotonic()
        self._queue.enter(ticket)

    def cancel(self, ticket: Ticket) -> None:
        """End a request; its blocks are free after the next step."""
        ticket.is_cancelled = True

    @property
    def cache(self) -> KVCache:
        """Keys and values; for who computes no step meanwhile."""
        return self._pool.cache

    @property
    def num_running(self) -> int:
        """Texts that run."""
        return len(self._queue.running)

    @property
    def num_waiting(self) -> int:
        """Texts that wait to be admitted."""
        return self._queue.num_waiting

    def end_unread(self, most: int, error: PowerInferError) -> None:
        """End the texts of requests that have more outputs which nobody has read."""
        for text in self._queue.running:
            if len(text.ticket.unread) > most and not text.is_over:
                text.fail(error)

    @property
    def has_work(self) -> bool:
        """A step would do something."""
        return not self._queue.is_empty

    def step(self) -> list[tuple[Ticket, Output]]:
        """Compute one step of all texts; [] if there is nothing to do.

        Raises:
            PowerInferError: of the backend.
        """
        self._undelivered |= dict.fromkeys(self._queue.tickets)
        self.run_step()
        outputs = [
            (ticket, ticket.unread.popleft())
            for ticket in self._undelivered
            for _ in range(len(ticket.unread))
        ]
        self._undelivered = {}
        return outputs

    def run_step(self) -> None:
        """The same for those who read `Ticket.unread`: a Ctrl-C loses no output then.

        Raises:
            PowerInferError: of the backend.
        """
        queue = self._queue
        queue.collect()
        queue.end_cancelled()
        if self._begun is not None and not self._begun.is_wanted:
            self._begun = None
        queue.sweep()
        plan = self._plan()
        queue.admit(plan.admit)
        self._begin_others()
        self._decode()
        self._prefill(plan)
        queue.sweep()

    def statistics(self) -> EngineStatistics:
        """What it is doing; any thread may ask."""
        cache, queue = self._pool.cache, self._queue
        return EngineStatistics(
            running=len(queue.running),
            waiting=queue.num_waiting,
            blocks=cache.num_blocks,
            blocks_used=cache.num_used_blocks,
            blocks_cached=cache.num_unused_blocks,
            steps=self._num_steps,
            generated_tokens=queue.num_generated,
            prompt_tokens=queue.num_prompt_tokens,
            cached_tokens=queue.num_cached_tokens,
            layers=self._loaded.model.layer_shares(),
        )

    def check_integrity(self) -> None:
        """Check that no block is lost; of an engine that has nothing to do, that none is used.

        Raises:
            PowerInferError: one is.
        """
        self._pool.check(is_idle=not self.has_work)

    def _plan(self) -> StepPlan:
        """Whom to admit, and how much of which prompt to compute."""
        queue, begun = self._queue, self._begun
        is_reading = any(text.sequence.num_pending for text in queue.running)
        if not queue.waiting and not is_reading:
            return StepPlan()
        state = PolicyState(
            waiting=queue.policy_waiting(self._limits.parallel - len(queue.running)),
            running=queue.policy_running(),
            free_blocks=self._pool.cache.num_available_blocks,
            costs=self._costs,
            limits=self._limits,
            begun=None if begun is None else Begun(tuple(begun.sizes), begun.num_left),
        )
        return self._policy.plan(state)

    def _begin_others(self) -> None:
        """First tokens of texts whose prompt another text of their request has computed."""
        for text in self._queue.running:
            sequence = text.sequence
            if not text.is_over and not sequence.is_decoding and not sequence.num_pending:
                logits = self._queue.logits_of(text)
                if logits is not None:
                    text.advance(logits, self._length_limit)

    def _decode(self) -> None:
        texts = [text for text in self._queue.running if self._may_decode(text)]
        if not texts:
            return
        started = time.perf_counter()
        positions = [text.sequence.num_computed for text in texts]
        logits = self._forward.decode(texts)
        for text, row in zip(texts, logits, strict=True):
            text.advance(row, self._length_limit, started)
        self._num_steps += 1
        self._costs.record_decode(positions, time.perf_counter() - started)

    def _may_decode(self, text: Text) -> bool:
        """Whether its last token is to be computed now; makes room for it where that was asked."""
        sequence = text.sequence
        if text.is_over or not sequence.is_decoding or self._is_paused(text.ticket):
            return False
        if sequence.num_computed == self._pool.length_limit:
            try:
                self._pool.shift(sequence, self._num_kept(text))
            except PromptError as error:
                text.fail(error)
        return not sequence.num_pending

    def _is_paused(self, ticket: Ticket) -> bool:
        most = self.max_unread
        return most is not None and len(ticket.unread) >= most and not self._queue.waiting

    def _num_kept(self, text: Text) -> int:
        options, bos_id = self._loaded.options, self._loaded.tokenizer.bos_id
        begins_with_bos = text.sequence.token_ids[0] == bos_id
        return max(options.keep_tokens, int(begins_with_bos))

    def _prefill(self, plan: StepPlan) -> None:
        # What raises has changed the residual stream and begins anew.
        begun, self._begun = self._begun, None
        if begun is None:
            begun = self._begin_prefill(plan)
        if begun is None:
            return
        logits = begun.run(plan.num_slices or begun.num_left)
        if logits is None:
            self._begun = begun
            return
        end = 0
        started = time.perf_counter()
        for chunk in begun.chunks:
            start, end = end, end + chunk.num_wanted
            self._has_computed(chunk, logits[start:end])
        self._costs.record_prompt(begun.sizes, begun.seconds + time.perf_counter() - started)

    def _begin_prefill(self, plan: StepPlan) -> Prefill | None:
        counts = dict(plan.chunks)
        texts = [text for text in self._queue.running if text.id in counts and not text.is_over]
        chunks = [chunk for text in texts if (chunk := _chunk(text, counts[text.id]))]
        chunks.sort(key=lambda chunk: not chunk.is_prompt)
        return self._forward.prefill(chunks) if chunks else None

    def _has_computed(self, chunk: Chunk, logits: FloatArray) -> None:
        """Go on behind a chunk.

        Args:
            chunk: that was computed.
            logits: f32[num_wanted, vocab_size] of it.
        """
        text = chunk.text
        sequence = text.sequence
        text.note_prompt(logits)
        if sequence.is_decoding or sequence.num_pending > len(chunk.token_ids):
            sequence.num_computed += len(chunk.token_ids)
            return
        self._queue.prompt_is_computed(text, logits[-1])
        if not text.is_over:
            text.advance(logits[-1], self._length_limit)
        self._pool.keep(text)


def _chunk(text: Text, count: int) -> Chunk | None:
    """The next tokens of its prompt."""
    sequence = text.sequence
    if not sequence.num_pending:
        return None
    wants_all = text.wants_prompt_logprobs
    most = min(count, PROMPT_LOGPROB_ROWS) if wants_all else count
    token_ids, is_prompt = sequence.pending_run(most)
    is_last = not sequence.is_decoding and len(token_ids) == sequence.num_pending
    return Chunk(text, token_ids, is_prompt, len(token_ids) if wants_all else int(is_last))
