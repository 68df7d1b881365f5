"""Generating one text: prefill, then one token at a time until something ends it."""

import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from powerinfer.engine.finish_reason import FinishReason
from powerinfer.engine.loader import LoadedModel
from powerinfer.engine.logprobs import TokenLogprob, token_logprob
from powerinfer.engine.metrics import CostMeter, Metrics, StepMeter
from powerinfer.engine.new_sampler import new_sampler
from powerinfer.engine.sampling_params import SamplingParams
from powerinfer.engine.scheduling.request import Output
from powerinfer.engine.scheduling.ticket import Ticket
from powerinfer.engine.step import TokenSequence
from powerinfer.engine.stop import StopMatcher
from powerinfer.errors import NumericsError, PowerInferError
from powerinfer.values import FloatArray

__all__ = ["Generation", "Progress", "PromptLogits", "TextSoFar", "Writer", "writers"]


@dataclass(frozen=True, slots=True)
class Generation:
    """One finished text.

    Attributes:
        text: what was generated, without the prompt and without the stop string; a character that
            the token limit cut is left out.
        token_ids: ids of the generated tokens; the token that ended the generation is not among
            them, those of a stop string are.
        finish_reason: `stop`, `length` or `cancelled`, see `FinishReason`.
        metrics: what it cost.
        seed: seed of the sampler, for repeating it.
        logprobs: of each of `token_ids`, by the model's own distribution: before bias, penalties,
            temperature and filters, see `powerinfer.engine.logprobs`; None unless asked for.
    """

    text: str
    token_ids: list[int]
    finish_reason: Literal["stop", "length", "cancelled"]
    metrics: Metrics
    seed: int
    logprobs: list[TokenLogprob] | None = None


@dataclass(slots=True)
class Progress:
    """What there is of a text so far: plain values that outlive the model.

    Attributes:
        num_prompt_tokens: tokens of the prompt.
        token_ids: of the prompt and of what was generated.
        cost: what the steps cost.
        seed: of the sampler.
        logprobs: of the generated tokens; None where nobody asked.
        pieces: the text in pieces.
        reason: why the text ended; `CANCELLED` until it does.
    """

    num_prompt_tokens: int
    token_ids: list[int]
    cost: CostMeter
    seed: int
    logprobs: list[TokenLogprob] | None
    pieces: list[str] = field(default_factory=list)
    reason: FinishReason = FinishReason.CANCELLED

    @property
    def num_generated(self) -> int:
        """Tokens generated."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def generation(self) -> Generation:
        """What was generated so far."""
        return Generation(
            text="".join(self.pieces),
            token_ids=self.token_ids[self.num_prompt_tokens :],
            finish_reason=self.reason.value,
            metrics=self.cost.metrics(self.num_generated),
            seed=self.seed,
            logprobs=None if self.logprobs is None else list(self.logprobs),
        )


class TextSoFar:
    """What was generated of one text of a request: plain values that outlive the model.

    Attributes:
        error: why it ended without a result; None unless it did.
        is_over: nothing will be added.
    """

    def __init__(self, ticket: Ticket, index: int = 0) -> None:
        """Start with nothing.

        Args:
            ticket: of the request.
            index: number of the text.
        """
        self._ticket = ticket
        self._index = index
        self._pieces: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._reason = FinishReason.CANCELLED
        self.error: PowerInferError | None = None
        self.is_over = False

    def add(self, output: Output) -> None:
        """Take what one step added."""
        if output.text:
            self._pieces.append(output.text)
        self._token_ids.extend(output.token_ids)
        self._logprobs.extend(output.logprobs)
        if output.finish_reason is not None:
            self._reason = output.finish_reason
        self.error, self.is_over = output.error, output.is_last

    @property
    def generation(self) -> Generation:
        """What was generated so far; `cancelled` unless the text has ended."""
        ticket, num_top = self._ticket, self._ticket.request.params.logprobs
        cost = ticket.costs[self._index]
        return Generation(
            text="".join(self._pieces),
            token_ids=list(self._token_ids),
            finish_reason=self._reason.value,
            metrics=cost.metrics(len(self._token_ids)),
            seed=ticket.seed + self._index,
            logprobs=None if num_top is None else list(self._logprobs),
        )


class PromptLogits:
    """The prompt of one or several texts, computed once."""

    def __init__(
        self,
        loaded: LoadedModel,
        sequence: TokenSequence,
        token_ids: list[int],
        marks: list[bool] | None = None,
    ) -> None:
        """Prepare; nothing is computed yet.

        Args:
            loaded: model, tokenizer and options.
            sequence: to compute on.
            token_ids: at least one, not more than the context.
            marks: of each whether it is prompt and not an answer of before; None if all are.
        """
        self.token_ids = token_ids
        self._marks = [True] * len(token_ids) if marks is None else marks
        self._reuses_prefix = loaded.options.reuse_prefix
        self._sequence = sequence
        self._logits: FloatArray | None = None
        self._num_shifts = 0

    def compute(self, cost: CostMeter) -> FloatArray:
        """Bring the sequence to the end of the prompt: f32[vocab_size] logits after it.

        Later calls compute nothing, unless the context was shifted meanwhile.

        Args:
            cost: counts what is computed.
        """
        sequence = self._sequence
        if self._logits is not None and sequence.num_shifts == self._num_shifts:
            sequence.truncate(len(self.token_ids))
            return self._logits
        # The last token is computed again: its logits are what is wanted.
        most = len(self.token_ids) - 1 if self._reuses_prefix else 0
        sequence.keep_prefix(self.token_ids[:most], self._marks[:most])
        num_kept = len(sequence.token_ids)
        new_ids, marks = self.token_ids[num_kept:], self._marks[num_kept:]
        # A copy: a backend may use its array again.
        started = time.perf_counter()
        self._logits = sequence.extend(new_ids, marks=marks).copy()
        cost.prefill_s += time.perf_counter() - started
        cost.prefill_tokens = len(new_ids)
        self._num_shifts = sequence.num_shifts
        return self._logits


class Writer:
    """Generates one text and notes how far it is.

    Attributes:
        progress: what there is so far; keeps neither weights nor KV cache alive.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        sequence: TokenSequence,
        prompt: PromptLogits,
        params: SamplingParams,
    ) -> None:
        """Prepare; nothing is computed yet.

        Args:
            loaded: model, tokenizer and options.
            sequence: that of `prompt`; nobody else may use it until the text ends.
            prompt: shared by the texts that continue it.
            params: sampling parameters; `n` is not looked at.
        """
        self._loaded = loaded
        self._sequence = sequence
        self._prompt = prompt
        self._params = params
        self._sampler = new_sampler(loaded.tokenizer, params, prompt.token_ids)
        self._meter = StepMeter(loaded.model, loaded.dense_bytes)
        cost = CostMeter(
            loaded.load_s,
            loaded.predicted_tokens_per_s,
            has_predictors=self._meter.has_predictors,
            has_experts=loaded.model.config.experts is not None,
        )
        prompt_ids = prompt.token_ids
        logprobs: list[TokenLogprob] | None = None if params.logprobs is None else []
        self.progress = Progress(
            len(prompt_ids), list(prompt_ids), cost, self._sampler.seed, logprobs
        )
        self._stops = StopMatcher(params.stop_strings)
        # The decoder must know the prompt: a text drops a first space only at its beginning.
        self._decoder = loaded.tokenizer.new_stream(prompt_ids)

    def texts(self) -> Iterator[str]:
        """Pieces of the text, from the prefill to the end."""
        logits = self._prompt.compute(self.progress.cost)
        while (token_id := self._choose(logits)) is not None:
            text = self._stops.push(self._decoder.push(token_id))
            if text:
                self.progress.pieces.append(text)
                yield text
            if self._stops.is_stopped:
                self.progress.reason = FinishReason.STOP
                return
            if self._sampler.is_complete:
                self.progress.reason = FinishReason.STOP
                break
            if self._is_long_enough():
                break
            logits = self._step(token_id)
        # A limit may cut a character: its first bytes are no text, and no mistake of the model.
        is_cut = self.progress.reason is FinishReason.LENGTH
        tail = "" if is_cut else self._decoder.finish()
        rest = self._stops.push(tail) + self._stops.finish()
        if rest:
            self.progress.pieces.append(rest)
            yield rest

    def _is_long_enough(self) -> bool:
        """Whether the token limit is reached, or the context full."""
        limit = self._params.max_tokens
        is_limited = limit is not None and self.progress.num_generated >= limit
        has_room = self._sequence.num_free > 0 or self._loaded.options.context_shift
        if has_room and not is_limited:
            return False
        self.progress.reason = FinishReason.LENGTH
        return True

    def _step(self, token_id: int) -> FloatArray:
        """Run the model on the last token, making room first where that was asked for."""
        if self._sequence.num_free == 0:
            self._sequence.shift(self._num_kept())
        kv_bytes, cost = self._sequence.kv_bytes, self.progress.cost
        started = time.perf_counter()
        logits = self._sequence.append(token_id, self._meter.counting)
        cost.decode_s += time.perf_counter() - started
        cost.add_decode_step(self._meter.shares([kv_bytes])[0])
        return logits

    def _num_kept(self) -> int:
        begins_with_bos = self.progress.token_ids[0] == self._loaded.tokenizer.bos_id
        return max(self._loaded.options.keep_tokens, int(begins_with_bos))

    def _choose(self, logits: FloatArray) -> int | None:
        """The next token id, or None if it ends the generation."""
        progress = self.progress
        if self._params.max_tokens == 0:
            progress.reason = FinishReason.LENGTH
            return None
        if self._sampler.is_complete:
            progress.reason = FinishReason.STOP
            return None
        started = time.perf_counter()
        try:
            token_id = self._sampler.sample(logits, progress.token_ids)
        except NumericsError as error:
            sequence = self._sequence
            raise self._loaded.explain_non_finite(
                sequence.token_ids, error, sequence.marks
            ) from error
        progress.cost.decode_s += time.perf_counter() - started
        if token_id in self._loaded.tokenizer.eog_ids:
            progress.reason = FinishReason.STOP
            return None
        if progress.logprobs is not None:
            num_top, piece = self._params.logprobs or 0, self._loaded.tokenizer.piece
            progress.logprobs.append(
                token_logprob(logits, token_id, num_top, piece, self._sampler.softmax)
            )
        progress.token_ids.append(token_id)
        return token_id


def writers(
    loaded: LoadedModel,
    sequence: TokenSequence,
    prompt_ids: list[int],
    params: SamplingParams,
    marks: list[bool] | None = None,
) -> Iterator[Writer]:
    """A writer for each of the `params.n` texts from one prompt, to be run one after the other.

    Text number i is what `seed` + i gives alone, to the bit. `marks`: see `PromptLogits`.
    """
    prompt = PromptLogits(loaded, sequence, prompt_ids, marks)
    seed = secrets.randbits(32) if params.seed is None else params.seed
    for number in range(params.n):
        yield Writer(loaded, sequence, prompt, replace(params, seed=seed + number))
