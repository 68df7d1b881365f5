"""What every peer's worker does: load, warm up, time prompts and decoding, print one JSON object.

The same procedure as `powerinfer bench`: random prompt tokens, then decode steps of one token each.
Only ours also samples the tokens in its time; peers are given them. Needs numpy alone, since it
runs in the peer's Python.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

__all__ = [
    "CONTEXT",
    "DECODE_PROMPT",
    "LONGEST_BATCH",
    "Engine",
    "fill_batch",
    "measure",
    "options_of",
]

CONTEXT = 1024
LONGEST_BATCH = 512
DECODE_PROMPT = 32


class Engine(Protocol):
    """One model and one context, one sequence."""

    name: str
    system_info: str
    vocab_size: int

    def clear(self) -> None:
        """Forget every token."""

    def step(self, token_ids: Any, position: int) -> float:
        """Compute `token_ids` from `position`, logits of the last only; returns seconds."""


def options_of(description: str | None) -> argparse.ArgumentParser:
    """The options that all workers have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prefill", type=int, nargs="*", default=[128, 512])
    parser.add_argument("--decode", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    return parser


def fill_batch(batch: Any, token_ids: Any, position: int) -> None:
    """Describe one sequence's next tokens in a `llama_batch`."""
    batch.n_tokens = len(token_ids)
    for i, token_id in enumerate(token_ids):
        batch.token[i] = int(token_id)
        batch.pos[i] = position + i
        batch.n_seq_id[i] = 1
        batch.seq_id[i][0] = 0
        batch.logits[i] = i == len(token_ids) - 1


def measure(options: argparse.Namespace, load: Callable[[], Engine]) -> None:
    """Run it all and print what was found.

    Raises:
        SystemExit: more tokens are asked for than the context holds.
    """
    longest = max(*options.prefill, DECODE_PROMPT + options.decode, 1)
    if longest > CONTEXT:
        raise SystemExit(f"error: {longest} tokens are more than the context of {CONTEXT}")
    start = time.perf_counter()
    engine = load()
    load_s = time.perf_counter() - start
    random = np.random.default_rng(options.seed)
    tokens = random.integers(300, engine.vocab_size, CONTEXT)
    engine.step(tokens[:1], 0)
    # A prompt that is not counted, as `powerinfer bench` has a round: buffers are made then.
    for count in options.prefill[:1]:
        _prompt_s(engine, tokens[:count])
    prefill = {str(count): count / _prompt_s(engine, tokens[:count]) for count in options.prefill}
    result = {
        "engine": engine.name,
        "system_info": engine.system_info,
        "load_s": load_s,
        "prefill_tokens_per_s": prefill,
    }
    if options.decode:
        engine.clear()
        engine.step(tokens[:DECODE_PROMPT], 0)
        places = range(DECODE_PROMPT, DECODE_PROMPT + options.decode)
        steps = [engine.step(tokens[i : i + 1], i) for i in places]
        # The average, as ours is: a neighbour's burst slows both alike.
        result["decode_tokens_per_s"] = options.decode / sum(steps)
    print(json.dumps(result))


def _prompt_s(engine: Engine, tokens: Any) -> float:
    engine.clear()
    starts = range(0, len(tokens), LONGEST_BATCH)
    return sum(engine.step(tokens[i : i + LONGEST_BATCH], i) for i in starts)
