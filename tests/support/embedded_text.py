"""What the embedded model writes: greedy, 200 tokens, with digests of the logits behind them."""

import hashlib
from pathlib import Path
from typing import TypedDict

import numpy as np

from powerinfer import LLM
from powerinfer.models.rope import build_rope_table
from powerinfer.values import FloatArray

__all__ = ["FOLDER", "KERNELS", "NUM_TOKENS", "Golden", "write_text"]

FOLDER = Path(__file__).resolve().parent.parent / "golden" / "embedded"
KERNELS = ("portable", "avx2", "avx512")
PROMPT = "Once upon a time"
NUM_TOKENS = 200
STEPS_PER_DIGEST = 25


class Golden(TypedDict):
    """A golden file of one kernel table.

    Attributes:
        text: the prompt and what follows.
        token_ids: i64[num_tokens], the most likely token at each step.
        log_probs: f64[num_tokens] of these tokens, 5 decimals.
        logits_sha256: of all logits (f32, little endian) from the first step to every 25th.
        rope_sha256: of the tables of cosines and sines, which numpy computes.
    """

    text: str
    token_ids: list[int]
    log_probs: list[float]
    logits_sha256: list[str]
    rope_sha256: str


def write_text(kernels: str, threads: int = 2) -> Golden:
    """Let the embedded model continue the prompt, one token after the other.

    Texts that end are continued nevertheless: what counts is the arithmetic.
    """
    with LLM(device="cpu", kernels=kernels, threads=threads) as llm:
        prompt = llm.encode(PROMPT)
        sequence = llm.new_sequence()
        digest = hashlib.sha256()
        golden = Golden(text="", token_ids=[], log_probs=[], logits_sha256=[], rope_sha256="")
        logits = sequence.extend(prompt).reshape(-1)
        for step in range(1, NUM_TOKENS + 1):
            digest.update(logits.astype("<f4").tobytes())
            token_id = int(logits.argmax())
            golden["token_ids"].append(token_id)
            golden["log_probs"].append(round(_log_prob(logits, token_id), 5))
            logits = sequence.append(token_id).reshape(-1)
            if step % STEPS_PER_DIGEST == 0:
                golden["logits_sha256"].append(digest.hexdigest())
        golden["text"] = llm.loaded.tokenizer.decode([*prompt, *golden["token_ids"]])
        config = llm.loaded.model.config
        assert config.rope is not None
        table = build_rope_table(config.rope, config.context_length)
        arrays = table.cos.tobytes() + table.sin.tobytes()
        golden["rope_sha256"] = hashlib.sha256(arrays).hexdigest()
    return golden


def _log_prob(logits: FloatArray, token_id: int) -> float:
    wide = logits.astype(np.float64)
    largest = wide.max()
    return float(wide[token_id] - largest - np.log(np.exp(wide - largest).sum()))
