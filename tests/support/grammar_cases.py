"""Texts that follow a form, written by random logits, and who can check them."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

from powerinfer.sampling.sampler import new_sampler
from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.tokenizer.tokenizer import Tokenizer
from tokenizer_metadata import (
    byte_level,
    gguf_metadata,
    llama3_metadata,
    qwen2_metadata,
    small_sentencepiece,
)

REAL = ("gpt2", "llama2", "llama3", "qwen2")
# Enough for every text of these tests that ends by itself.
MOST_TOKENS = 400


@cache
def real_tokenizer(name: str, data_dir: Path) -> Tokenizer:
    """A vocabulary of the shared data."""
    ggml = data_dir / "vocab" / "ggml"
    makers = {
        "gpt2": lambda: gguf_metadata(ggml / "ggml-vocab-gpt-2.gguf"),
        "llama2": lambda: gguf_metadata(ggml / "ggml-vocab-llama-spm.gguf"),
        "llama3": lambda: llama3_metadata(data_dir),
        "qwen2": lambda: qwen2_metadata(data_dir),
    }
    return Tokenizer.from_metadata(makers[name]())


@cache
def small_tokenizer(kind: str) -> Tokenizer:
    """A vocabulary of some hundred tokens."""
    if kind == "sentencepiece":
        return Tokenizer.from_metadata(small_sentencepiece(eos_token_id=2))
    letters = [chr(code) for code in range(0x21, 0x7F)]
    bytes_of = [*letters, *(chr(code) for code in (*range(0xA1, 0xAD), *range(0xAE, 0x144)))]
    special = ["<|end|>"] if kind == "byte level" else []
    keys = {"eos_token_id": len(bytes_of) + 2} if special else {}
    merges = ["t r", "tr u"]
    return Tokenizer.from_metadata(
        byte_level([*bytes_of, "tr", "tru"], merges, special, keys={"pre": "gpt-2", **keys})
    )


def written(
    tokenizer: Tokenizer, seed: int, prompt_ids: tuple[int, ...] = (), **params: object
) -> str | None:
    """A text that random logits write, as the engine would show it; None if it does not end."""
    asked = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": seed} | params
    sampler = new_sampler(tokenizer, SamplingParams(**asked), prompt_ids)  # type: ignore[arg-type]
    stream, text = tokenizer.new_stream(prompt_ids), ""
    for logits in _random_logits(tokenizer, seed):
        if sampler.is_complete:
            return text + stream.finish()
        token_id = sampler.sample(logits)
        if token_id in tokenizer.eog_ids:
            return text + stream.finish()
        text += stream.push(token_id)
    return None


def _random_logits(tokenizer: Tokenizer, seed: int) -> Iterator[np.ndarray]:
    """Logits that soon lead out of texts without an end."""
    random = np.random.default_rng(seed)
    ends = np.array(
        [
            *tokenizer.eog_ids,
            *(
                token_id
                for text in ('"', "}", "]", '"}', '"]')
                if len(ids := tokenizer.encode_inside(text)) == 1
                for token_id in ids
            ),
        ],
        np.intp,
    )
    for _ in range(MOST_TOKENS):
        logits = random.normal(size=tokenizer.vocab_size).astype(np.float32) * 2
        logits[ends] += 12
        yield logits
