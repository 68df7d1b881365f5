"""One text while it is generated: its tokens, and text that may be shown for each row of logits."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import length_hint

from powerinfer.engine.prompt_outputs import prompt_outputs
from powerinfer.engine.request import Output, PromptRows, RequestHandle
from powerinfer.errors import NumericsError, PowerInferError, PromptError
from powerinfer.loading.loader import LoadedModel
from powerinfer.models.metrics import CostMeter, TokenCounts
from powerinfer.sampling.finish_reason import FinishReason
from powerinfer.sampling.logprobs import TokenLogprob, token_logprob
from powerinfer.sampling.sampler import new_sampler
from powerinfer.sampling.stop import StopMatcher
from powerinfer.sampling.wanted_logits import wanted_logits
from powerinfer.values import FloatArray

__all__ = ["RunningText", "TokenSequence"]


@dataclass(slots=True, eq=False)
class TokenSequence:
    """Tokens of one sequence: computed ones and those to be computed.

    A prompt is computed in chunks. After that only the last token is to be computed, except after
    a shift: the tokens that it moved are computed again, as prompt or generated as before.

    Attributes:
        key: key of its blocks in the KV cache.
        token_ids: prompt and generated tokens, without those that a shift dropped.
        is_prompt: one flag per token, see `Batch.is_prompt`.
        num_computed: number of tokens whose keys and values are in the cache.
        num_reused: number of these that were not computed for this sequence.
        is_decoding: its prompt is computed.
        num_shifts: number of shifts so far.
    """

    token_ids: list[int] = field(default_factory=list)
    is_prompt: list[bool] = field(default_factory=list)
    key: object = field(default_factory=object)
    num_computed: int = 0
    num_reused: int = 0
    num_shifts: int = 0
    is_decoding: bool = False

    @property
    def num_pending(self) -> int:
        """Number of tokens left to chunks: all of a prompt, later all but the last token."""
        return len(self.token_ids) - self.num_computed - self.is_decoding

    @property
    def num_to_read(self) -> int:
        """Number of tokens that chunks compute in all, for the prompt or since the last shift."""
        return len(self.token_ids) - self.num_reused - self.is_decoding

    @property
    def state(self) -> tuple[int, int, bool]:
        """Number of tokens, number computed, and whether it is decoding, for restoring them."""
        return len(self.token_ids), self.num_computed, self.is_decoding

    @state.setter
    def state(self, kept: tuple[int, int, bool]) -> None:
        length, self.num_computed, self.is_decoding = kept
        del self.token_ids[length:]
        del self.is_prompt[length:]

    def read_next(self, token_ids: Sequence[int], is_prompt: Sequence[bool]) -> None:
        """Put tokens for chunks after the computed ones; any others are dropped."""
        self.num_reused = length = self.num_computed
        self.token_ids[length:] = token_ids
        self.is_prompt[length:] = is_prompt

    def append(self, token_id: int) -> None:
        """Append a generated token, which is to be computed next."""
        self.token_ids.append(token_id)
        self.is_prompt.append(False)
        self.is_decoding = True

    def pending_run(self, limit: int) -> tuple[list[int], bool]:
        """Return at most `limit` next tokens for a chunk, all of one kind, and this kind."""
        start = self.num_computed
        end = start + min(limit, self.num_pending)
        kind = self.is_prompt[start]
        others = (index for index in range(start, end) if self.is_prompt[index] != kind)
        end = next(others, end)
        return self.token_ids[start:end], kind

    def shift(self, num_kept: int) -> None:
        """Drop the older half of the computed tokens after the first `num_kept`.

        Raises:
            PromptError: `num_kept` leaves nothing to drop.
        """
        length = self.num_computed
        if length - num_kept < 2:
            raise PromptError(
                f"a context of {length} tokens cannot be shifted while its first "
                f"{num_kept} tokens are kept",
                remedy="use a larger context ({context_length}) or keep less ({keep_tokens})",
            )
        first = num_kept + (length - num_kept + 1) // 2
        token_ids = self.token_ids[:num_kept] + self.token_ids[first:]
        is_prompt = self.is_prompt[:num_kept] + self.is_prompt[first:]
        self.num_shifts += 1
        self.num_reused = num_kept
        self.token_ids, self.is_prompt, self.num_computed = token_ids, is_prompt, num_kept


class RunningText:
    """Chooses tokens and turns them into text, until something ends it.

    Attributes:
        id: unique among waiting and running texts; ascending in order of arrival.
        index: number of the text in its request.
        sequence: its tokens and their place in the KV cache.
        is_over: nothing more is computed.
        has_failed: ended by an error, after which computed keys and values may be damaged.
        wanted: logits that its choices look at; None for all.
        snapshot_positions: numbers of tokens after which its state is kept for later texts.
    """

    def __init__(self, loaded: LoadedModel, handle: RequestHandle, index: int) -> None:
        """Prepare sampling and decoding; compute nothing yet.

        Raises:
            PromptError: the form that the text must follow cannot be enforced.
        """
        request, tokenizer = handle.request, loaded.tokenizer
        self.id = 0
        self.handle = handle
        self.index = index
        is_prompt = request.is_prompt or [True] * len(request.prompt_ids)
        self.sequence = TokenSequence(list(request.prompt_ids), list(is_prompt))
        self.is_over = self.has_failed = False
        self.snapshot_positions: tuple[int, ...] = ()
        self._loaded = loaded
        self._params = replace(request.params, seed=handle.seed + index)
        # Without new tokens, skip the preparation that takes long on a long prompt.
        known = () if self._params.max_tokens == 0 else request.prompt_ids
        self._sampler = new_sampler(tokenizer, self._params, known)
        self._stops = StopMatcher(self._params.stop_strings)
        self._eog_ids = tokenizer.eog_ids
        num_banned = len(self._eog_ids) if self._params.ignore_eos else 0
        self.wanted = wanted_logits(self._params, num_banned, loaded.model.config.vocab_size)
        # The decoder must know the prompt: only the beginning of a text loses its first space.
        self._decoder = tokenizer.new_stream(known)
        self._token_ids = list(request.prompt_ids)
        self._num_prompt = len(self._token_ids)
        self._prompt_outputs = prompt_outputs(handle, tokenizer) if index == 0 else None

    @property
    def first_wanted(self) -> int | None:
        """First position of the prompt with an output; None: only its end gives logits."""
        if self._prompt_outputs is None or self.sequence.is_decoding:
            return None
        return self._prompt_outputs.first

    @property
    def takes_place(self) -> bool:
        """True if it generates or scores, and so counts among the texts that run at once."""
        return self.handle.request.prompt_rows is None

    @property
    def wants_states(self) -> bool:
        """True if its prompt gives hidden states instead of logits."""
        return self.handle.request.prompt_rows is PromptRows.STATES

    @property
    def cost(self) -> CostMeter:
        """Cost so far."""
        return self.handle.costs[self.index]

    @property
    def num_generated(self) -> int:
        """Number of generated tokens."""
        return len(self._token_ids) - self._num_prompt

    @property
    def token_counts(self) -> TokenCounts:
        """Counts so far."""
        return self.cost.token_counts(self.num_generated)

    @property
    def num_kept(self) -> int:
        """Number of its first tokens that a shift keeps."""
        options, bos_id = self._loaded.options, self._loaded.tokenizer.bos_id
        return max(options.keep_tokens, int(self.sequence.token_ids[0] == bos_id))

    @property
    def num_prompt(self) -> int:
        """Number of prompt tokens."""
        return self._num_prompt

    @property
    def known_ids(self) -> Sequence[int]:
        """Prompt and generated tokens, also those that a shift dropped."""
        return self._token_ids

    def num_wanted(self, length_limit: int) -> int:
        """Return the most tokens that may still be generated in a sequence of limited length."""
        most, num_more = self._params.max_tokens, length_limit - self.sequence.num_computed
        return num_more if most is None else min(num_more, most - self.num_generated)

    def note_prompt(self, end: int, rows: FloatArray) -> None:
        """Collect outputs for the positions before `end` if the request asks for any."""
        outputs = self._prompt_outputs
        if outputs is None or self.sequence.is_decoding or not len(rows):
            return
        try:
            outputs.add(end - len(rows), rows)
        except NumericsError as error:
            self.fail(self._explained(error, end))
            return
        if end == self._num_prompt:
            outputs.hand_over()

    def advance(
        self, logits: FloatArray, length_limit: int | None, started: float | None = None
    ) -> None:
        """Choose the next token and give the output to the handle.

        An exception (Ctrl-C) leaves the text as it was, to be tried again, unless the handle has
        its output already.

        Args:
            logits: f32[vocab_size]; not changed.
            length_limit: most tokens that the sequence may hold; None: it is shifted when full.
            started: start of the decode step that gave the logits, by `time.perf_counter`; None
                if a prompt gave them.
        """
        restore = self._undoing()
        ready: Iterator[Output] | None = None
        if started is None:
            started = time.perf_counter()
        try:
            output = self._next(logits, length_limit)
            self.cost.decode_s += time.perf_counter() - started
            self.handle.lengths[self.index] = self.num_generated
            self._note(output)
            ready = iter((output,))
            # An error and the frames of its traceback would keep each other, and the model, alive.
            del output
            # One call, which no interrupt can split, uses it up: after it the text has moved on.
            self.handle.unread.extend(ready)
        except BaseException:
            if ready is None or length_hint(ready):
                restore()
            raise

    def advance_drafted(
        self,
        rows: FloatArray,
        drafts: Sequence[int],
        length_limit: int | None,
        started: float,
    ) -> None:
        """Choose the next token from each row whose drafts are right, see `advance`.

        An exception leaves the text with the tokens chosen until then.

        Args:
            rows: f32[1 + len(drafts), vocab_size], logits after the last token and after each
                drafted one.
            drafts: computed tokens that may follow.
            started: see `advance`.
        """
        self.advance(rows[0], length_limit, started)
        for drafted, row in zip(drafts, rows[1:], strict=True):
            if self.is_over or self._token_ids[-1] != drafted:
                break
            self.advance(row, length_limit)
            self.cost.num_accepted += 1
        self.cost.num_drafted += len(drafts)

    def end(self, reason: FinishReason) -> None:
        """End the text."""
        self._emit(Output(index=self.index, finish_reason=reason))

    def fail(self, error: PowerInferError) -> None:
        """End the text without a result."""
        self._emit(Output(index=self.index, error=error))

    def _emit(self, output: Output) -> None:
        self._note(output)
        self.handle.unread.append(output)

    def _note(self, output: Output) -> None:
        """Record times and the end of the text before anybody can read the output."""
        times = self.handle.times
        if output.token_ids and times.first_token is None:
            times.first_token = time.monotonic()
        if output.is_last:
            times.last = time.monotonic()
            self.is_over, self.has_failed = True, output.error is not None
            self.handle.over.add(self.index)

    def _next(self, logits: FloatArray, length_limit: int | None) -> Output:
        self.sequence.num_computed = len(self.sequence.token_ids)
        if self._params.max_tokens == 0:
            return Output(index=self.index, finish_reason=FinishReason.LENGTH)
        if self._sampler.is_complete:
            return self._ended(FinishReason.STOP)
        try:
            token_id = self._sample(logits)
            if token_id in self._eog_ids:
                return self._ended(FinishReason.STOP)
            return self._with_token(token_id, logits, length_limit)
        except PowerInferError as error:
            return Output(index=self.index, error=error)
        except Exception as error:  # noqa: BLE001  a caller's function must not end other texts
            wrapped = PromptError(f"a logits processor failed: {error!r:.200}")
            wrapped.__cause__ = error
            return Output(index=self.index, error=wrapped)

    def _sample(self, logits: FloatArray) -> int:
        try:
            return self._sampler.sample(logits, self._token_ids)
        except NumericsError as error:
            raise self._explained(error, len(self.sequence.token_ids)) from error

    def _explained(self, error: NumericsError, length: int) -> NumericsError:
        """Add the layer that caused it to an error in the logits after `length` tokens."""
        sequence = self.sequence
        return self._loaded.explain_non_finite(
            sequence.token_ids[:length], error, sequence.is_prompt[:length]
        )

    def _with_token(self, token_id: int, logits: FloatArray, length_limit: int | None) -> Output:
        """Build the output of a token that belongs to the text."""
        logprobs = self._logprobs(logits, token_id)
        text = self._stops.push(self._decoder.push(token_id))
        self._token_ids.append(token_id)
        self.sequence.append(token_id)
        reason = stop = None
        if self._stops.is_stopped:
            reason, stop = FinishReason.STOP, self._stops.found
        elif self._sampler.is_complete:
            end = self._ended(FinishReason.STOP)
            reason, stop, text = end.finish_reason, end.stop, text + end.text
        elif self._is_long_enough(length_limit):
            # A limit may cut a character; its first bytes are dropped, not shown as U+FFFD.
            reason, text = FinishReason.LENGTH, text + self._stops.finish()
        return Output(
            index=self.index,
            text=text,
            token_ids=(token_id,),
            logprobs=logprobs,
            finish_reason=reason,
            stop=stop,
        )

    def _ended(self, reason: FinishReason) -> Output:
        """Build the output at the end that the model chose."""
        rest = self._stops.push(self._decoder.finish())
        stop = self._stops.found
        return Output(
            index=self.index, text=rest + self._stops.finish(), finish_reason=reason, stop=stop
        )

    def _logprobs(self, logits: FloatArray, token_id: int) -> tuple[TokenLogprob, ...]:
        num_top = self._params.logprobs
        if num_top is None:
            return ()
        return (
            token_logprob(
                logits, token_id, num_top, self._loaded.tokenizer.piece, self._sampler.softmax
            ),
        )

    def _is_long_enough(self, length_limit: int | None) -> bool:
        limit = self._params.max_tokens
        is_full = length_limit is not None and len(self.sequence.token_ids) > length_limit
        return is_full or (limit is not None and self.num_generated >= limit)

    def _undoing(self) -> Callable[[], None]:
        """Return a function that restores the present state."""
        num_tokens, sequence = len(self._token_ids), self.sequence.state
        sampler, stops, decoder = self._sampler.state, self._stops.state, self._decoder.state

        def restore() -> None:
            del self._token_ids[num_tokens:]
            self.sequence.state = sequence
            self._sampler.state, self._stops.state, self._decoder.state = sampler, stops, decoder
            self.handle.lengths[self.index] = self.num_generated
            self.handle.over.discard(self.index)
            self.is_over = self.has_failed = False

        return restore
