"""What a caller asks the scheduler for, and what it gets back, step by step."""

from collections.abc import Sequence
from dataclasses import dataclass

from powerinfer.errors import PowerInferError
from powerinfer.sampling.finish_reason import FinishReason
from powerinfer.sampling.logprobs import TokenLogprob
from powerinfer.sampling.sampling_params import SamplingParams

__all__ = ["Output", "Request"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt and the `params.n` texts that are to continue it.

    Attributes:
        prompt_ids: at least one, fewer than the context has room for.
        params: sampling parameters; text number i has the seed `seed` + i.
        marks: of each prompt token whether it was given and not an answer of before
            (`Batch.is_prompt`); None: all were given.
        prompt_logprobs: how many of the likeliest tokens to list in each place of the prompt, 0 for
            the prompt's own alone; None: nothing of the prompt is reported. The whole prompt is
            computed then.
        reuses_prefix: take keys and values of earlier requests where they begin alike.
        shares_answers: of generated tokens, too, so that the bits depend on what is reused.
    """

    prompt_ids: Sequence[int]
    params: SamplingParams
    marks: Sequence[bool] | None = None
    prompt_logprobs: int | None = None
    reuses_prefix: bool = True
    shares_answers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What one step added to one text of a request.

    Attributes:
        index: number of the text, from 0.
        text: that is certain to be kept; may be empty while a character or a stop string may begin.
        token_ids: generated in this step; the token that ends the text is not among them.
        logprobs: of each of `token_ids`; empty unless asked for.
        finish_reason: why the text ended; None while it goes on.
        stop: the stop string that ended it; None if something else did.
        error: why it ended without a result (`finish_reason` is None then); concerns this text.
    """

    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop: str | None = None
    error: PowerInferError | None = None

    @property
    def is_last(self) -> bool:
        """Nothing follows for this text."""
        return self.finish_reason is not None or self.error is not None
