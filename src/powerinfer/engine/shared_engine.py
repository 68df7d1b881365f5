"""An engine without a thread of its own: whoever waits for a piece of text computes, for all.

A step computes the next token of every text that runs, so whoever leads one serves all who wait.
Who leads is the first in the line of those who wait; who finds that something came meanwhile leaves
it. Nothing is computed while nobody waits.
"""

import os
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from powerinfer.engine.engine import Engine
from powerinfer.engine.request import Request, Ticket
from powerinfer.errors import PowerInferError
from powerinfer.loading.async_leader import AsyncLeader
from powerinfer.loading.loader import LoadedModel, Progress
from powerinfer.loading.step import TokenSequence
from powerinfer.loading.turns import FairLock

__all__ = ["CLOSED", "SharedEngine"]

# What those are told whose text or call did not come to its end.
CLOSED = "the LLM was closed before this call finished"
_UNREAD = (
    "this text was ended because nobody read it while it went on without an end; read or close "
    "streams that have no max_tokens"
)

# Outputs after which a text waits for its reader, as long as it keeps nobody else waiting.
_MAX_UNREAD = 32

# Where no text can run, as others use the room for keys and values directly.
_LOOK_AGAIN_S = 0.002


class SharedEngine:
    """Lets threads and asyncio tasks use one engine side by side.

    Attributes:
        async_leader: computes for asyncio tasks.
    """

    def __init__(self, loaded: LoadedModel, reading: Progress | None = None) -> None:
        """Make room for keys and values, in this process.

        Args:
            loaded: model, tokenizer and options.
            reading: called with (tokens computed, tokens in all) while prompts are computed.
        """
        self._process_id = os.getpid()
        self._loaded: LoadedModel | None = loaded
        self._engine: Engine | None = Engine(loaded, reading, max_unread=_MAX_UNREAD)
        self._reading = reading
        self._is_closed = False
        self._steps = FairLock(
            "a callback used the LLM that was calling it; callbacks must not use that LLM"
        )
        # Of calls that compute on a sequence of their own: one at a time, so that each gets all of
        # the room that it needs.
        self._direct_calls = FairLock()
        self._direct: TokenSequence | None = None
        # What `own_sequence` lent: Ctrl-C may keep it from being given back.
        self._lent: list[tuple[weakref.ref[TokenSequence], Callable[[], None]]] = []
        self.async_leader = AsyncLeader()

    # Who may use it.

    @property
    def is_of_this_process(self) -> bool:
        """False in a child that fork() made: locks may be held there by threads it lacks."""
        return self._process_id == os.getpid()

    @property
    def is_closed(self) -> bool:
        """Nothing will be computed any more."""
        return self._is_closed

    def check_usable(self) -> None:
        """Refuse to wait for what will never come.

        Raises:
            PowerInferError: this is a forked child, the model was closed, or the call comes from
                inside a step.
        """
        self.check_outside()
        self._opened()

    def check_outside(self) -> None:
        """Refuse calls from inside a step, and from a forked child.

        Raises:
            PowerInferError: this is one.
        """
        self.check_process()
        self._steps.check_not_held_here()

    def check_process(self) -> None:
        """Refuse to work in a forked child.

        Raises:
            PowerInferError: this is one.
        """
        if not self.is_of_this_process:
            raise PowerInferError(
                "this LLM belongs to the process that loaded it; threads do not survive fork(), so "
                "load the model after it, or start processes with the method 'spawn'"
            )

    @property
    def num_waiting(self) -> int:
        """Threads that wait while another one computes."""
        return self._steps.num_waiting

    # Requests.

    def ticket(self, request: Request) -> Ticket:
        """The ticket of a request that `enter` lines up.

        Raises:
            PromptError: it can never run.
            PowerInferError: the model was closed, or belongs to another process.
        """
        self.check_process()
        return self._opened().ticket(request)

    def enter(self, ticket: Ticket) -> None:
        """Line a request up; nothing is computed before somebody waits.

        Raises:
            PowerInferError: see `check_usable`.
        """
        self.check_usable()
        self._opened().enter(ticket)

    def wait(self, is_done: Callable[[], bool]) -> None:
        """Compute steps, or let others compute them, until something is done.

        Raises:
            PowerInferError: the model was closed, a step failed, or the call comes from inside one.
        """
        self.check_process()
        while not is_done():
            self._opened()
            with self._steps.held_unless(lambda: self._is_closed or is_done()) as is_leading:
                is_idle = is_leading and not self._step()
            if is_idle:
                time.sleep(_LOOK_AGAIN_S)

    def tell(self) -> None:
        """Have all who wait look again."""
        self._steps.tell()
        self.async_leader.tell()

    def close(self) -> None:
        """End all texts and calls; waits for the step that is being computed.

        Raises:
            PowerInferError: the call comes from inside that step.
        """
        self._steps.check_not_held_here()
        self._is_closed = True
        self.tell()
        with self._steps.held():
            self._engine = self._loaded = self._direct = None
        self.tell()
        self.async_leader.stop()

    # Sequences beside the texts.

    def direct_sequence(self) -> TokenSequence:
        """An empty sequence, always the same; it loses its tokens when texts are generated.

        Raises:
            PowerInferError: see `check_usable`.
        """
        self.check_usable()
        with self._steps.held_unless(lambda: self._is_closed):
            self._opened()
            if self._direct is None:
                self._direct = self._new_sequence(self._steps.held)
            self._direct.give_up()
            return self._direct

    @contextmanager
    def own_sequence(self, num_tokens: int) -> Iterator[TokenSequence]:
        """An empty sequence with room for so many tokens, until the block ends.

        Others who ask for one wait meanwhile, but not texts.

        Raises:
            PromptError: there is less room in all.
            PowerInferError: see `check_usable`; steps say so, too, that come after closing.
        """
        self.check_usable()
        with self._direct_calls.held_unless(lambda: self._is_closed):
            sequence = self._new_sequence(self._exclusive)
            self._lent.append((weakref.ref(sequence), sequence.freeing))
            try:
                self._make_room(sequence, num_tokens)
                yield sequence
            finally:
                if self.is_of_this_process:
                    with self._steps.held():
                        sequence.give_up()

    def _make_room(self, sequence: TokenSequence, num_tokens: int) -> None:
        """Reserve room as texts that run give it back; texts to come wait for it meanwhile."""
        has_all = False
        while not has_all:
            with self._exclusive():
                engine = self._opened()
                self._take_back()
                cache = engine.cache
                size, needed = cache.block_size, cache.num_blocks_for(num_tokens)
                has_all = needed <= sequence.num_reserved + cache.num_available_blocks
                if has_all or not engine.num_running:
                    sequence.reserve(num_tokens)
                    return
                sequence.reserve(size * (sequence.num_reserved + cache.num_available_blocks))
                engine.max_unread = None
                try:
                    engine.run_step()
                finally:
                    engine.max_unread = _MAX_UNREAD
            self.tell()

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        with self._steps.held_unless(lambda: self._is_closed):
            self._opened()
            yield

    def _new_sequence(self, exclusive: Callable[[], AbstractContextManager[None]]) -> TokenSequence:
        engine, loaded = self._opened(), self._loaded
        if loaded is None:
            raise PowerInferError(CLOSED)
        return loaded.sequence_on(engine.cache, self._reading, exclusive)

    # Steps; the lock is held.

    def _step(self) -> bool:
        """Compute one step; False if no text could go on."""
        engine = self._opened()
        if engine.num_waiting:
            self._take_back()
        try:
            engine.run_step()
            self._end_endless(engine)
        finally:
            self.tell()
        return engine.num_running > 0 or not engine.num_waiting

    def _end_endless(self, engine: Engine) -> None:
        """Texts that go on for ever must not fill memory while nobody reads them."""
        loaded = self._loaded
        if loaded is not None and loaded.options.context_shift:
            most = 2 * loaded.model.context_length
            engine.end_unread(most, PowerInferError(_UNREAD))

    def _take_back(self) -> None:
        """Make room: nobody goes on with the direct sequence, nor with what was interrupted."""
        direct = self._direct
        if direct is not None and direct.token_ids:
            direct.give_up()
        for sequence, free in self._lent:
            if sequence() is None:
                free()
        self._lent = [each for each in self._lent if each[0]() is not None]

    def _opened(self) -> Engine:
        engine = self._engine
        if engine is None or self._is_closed:
            raise PowerInferError(CLOSED)
        return engine
