"""Many texts on one model: each step computes the next token of every text that has begun.

An engine has no thread of its own and is driven in one of two ways. `Engine.step` is for a single
driver, such as the server's thread. `Engine.wait` is for readers of texts: the first waiter in line
computes a step for all of them, and leaves the line when it has its output. Nothing is computed
while nobody waits.
"""

import os
import secrets
import time
from collections.abc import Callable, Iterable

from powerinfer.engine.costs import StepCosts
from powerinfer.engine.direct import DirectSequence
from powerinfer.engine.drafts.controller import DraftController
from powerinfer.engine.policy import Begun, Limits, Policy, PolicyState, StepPlan
from powerinfer.engine.prefill import Chunk, Prefill, PrefillProgress, begin_prefill, slices_of
from powerinfer.engine.queue import Queue
from powerinfer.engine.request import Output, Request, RequestHandle
from powerinfer.engine.statistics import EngineStatistics, check_integrity, statistics_of
from powerinfer.engine.text import RunningText
from powerinfer.errors import PowerInferError, PromptError
from powerinfer.loading.loader import LoadedModel, Progress
from powerinfer.loading.turns import AsyncLeader, FairLock
from powerinfer.models.metrics import CostMeter, StepMeter, has_predictors
from powerinfer.values import FloatArray

__all__ = ["CLOSED", "MAX_UNREAD", "Engine"]

CLOSED = "the LLM was closed before this call finished"
"""Error message for texts and calls that closing cut short."""

MAX_UNREAD = 32
"""Unread outputs at which a text pauses, unless it keeps others waiting."""

_UNREAD = (
    "this text has no limit and was ended because nobody read it; read or close streams that have "
    "no max_tokens"
)


class Engine:
    """Runs requests side by side on one model, each with the bits that it has alone.

    Any thread may submit and cancel. An exception in a step (Ctrl-C) leaves every text as it was.

    Attributes:
        max_unread: unread outputs at which a request pauses, unless another one waits to be
            admitted; None: it never pauses.
        parallel: most texts that run at once.
        async_leader: computes for asyncio tasks.
        is_closed: nothing more is computed.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        progress: Progress | None = None,
        *,
        max_unread: int | None = None,
    ) -> None:
        """Allocate the KV cache; the engine belongs to this process.

        Args:
            progress: called with (tokens computed, tokens in all) while prompts are computed.
        """
        options = loaded.options
        self.max_unread = max_unread
        self.parallel = options.parallel
        self.async_leader = AsyncLeader()
        self._process_id = os.getpid()
        self.is_closed = False
        self._steps = FairLock(
            "a callback used the LLM that was calling it; callbacks must not use that LLM"
        )
        self._policy = Policy()
        self._costs = StepCosts()
        self._undelivered: dict[RequestHandle, None] = {}
        self._num_steps = 0
        self._progress = PrefillProgress(
            progress, loaded.model, watches_layers=loaded.placement is None
        )
        # `close` drops the attributes from here on.
        self._loaded = loaded
        self._queue = Queue(loaded)
        self._meter = StepMeter(loaded.model, loaded.dense_bytes, self._queue.cache)
        self._drafts = DraftController(loaded, self._queue.cache, self._queue.length_limit)
        self._begun: Prefill | None = None
        self._direct: DirectSequence | None = None
        self._limits = Limits(
            parallel=options.parallel,
            batch_size=options.batch_size,
            num_slices=slices_of(loaded.model),
        )
        self._most_tokens = self._queue.length_limit
        self._length_limit = None if options.context_shift else self._most_tokens

    @property
    def is_of_this_process(self) -> bool:
        """False in a forked child, where locks may be held by threads that it lacks."""
        return self._process_id == os.getpid()

    def check_process(self) -> None:
        """Raise PowerInferError in a forked child."""
        if not self.is_of_this_process:
            raise PowerInferError(
                "this LLM belongs to the process that loaded it; threads do not survive fork(), so "
                "load the model after it, or start processes with the method 'spawn'"
            )

    def check_outside(self) -> None:
        """Raise PowerInferError inside a step and in a forked child."""
        self.check_process()
        self._steps.check_not_held_here()

    def check_usable(self) -> None:
        """Raise PowerInferError inside a step, in a forked child and after `close`."""
        self.check_outside()
        self._check_open()

    def _check_open(self) -> None:
        if self.is_closed:
            raise PowerInferError(CLOSED)

    def close(self) -> None:
        """End all texts and calls after the current step; raise PowerInferError inside of it."""
        self._steps.check_not_held_here()
        self.is_closed = True
        self.notify()
        with self._steps.held():
            # Free weights, keys and values even if a stream keeps this engine.
            for name in ("_loaded", "_queue", "_meter", "_drafts", "_begun", "_direct"):
                self.__dict__.pop(name, None)
        self.notify()
        self.async_leader.stop()

    def submit(self, request: Request) -> RequestHandle:
        """Queue a request; nothing is computed before the next step.

        Raises:
            PromptError: it can never run: it is longer than the context or all of the blocks.
            PowerInferError: the model was closed, or belongs to another process.
        """
        handle = self.prepare(request)
        self.enter(handle)
        return handle

    def prepare(self, request: Request) -> RequestHandle:
        """Check a request, with the errors of `submit`, and make its handle, for `enter`."""
        self.check_process()
        self._check_open()
        # Read once: another thread may close it.
        loaded: LoadedModel | None = getattr(self, "_loaded", None)
        if loaded is None:
            raise PowerInferError(CLOSED)
        request.check(self._most_tokens, loaded.model.config.vocab_size)
        seed = request.params.seed
        costs = (
            CostMeter(
                loaded.load_s,
                loaded.predicted_tokens_per_s,
                has_predictors=has_predictors(loaded.model),
                has_experts=loaded.model.config.experts is not None,
            )
            for _ in range(request.params.n)
        )
        return RequestHandle(request, secrets.randbits(32) if seed is None else seed, tuple(costs))

    def enter(self, handle: RequestHandle) -> None:
        """Queue a prepared request, if `check_usable`; `RequestHandle.times` count from here."""
        self.check_usable()
        queue: Queue | None = getattr(self, "_queue", None)
        if queue is None:
            raise PowerInferError(CLOSED)
        handle.times.submitted = time.monotonic()
        queue.enter(handle)

    def cancel(self, handle: RequestHandle) -> None:
        """Cancel a request; the next step frees its blocks."""
        handle.is_cancelled = True

    @property
    def has_work(self) -> bool:
        """True if a step would do something."""
        return not self._queue.is_empty

    def statistics(self) -> EngineStatistics:
        """Return its state and totals; any thread may call this."""
        return statistics_of(self._queue, self._loaded.model, self._num_steps)

    def check_integrity(self) -> None:
        """Raise PowerInferError if a block is lost, or if an idle engine uses one, or a state."""
        check_integrity(self._queue)

    def step(self) -> list[tuple[RequestHandle, Output]]:
        """Compute one step of all texts and return its outputs; [] if there is nothing to do.

        Raises:
            PowerInferError: the backend failed.
        """
        self._undelivered |= dict.fromkeys(self._queue.handles)
        with self._steps.held():
            self._advance()
        outputs = [
            (handle, handle.unread.popleft())
            for handle in self._undelivered
            for _ in range(len(handle.unread))
        ]
        self._undelivered = {}
        return outputs

    def wait(self, is_done: Callable[[], bool]) -> None:
        """Compute steps, or let others compute them, until `is_done`.

        Outputs are added to `RequestHandle.unread`; Ctrl-C loses none.

        Raises:
            PowerInferError: the model was closed, a step failed, or the call comes from inside one.
        """
        self.check_process()
        while not is_done():
            self._check_open()
            with self._steps.held_until(lambda: self.is_closed or is_done()) as is_leading:
                if is_leading and not is_done():
                    self._advance()

    def notify(self) -> None:
        """Wake all waiters, so that they check their conditions."""
        self._steps.notify()
        self.async_leader.notify()

    def _advance(self) -> None:
        """Compute one step under the lock."""
        self._check_open()
        try:
            self.run_step()
            self._end_endless()
        finally:
            self.notify()

    def _end_endless(self) -> None:
        """End unlimited texts that nobody reads before their outputs fill the memory."""
        if self._length_limit is not None:
            return
        most = 2 * self._loaded.model.context_length
        for text in self._queue.running:
            if len(text.handle.unread) > most and not text.is_over:
                text.fail(PowerInferError(_UNREAD))

    def run_step(self) -> None:
        """Compute one step of all texts; outputs are added to `RequestHandle.unread`."""
        queue = self._queue
        queue.collect()
        if queue.waiting and self._direct is not None:
            self._direct.abandon()  # waiting texts take its room
        self._end_cancelled()
        plan = self._plan()
        queue.admit(plan.admit)
        self._begin_others()
        self._decode()
        self._prefill(plan)
        queue.sweep()

    def abandon(self, handles: Iterable[RequestHandle]) -> None:
        """Cancel requests, and free what they hold; a step of another thread does that itself."""
        for handle in handles:
            handle.is_cancelled = True
        if self.is_closed or not self.is_of_this_process:
            return
        with self._steps.held_until(lambda: True) as is_held:
            if is_held:
                self._queue.collect()
                self._end_cancelled()

    def _end_cancelled(self) -> None:
        queue = self._queue
        queue.end_cancelled()
        if self._begun is not None and not self._begun.is_wanted:
            self._begun = None
        queue.sweep()

    def _plan(self) -> StepPlan:
        """Decide which texts to admit and which parts of prompts to compute."""
        queue, begun = self._queue, self._begun
        is_reading = any(text.sequence.num_pending for text in queue.running)
        if not queue.waiting and not is_reading:
            return StepPlan()
        state = PolicyState(
            waiting=queue.policy_waiting(
                self.parallel - sum(text.takes_place for text in queue.running)
            ),
            running=queue.policy_running(),
            free_blocks=self._queue.cache.num_available_blocks,
            costs=self._costs,
            limits=self._limits,
            begun=None if begun is None else Begun(tuple(begun.sizes), begun.num_left),
        )
        return self._policy.plan(state)

    def _begin_others(self) -> None:
        """Choose first tokens of texts whose prompt another text of the request computed."""
        for text in self._queue.running:
            sequence = text.sequence
            if not text.is_over and not sequence.is_decoding and not sequence.num_pending:
                logits = self._queue.logits_of(text)
                if logits is not None:
                    text.advance(logits, self._length_limit)

    def _decode(self) -> None:
        """Compute the next token of every decoding text."""
        started = time.perf_counter()
        cache, loaded = self._queue.cache, self._loaded
        planned = self._drafts.plan(list(filter(self._may_decode, self._queue.running)))
        if not planned:
            return
        batch = cache.batch([rows.part for rows in planned], [False] * len(planned))
        with loaded.steps.held(), self._meter.counting():
            wanted = [rows.text.wanted for rows in planned for _ in rows.token_ids]
            logits = loaded.model.forward(batch, cache, wanted=wanted)
        shares = self._meter.shares([rows.start for rows in planned])
        for rows, cost in zip(planned, shares, strict=True):
            rows.text.cost.add_decode_step(cost)
        end = 0
        for rows in planned:
            start, end = end + rows.num_again, end + len(rows.token_ids)
            rows.text.advance_drafted(logits[start:end], rows.draft, self._length_limit, started)
        self._num_steps += 1
        self._costs.record_decode(batch.positions.tolist(), time.perf_counter() - started)
        self._drafts.record(planned)

    def _may_decode(self, text: RunningText) -> bool:
        """Tell whether to compute its last token now; shift a full sequence if that is wanted."""
        sequence = text.sequence
        if text.is_over or not sequence.is_decoding or self._is_paused(text.handle):
            return False
        if sequence.num_computed == self._most_tokens:
            try:
                self._queue.shift(sequence, text.num_kept)
            except PromptError as error:
                text.fail(error)
        return not sequence.num_pending

    def _is_paused(self, handle: RequestHandle) -> bool:
        most = self.max_unread
        return most is not None and len(handle.unread) >= most and not self._queue.waiting

    def _prefill(self, plan: StepPlan) -> None:
        """Compute chunks of prompts, or a slice of chunks that an earlier step began."""
        # After an exception the residual stream is damaged, so the chunks begin again.
        begun, self._begun = self._begun, None
        queue = self._queue
        if begun is None and plan.chunks:
            counts = dict(plan.chunks)
            begun = begin_prefill(self._loaded, queue.cache, self._progress, queue.running, counts)
        if begun is None:
            return
        rows = begun.run(plan.num_slices or begun.num_left)
        if rows is None:
            self._begun = begun
            return
        end = 0
        started = time.perf_counter()
        for chunk in begun.chunks:
            start, end = end, end + chunk.num_wanted
            self._has_computed(chunk, rows[start:end])
        self._costs.record_prompt(begun.sizes, begun.seconds + time.perf_counter() - started)

    def _has_computed(self, chunk: Chunk, rows: FloatArray) -> None:
        """Take the f32[num_wanted, columns] rows of a computed chunk."""
        text = chunk.text
        sequence = text.sequence
        text.note_prompt(sequence.num_computed + len(chunk.token_ids), rows)
        if sequence.is_decoding or sequence.num_pending > len(chunk.token_ids):
            sequence.num_computed += len(chunk.token_ids)
            self._queue.keep_state(text)
            return
        self._queue.prompt_is_computed(text, rows[-1])
        if not text.is_over:
            text.advance(rows[-1], self._length_limit)
        self._queue.keep_state(text)
        self._queue.keep(text)

    def direct_sequence(self) -> DirectSequence:
        """Return an empty sequence, always the same; generating texts takes its tokens away."""
        self.check_usable()
        with self._steps.held_until(lambda: self.is_closed):
            self._check_open()
            if self._direct is None:
                loaded = self._loaded
                self._direct = DirectSequence(
                    loaded.model,
                    self._queue.cache,
                    loaded.options.batch_size,
                    steps=loaded.steps,
                    progress=self._progress,
                    exclusive=self._steps.held,
                )
            self._direct.abandon()
            return self._direct
