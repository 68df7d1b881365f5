"""Generation of one text: prefill, then one token at a time, until it is to stop."""

import time
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum

from powerinfer.engine.loader import LoadedModel
from powerinfer.engine.logprobs import TokenLogprob, token_logprob
from powerinfer.engine.metrics import CostMeter, Metrics
from powerinfer.engine.sampler import Sampler
from powerinfer.engine.sampling_params import SamplingParams
from powerinfer.engine.step import TokenSequence
from powerinfer.engine.stop import StopMatcher
from powerinfer.errors import NumericsError, PowerInferError, PromptError
from powerinfer.values import FloatArray

__all__ = ["FinishReason", "Generation", "TextStream"]


class FinishReason(StrEnum):
    """Why a generation ended.

    STOP: the model chose a token that ends the generation, or a stop string appeared.
    LENGTH: `max_tokens` were generated or, without such a limit, the context was full.
    CANCELLED: the caller closed the stream or pressed Ctrl-C.
    """

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


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
    finish_reason: str
    metrics: Metrics
    seed: int
    logprobs: list[TokenLogprob] | None = None


@dataclass(slots=True)
class _Progress:
    """What there is of a text so far: plain values that outlive the model.

    Attributes:
        num_prompt_tokens: tokens of the prompt.
        token_ids: of the prompt and of what was generated.
        cost: what the steps cost.
        seed: of the sampler.
        pieces: the text in pieces.
        reason: why the text ended; `CANCELLED` until it does.
        logprobs: of the generated tokens; None where nobody asked.
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


class TextStream(Iterator[str]):
    """Iterates over the pieces of a text while it is generated.

    Pieces are never empty and never split a character. Time the consumer takes between pieces is
    not counted. `generation` may be read at any moment and tells what there is so far. Threads may
    share a stream: each piece goes to one of them.

    A stream that has ended, for whatever reason, keeps neither weights nor KV cache alive.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        sequence: TokenSequence,
        prompt_ids: list[int],
        params: SamplingParams,
        lock: AbstractContextManager[object],
    ) -> None:
        """Prepare; nothing is computed before the first piece is asked for.

        Args:
            loaded: model, tokenizer and options.
            sequence: holds at most a prefix of `prompt_ids`.
            prompt_ids: at least one token, not more than the context.
            params: sampling parameters.
            lock: reentrant; held while a piece is computed, by whoever uses the sequence.
        """
        self._lock = lock
        self._ended_by: str | None = None
        eog_ids = loaded.tokenizer.eog_ids
        sampler = Sampler(params, eog_ids if params.ignore_eos else ())
        cost = CostMeter(
            loaded.load_s, loaded.dense_bytes, loaded.model, loaded.predicted_tokens_per_s
        )
        logprobs: list[TokenLogprob] | None = None if params.logprobs is None else []
        self._progress = _Progress(len(prompt_ids), list(prompt_ids), cost, sampler.seed, logprobs)
        # A running generator refers to the writer. Were that this object, the two would form a
        # cycle and hold the weights until Python looks for cycles.
        writer = _Writer(loaded, sequence, params, sampler, self._progress)
        self._texts: Generator[str] | None = writer.texts()

    def __next__(self) -> str:
        """Compute until a piece of text is certain, and return it.

        Raises:
            PowerInferError: another call of the same `LLM`, or closing it, ended this stream before
                its text ended.
            NumericsError: the model produced NaN or infinity; names the layer.
            PromptError: the context is full.
        """
        with self._lock:
            if self._ended_by is not None:
                raise PowerInferError(f"this stream was ended by {self._ended_by}")
            if self._texts is None:
                raise StopIteration
            try:
                piece = next(self._texts)
            except BaseException:
                self._texts = None
                raise
            self._progress.pieces.append(piece)
            return piece

    def close(self) -> None:
        """Stop generating; `generation` then says `cancelled` unless it had ended."""
        with self._lock:
            if self._texts is not None:
                self._texts.close()
                self._texts = None

    def end(self, by: str) -> None:
        """Stop for a reason of the model's; asking for more is an error that names it."""
        with self._lock:
            self._ended_by = None if self._texts is None else by
            self.close()

    @property
    def generation(self) -> Generation:
        """What was generated so far."""
        progress = self._progress
        return Generation(
            text="".join(progress.pieces),
            token_ids=progress.token_ids[progress.num_prompt_tokens :],
            finish_reason=progress.reason.value,
            metrics=progress.cost.metrics(progress.num_generated),
            seed=progress.seed,
            logprobs=None if progress.logprobs is None else list(progress.logprobs),
        )


class _Writer:
    """Generates the text of one stream and notes how far it is."""

    def __init__(
        self,
        loaded: LoadedModel,
        sequence: TokenSequence,
        params: SamplingParams,
        sampler: Sampler,
        progress: _Progress,
    ) -> None:
        self._loaded = loaded
        self._sequence = sequence
        self._params = params
        self._sampler = sampler
        self._progress = progress
        self._stops = StopMatcher(params.stop_strings)
        # The decoder must know the prompt: a text drops a first space only at its beginning.
        self._decoder = loaded.tokenizer.new_stream(progress.token_ids)

    def texts(self) -> Generator[str]:
        """Pieces of the text, from the prefill to the end."""
        logits = self._prefill()
        while (token_id := self._choose(logits)) is not None:
            text = self._stops.push(self._decoder.push(token_id))
            if text:
                yield text
            if self._stops.is_stopped:
                self._progress.reason = FinishReason.STOP
                return
            if self._is_long_enough():
                break
            logits = self._step(token_id)
        # A limit may cut a character: its first bytes are no text, and no mistake of the model.
        is_cut = self._progress.reason is FinishReason.LENGTH
        tail = "" if is_cut else self._decoder.finish()
        rest = self._stops.push(tail) + self._stops.finish()
        if rest:
            yield rest

    def _is_long_enough(self) -> bool:
        """Whether the token limit is reached; raises where the context is full before that."""
        progress = self._progress
        limit = self._params.max_tokens
        has_room = self._sequence.num_free > 0 or self._loaded.options.context_shift
        if limit is not None and progress.num_generated >= limit:
            progress.reason = FinishReason.LENGTH
            return True
        if has_room:
            return False
        if limit is None:
            progress.reason = FinishReason.LENGTH
            return True
        raise PromptError(
            f"the context of {self._sequence.context_length} tokens is full after "
            f"{progress.num_prompt_tokens} tokens of prompt and {progress.num_generated} of the "
            f"{limit} asked for",
            remedy="ask for fewer ({max_tokens}), take a larger context ({context_length}), or "
            "drop old text with {context_shift=True}",
        )

    def _prefill(self) -> FloatArray:
        started = time.perf_counter()
        new_ids = self._progress.token_ids[len(self._sequence.token_ids) :]
        logits = self._sequence.extend(new_ids)
        cost = self._progress.cost
        cost.prefill_tokens = len(new_ids)
        cost.prefill_s = time.perf_counter() - started
        return logits

    def _step(self, token_id: int) -> FloatArray:
        """Run the model on the last token, making room first where that was asked for."""
        if self._sequence.num_free == 0:
            self._sequence.shift(self._num_kept())
        with self._progress.cost.decode_step(self._sequence.kv_bytes):
            return self._sequence.extend([token_id])

    def _num_kept(self) -> int:
        begins_with_bos = self._progress.token_ids[0] == self._loaded.tokenizer.bos_id
        return max(self._loaded.options.keep_tokens, int(begins_with_bos))

    def _choose(self, logits: FloatArray) -> int | None:
        """The next token id, or None if it ends the generation."""
        progress = self._progress
        if self._params.max_tokens == 0:
            progress.reason = FinishReason.LENGTH
            return None
        started = time.perf_counter()
        try:
            token_id = self._sampler.sample(logits, progress.token_ids)
        except NumericsError as error:
            raise self._loaded.explain_non_finite(self._sequence.token_ids, error) from error
        progress.cost.decode_s += time.perf_counter() - started
        if token_id in self._loaded.tokenizer.eog_ids:
            progress.reason = FinishReason.STOP
            return None
        if progress.logprobs is not None:
            num_top, piece = self._params.logprobs or 0, self._loaded.tokenizer.piece
            progress.logprobs.append(token_logprob(logits, token_id, num_top, piece))
        progress.token_ids.append(token_id)
        return token_id
