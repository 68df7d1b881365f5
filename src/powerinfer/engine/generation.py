"""What is generated of a text: the whole of it, or as far as it is."""

from dataclasses import dataclass
from typing import Literal

from powerinfer.engine.request import Output
from powerinfer.engine.ticket import Ticket
from powerinfer.errors import PowerInferError
from powerinfer.models.metrics import Metrics
from powerinfer.sampling.finish_reason import FinishReason
from powerinfer.sampling.logprobs import TokenLogprob

__all__ = ["Generation", "TextSoFar"]


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
            temperature and filters, see `powerinfer.sampling.logprobs`; None unless asked for.
    """

    text: str
    token_ids: list[int]
    finish_reason: Literal["stop", "length", "cancelled"]
    metrics: Metrics
    seed: int
    logprobs: list[TokenLogprob] | None = None


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

    def raise_error(self) -> None:
        """Say, once, why it ended without a result.

        Raises:
            PowerInferError: it did.
        """
        error, self.error = self.error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # else it and its traceback would keep each other, and the model, alive

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
