"""A model with a screened head writes the texts that it writes without."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forced_drafts import force_drafts
from powerinfer import LLM, SamplingParams
from powerinfer.engine.request import Request
from powerinfer.errors import PromptError, UnsupportedError
from powerinfer.options.options import EngineOptions
from scheduling_cases import alone, new_engine, run, text_of
from tiny_models import TINY_MODELS, write_model

SETTINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"top_k": 12},
    {"temperature": 2.0, "top_k": 12, "top_p": 1.0, "min_p": 0.0},
    {"top_k": 0, "top_p": 1.0, "min_p": 0.3},
    {"temperature": 0.0, "ignore_eos": True},
    # These take the whole head.
    {"temperature": 3.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {"top_k": 0, "top_p": 0.9},
    {"temperature": 0.0, "logprobs": 2},
    {"temperature": 0.0, "repeat_penalty": 1.3},
    {"temperature": 0.0, "logit_bias": {7: 2.0}},
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    recipe = replace(TINY_MODELS["llama"], hidden_size=64, vocab_size=512, head_dim=16)
    write_model(path, replace(recipe, format="f16"))
    return path


@pytest.fixture(scope="module", params=[None, "reference"])
def models(request: pytest.FixtureRequest, path: Path) -> Iterator[tuple[LLM, LLM]]:
    kernels = request.param
    with (
        LLM(path, kernels=kernels, threads=2, device="cpu") as exact,
        LLM(path, kernels=kernels, threads=2, head="screened") as screened,
    ):
        yield exact, screened


def requests(count: int) -> list[Request]:
    """Requests of all settings, with seeds of their own."""
    random = np.random.default_rng(0)
    return [
        Request(
            prompt_ids=random.integers(5, 280, 4).tolist(),
            params=SamplingParams(**{"max_tokens": 24, "seed": i, **SETTINGS[i % len(SETTINGS)]}),
        )
        for i in range(count)
    ]


def test_texts_are_equal_alone_in_a_batch_and_with_drafts(models: tuple[LLM, LLM]) -> None:
    exact, screened = models
    asked = requests(2 * len(SETTINGS))
    engine = new_engine(screened, parallel=len(asked), kv_tokens=40 * len(asked))
    handles = [engine.submit(each) for each in asked]
    outputs = run(engine, handles)
    for handle, request in zip(handles, asked, strict=True):
        assert text_of(outputs[handle, 0]) == alone(exact.loaded, request)
    engine = new_engine(screened, parallel=len(asked), kv_tokens=40 * len(asked))
    force_drafts(engine, {id(each): [alone(exact.loaded, each)] for each in asked}, "half")
    handles = [engine.submit(each) for each in asked]
    drafted = run(engine, handles)
    for handle, request in zip(handles, asked, strict=True):
        assert text_of(drafted[handle, 0]) == alone(exact.loaded, request)
    head = screened.loaded.model.screened_head
    assert head is not None
    assert head.computed_share is not None
    assert 0 < head.computed_share < 1


def test_many_choices_are_equal(path: Path) -> None:
    params = SamplingParams(temperature=1.5, top_k=20, max_tokens=120, n=8, seed=3, ignore_eos=True)
    prompts = [[5 + i, 9, 200] for i in range(4)]
    with LLM(path, threads=1, device="cpu") as exact, LLM(path, threads=1, head="screened") as few:
        for greedy in (params, replace(params, temperature=0.0, n=1)):
            whole = exact.generate(prompts, greedy)
            assert [each.token_ids for each in few.generate(prompts, greedy)] == [
                each.token_ids for each in whole
            ]
        assert few.embed("a") == pytest.approx(exact.embed("a"), abs=0)


def test_logits_that_all_are_wanted_are_finite(path: Path) -> None:
    with LLM(path, threads=1, head="screened") as llm:
        sequence = llm.new_sequence()
        sequence.extend([5, 6, 7])
        logits = sequence.append(8)
    assert np.abs(logits).max() < 1e6


def test_gpu_is_refused() -> None:
    with pytest.raises(PromptError, match="leave"):
        EngineOptions(head="screened", device="cuda")
    with pytest.raises(UnsupportedError, match="exact, screened"):
        EngineOptions(head="fast")
