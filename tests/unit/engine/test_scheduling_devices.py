"""Texts side by side where rows of a step may be rounded otherwise: numpy, and a GPU beside."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from powerinfer import LLM, SamplingParams
from powerinfer.engine.engine import Engine
from powerinfer.engine.request import Request
from powerinfer.loading.loader import LoadedModel
from powerinfer.sampling.logprobs import TokenLogprob
from scheduling_cases import all_alone, run, text_of
from tiny_models import TINY_MODELS, write_model

REQUESTS = [
    Request(
        prompt_ids=list(range(10, 10 + length)),
        params=SamplingParams(temperature=0, max_tokens=8, logprobs=0, n=n, seed=1),
    )
    for length, n in ((1, 1), (30, 1), (70, 3), (75, 1))
]
# Interpreted kernels are slow.
FEW = [
    Request(
        prompt_ids=list(range(10, 10 + length)),
        params=SamplingParams(temperature=0, max_tokens=3, logprobs=0, n=n, seed=1),
    )
    for length, n in ((1, 1), (66, 2))
]


def _logprobs(listed: Sequence[TokenLogprob]) -> list[float]:
    return [each.logprob for each in listed]


def _check_side_by_side(loaded: LoadedModel, requests: list[Request]) -> None:
    engine = Engine(replace(loaded, options=replace(loaded.options, kv_tokens=1024, parallel=6)))
    handles = [engine.submit(request) for request in requests]
    outputs = run(engine, handles)
    for handle in handles:
        for index, wanted in enumerate(all_alone(loaded, handle.request)):
            got = text_of(outputs[handle, index])
            assert got.token_ids == wanted.token_ids
            np.testing.assert_allclose(
                _logprobs(got.logprobs), _logprobs(wanted.logprobs), atol=0.01
            )
    assert engine.statistics().steps < 20


@pytest.mark.parametrize("name", ["llama-relu", "qwen2", "mixtral"])
def test_in_numpy(tmp_path: Path, name: str) -> None:
    with LLM(write_model(tmp_path / "m.gguf", TINY_MODELS[name]), kernels="reference") as llm:
        _check_side_by_side(llm.loaded, REQUESTS)


@pytest.mark.parametrize("states", ["FF", "SC"])
@pytest.mark.thorough
def test_beside_an_interpreted_gpu(tmp_path: Path, states: str) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    # Imports Triton such that kernels are interpreted where there is no GPU.
    from placed_models import make_plan, place, tiny_file

    with LLM(tiny_file(tmp_path, "llama-relu"), threads=1, sparsity="exact") as llm:
        placed = place(llm.loaded.model, make_plan(states))
        _check_side_by_side(replace(llm.loaded, model=placed), FEW)
