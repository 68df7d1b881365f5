"""An engine that plays a script instead of computing, for tests of routes."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from powerinfer.engine.engine import Engine
from powerinfer.engine.request import Output, Request, RequestHandle
from powerinfer.engine.statistics import EngineStatistics
from powerinfer.errors import ContextLengthError, NumericsError, PowerInferError, PromptError
from powerinfer.models.metrics import CostMeter
from powerinfer.sampling.finish_reason import FinishReason
from powerinfer.sampling.logprobs import TokenLogprob
from powerinfer.sampling.stop import StopMatcher

__all__ = ["FIRST_ID", "FakeEngine", "Script"]

Pieces: TypeAlias = Sequence[str | PowerInferError]
"""The tokens of a text, or what ends it."""

Script: TypeAlias = Pieces | Callable[[Request, int], Pieces]
"""What every text is, or what it is by request and number of the text."""

FIRST_ID = 300
"""Id of the first token of every text; each further one is one higher."""


@dataclass
class _Text:
    index: int
    pieces: Pieces
    stops: StopMatcher
    num_done: int = 0
    is_over: bool = False


@dataclass
class FakeEngine(Engine):
    """Each step adds a piece to each text of the first `parallel` requests.

    Attributes:
        script: of the texts.
        context_length: of prompt and answer.
        kv_tokens: most of a prompt; None for the context.
        parallel: most requests that run.
        num_cached: tokens of each prompt that count as cached.
        drafts: numbers of drafted and of accepted tokens of each text.
        submitted: all handles, for tests to look at.
        step_error: what the next step raises.
        num_steps: that were begun.
        step_s: seconds that a step takes.
        gate: cleared, the next step waits until it is set.
        is_closed: it was freed.
    """

    script: Script = ("Hello", ",", " world", "!")
    context_length: int = 512
    kv_tokens: int | None = None
    parallel: int = 8
    num_cached: int = 0
    drafts: tuple[int, int] = (0, 0)
    submitted: list[RequestHandle] = field(default_factory=list)
    step_error: Exception | None = None
    step_s: float = 0.0
    num_steps: int = 0
    gate: threading.Event = field(default_factory=threading.Event)
    is_closed: bool = False

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[tuple[RequestHandle, list[_Text]]] = []
        self.gate.set()

    @property
    def has_work(self) -> bool:
        return bool(self._open)

    def submit(self, request: Request) -> RequestHandle:
        if not request.prompt_ids:
            raise PromptError("the prompt is empty")
        if len(request.prompt_ids) > (self.kv_tokens or self.context_length):
            raise ContextLengthError("the prompt does not fit")
        costs = tuple(
            CostMeter(0.0, num_drafted=self.drafts[0], num_accepted=self.drafts[1])
            for _ in range(request.params.n)
        )
        handle = RequestHandle(request, 0, costs, num_cached_tokens=self.num_cached)
        script = self.script
        texts = [
            _Text(
                index,
                script(request, index) if callable(script) else script,
                StopMatcher(request.params.stop_strings),
            )
            for index in range(request.params.n)
        ]
        with self._lock:
            self.submitted.append(handle)
            self._open.append((handle, texts))
        return handle

    def cancel(self, handle: RequestHandle) -> None:
        handle.is_cancelled = not handle.is_over

    def step(self) -> list[tuple[RequestHandle, Output]]:
        self.gate.wait(10)
        self.num_steps += 1
        time.sleep(self.step_s)
        if self.step_error is not None:
            error, self.step_error = self.step_error, None
            raise error
        outputs = []
        with self._lock:
            running = self._open[: self.parallel]
            running += [each for each in self._open[self.parallel :] if each[0].is_cancelled]
            for handle, texts in running:
                outputs += [(handle, each) for each in self._outputs_of(handle, texts)]
            self._open = [each for each in self._open if not each[0].is_over]
        return outputs

    def statistics(self) -> EngineStatistics:
        running = min(len(self._open), self.parallel)
        return EngineStatistics(
            running=running,
            waiting=len(self._open) - running,
            blocks=64,
            blocks_used=running,
            blocks_cached=0,
            steps=self.num_steps,
            generated_tokens=0,
            prompt_tokens=0,
            cached_tokens=0,
        )

    def check_integrity(self) -> None:
        assert not self._open

    def close(self) -> None:
        self.is_closed = True

    def _outputs_of(self, handle: RequestHandle, texts: list[_Text]) -> list[Output]:
        if handle.request.prompt_logprobs is not None and handle.prompt_logprobs is None:
            handle.prompt_logprobs = tuple(
                self._logprob(each, "p", handle.request.prompt_logprobs)
                for each in handle.request.prompt_ids[1:]
            )
        if handle.request.prompt_rows is not None:
            wanted = handle.request.prompt_ids[-handle.request.num_rows :]
            handle.prompt_rows = np.array([[each, 3, 4] for each in wanted], np.float32)
        outputs = [self._next(handle, text) for text in texts if not text.is_over]
        handle.over |= {text.index for text in texts if text.is_over}
        return outputs

    def _next(self, handle: RequestHandle, text: _Text) -> Output:
        params = handle.request.params
        room = self.context_length - handle.num_prompt_tokens
        limit = room if params.max_tokens is None else min(params.max_tokens, room)
        if handle.is_cancelled:
            text.is_over = True
            return Output(index=text.index, finish_reason=FinishReason.CANCELLED)
        if text.num_done >= limit or text.num_done >= len(text.pieces):
            text.is_over = True
            is_cut = text.num_done >= limit
            reason = FinishReason.LENGTH if is_cut else FinishReason.STOP
            return Output(index=text.index, text=text.stops.finish(), finish_reason=reason)
        piece = text.pieces[text.num_done]
        if isinstance(piece, PowerInferError):
            text.is_over = True
            return Output(index=text.index, error=piece)
        token_id = FIRST_ID + text.num_done
        text.num_done += 1
        kept = text.stops.push(piece)
        text.is_over = text.stops.is_stopped
        asked = params.logprobs
        return Output(
            index=text.index,
            text=kept,
            token_ids=(token_id,),
            logprobs=() if asked is None else (self._logprob(token_id, piece, asked),),
            finish_reason=FinishReason.STOP if text.is_over else None,
            stop=params.stop_strings[0] if text.is_over else None,
        )

    @staticmethod
    def _logprob(token_id: int, text: str, num_top: int) -> TokenLogprob:
        top = tuple((token_id + rank, -0.5 - rank) for rank in range(num_top))
        return TokenLogprob(token_id, text, -0.5, top)


NAN = NumericsError("NaN in the logits")
