"""Which logits a choice of tokens looks at, from its parameters: the one rule of screened heads."""

import math

from powerinfer.ops.protocol import WantedLogits
from powerinfer.sampling.sampling_params import SamplingParams

__all__ = ["wanted_logits"]

# More candidates than this part of the vocabulary leave little to skip.
_MANY = 16


def wanted_logits(params: SamplingParams, num_banned: int, vocab_size: int) -> WantedLogits | None:
    """Return the logits that decide, whatever the others are; None for all.

    Few decide if the choice is greedy, among the k likeliest (top-p and min-p then see only these),
    or by min-p alone. Whatever changes or reports other logits needs all of them: log
    probabilities, forms, penalties, biases and processors.

    Args:
        num_banned: tokens that are never chosen; so many more of the largest are wanted.
    """
    if params.logprobs is not None or params.has_form or _changes_logits(params):
        return None
    if params.is_greedy:
        wanted = WantedLogits(1 + num_banned)
    elif params.top_k:
        wanted = WantedLogits(params.top_k + num_banned)
    elif params.min_p > 0 and params.top_p == 1:
        wanted = WantedLogits(1 + num_banned, -math.log(params.min_p))
    else:
        return None
    return wanted if wanted.count <= vocab_size // _MANY else None


def _changes_logits(params: SamplingParams) -> bool:
    has_penalties = params.repeat_last_n > 0 and (
        params.repeat_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0
    )
    return has_penalties or bool(params.logit_bias or params.logits_processors)
