"""Token probabilities in llama-server's form."""

from collections.abc import Sequence

import numpy as np

from powerinfer.sampling.logprobs import TokenLogprob
from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.tokenizer import Tokenizer

__all__ = ["filtered", "probability"]


def probability(tokenizer: Tokenizer, entry: TokenLogprob, num_top: int) -> dict[str, object]:
    """Describe a token and its likeliest alternatives, before anything changed their logits."""
    top = [
        {**_token(tokenizer, token_id), "logprob": logprob}
        for token_id, logprob in entry.top[:num_top]
    ]
    return {
        **_token(tokenizer, entry.token_id),
        "logprob": entry.logprob,
        "top_logprobs": top,
    }


def filtered(
    tokenizer: Tokenizer, entry: TokenLogprob, num_top: int, params: SamplingParams
) -> dict[str, object]:
    """Describe the same after top-k, top-p, min-p and temperature, ignoring penalties and biases.

    `entry` lists as many tokens as top-k keeps; `num_top` of them are described.
    """
    chances = _after_filters(entry.top, params)
    top = [
        {**_token(tokenizer, token_id), "prob": chance}
        for token_id, chance in list(chances.items())[:num_top]
    ]
    chosen = chances.get(entry.token_id, 0.0)
    return {**_token(tokenizer, entry.token_id), "prob": chosen, "top_probs": top}


def _after_filters(top: Sequence[tuple[int, float]], params: SamplingParams) -> dict[int, float]:
    """Compute probabilities by token id, likeliest first."""
    kept = top[: params.top_k or len(top)]
    values = np.array([logprob for _, logprob in kept], dtype=np.float64)
    if params.is_greedy:
        return {kept[0][0]: 1.0} if kept else {}
    weights = np.exp(values - values[0])
    sums = np.cumsum(weights)
    count = int(np.searchsorted(sums, params.top_p * sums[-1], side="left")) + 1
    values = values[: min(count, len(values))]
    if params.min_p > 0:
        values = values[values >= values[0] + np.log(params.min_p)]
    weights = np.exp((values - values[0]) / params.temperature)
    chances = weights / weights.sum()
    return {token_id: float(each) for (token_id, _), each in zip(kept, chances, strict=False)}


def _token(tokenizer: Tokenizer, token_id: int) -> dict[str, object]:
    piece = tokenizer.piece_bytes(token_id)
    return {"id": token_id, "token": piece.decode("utf-8", "replace"), "bytes": list(piece)}
