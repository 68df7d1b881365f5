"""SmolLM2-135M-Instruct, Q4_1: tokens, texts and perplexity of llama.cpp and of exact arithmetic.

Texts are those of which every kernel set must write every word: no token has a rival that rounding
could put first (`GoldenText.smallest_margin`).
"""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from native_cases import KERNELS
from powerinfer import LLM, SamplingParams
from powerinfer.engine.perplexity import scored_windows
from real_models import CHATS, MAX_TOKENS, PERPLEXITY_TEXT, PROMPTS, TEXTS, WINDOW, Golden
from tolerances import REAL_MODEL_PERPLEXITY

GREEDY = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)

pytestmark = pytest.mark.slow


# Portable kernels take minutes for this model; smaller ones test them.
FAST_KERNELS = [name for name in KERNELS if name != "portable"] or KERNELS


@pytest.fixture(scope="module", params=FAST_KERNELS)
def llm(request: pytest.FixtureRequest, smollm2: Path) -> Iterator[LLM]:
    with LLM(
        smollm2, device="cpu", kernels=request.param, threads=2, context_length=WINDOW
    ) as loaded:
        yield loaded


def test_tokens_are_llama_cpps(llm: LLM, golden: Golden) -> None:
    found = [llm.encode(text, add_bos=False, parse_special=True) for text in TEXTS]
    assert found == golden["token_ids"]


def test_greedy_texts(llm: LLM, golden: Golden) -> None:
    generated = dict(zip(PROMPTS, llm.generate(PROMPTS, GREEDY), strict=True))
    for question in CHATS:
        messages = [{"role": "user", "content": question}]
        assert llm.chat_prompt(messages) == golden["texts"][question]["prompt_ids"]
        generated[question] = llm.chat(messages, GREEDY)
    texts = {name: generation.text for name, generation in generated.items()}
    assert texts == {name: text["text"] for name, text in golden["texts"].items()}


def test_perplexity(llm: LLM, golden: Golden) -> None:
    scores = scored_windows(llm, llm.encode(PERPLEXITY_TEXT), WINDOW)
    got = math.exp(-np.concatenate([score.token_logprobs for score in scores]).mean())
    for engine, limit in REAL_MODEL_PERPLEXITY.items():
        expected = golden["perplexity"][engine]
        assert math.isclose(got, expected, rel_tol=limit), (
            f"{got:.4f}, of {engine} {expected:.4f}: {100 * (got / expected - 1):+.3f} %"
        )
