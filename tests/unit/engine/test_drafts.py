"""Drafts change no bit: ids, text, log probabilities and reasons are those of each text alone."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from forced_drafts import MANNERS, Answers, forbid_drafts, force_drafts
from powerinfer import LLM, SamplingParams
from powerinfer.engine.engine import Engine
from powerinfer.engine.request import Request
from powerinfer.errors import NumericsError
from powerinfer.models import Model
from powerinfer.values import Batch, FloatArray
from scheduling_cases import WholeText, all_alone, new_engine, run, text_of
from tiny_models import TINY_EXPERTS, TINY_MODELS, write_model

CONTEXT = 96
PROMPT = [10 + number * 7 % 250 for number in range(40)]
# Recipes, and which neurons they compute.
KINDS = {
    "dense": ("llama", None),
    "exact": ("llama-relu", "exact"),
    "mlp": ("bamboo", "mlp"),
    "lowbit": ("bamboo", "lowbit:2"),
    "oracle": ("bamboo", "oracle"),
    "window": ("gemma3", None),
    "experts": ("mixtral-drelu-transposed", None),
    "layers-differ": ("gemma4", None),
    "short-conv": ("lfm2", None),
    "delta-rule": ("qwen35moe", None),
    "scan": ("nemotron_h", None),
}
WITH_STATE = ("short-conv", "delta-rule", "scan")


def _requests() -> list[Request]:
    greedy = SamplingParams(temperature=0, max_tokens=12, seed=1, logprobs=2)
    drawn = SamplingParams(temperature=0.8, max_tokens=13, seed=7, logprobs=0, n=2)
    penal = SamplingParams(
        temperature=1.5,
        top_k=0,
        seed=3,
        max_tokens=11,
        logprobs=1,
        repeat_penalty=1.3,
        presence_penalty=0.4,
        frequency_penalty=0.7,
        logit_bias={17: 4.0, 40: 4.0, 60: -1e9},
    )
    return [
        Request(prompt_ids=PROMPT, params=greedy),
        Request(prompt_ids=PROMPT[:23], params=drawn),
        Request(prompt_ids=PROMPT[5:], params=penal),
        Request(prompt_ids=PROMPT[:9], params=replace(greedy, max_tokens=1)),
    ]


@pytest.fixture(scope="module", params=list(KINDS))
def llm(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[LLM]:
    recipe, sparsity = KINDS[request.param]
    model = replace((TINY_MODELS | TINY_EXPERTS)[recipe], context_length=CONTEXT)
    path = write_model(tmp_path_factory.mktemp("models") / "tiny.gguf", model)
    with LLM(path, sparsity=sparsity, threads=2) as llm:
        yield llm


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    model = replace(TINY_MODELS["llama-relu"], context_length=CONTEXT)
    path = write_model(tmp_path_factory.mktemp("models") / "tiny.gguf", model)
    with LLM(path, threads=2) as llm:
        yield llm


@pytest.fixture(scope="module")
def stateful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    model = replace(TINY_MODELS["lfm2"], context_length=CONTEXT)
    path = write_model(tmp_path_factory.mktemp("models") / "tiny.gguf", model)
    with LLM(path, threads=2) as llm:
        yield llm


def _answers(llm: LLM, requests: Sequence[Request]) -> Answers:
    return {id(request): all_alone(llm.loaded, request) for request in requests}


def _texts(engine: Engine, requests: Sequence[Request]) -> list[list[WholeText]]:
    handles = [engine.submit(request) for request in requests]
    outputs = run(engine, handles)
    return [
        [text_of(outputs[handle, index]) for index in range(handle.request.params.n)]
        for handle in handles
    ]


def _check(llm: LLM, requests: Sequence[Request], **options: Any) -> list[WholeText]:
    """Compare texts with all sorts of drafts with those alone, which are returned."""
    answers = _answers(llm, requests)
    expected = [list(answers[id(request)]) for request in requests]
    for seed, manner in enumerate(MANNERS):
        engine = new_engine(llm, kv_tokens=8 * CONTEXT, **options)
        force_drafts(engine, answers, manner, seed=seed)
        assert _texts(engine, requests) == expected, manner
    return [text for texts in expected for text in texts]


@pytest.mark.usefixtures("no_end_tokens")
def test_texts_are_those_without(llm: LLM) -> None:
    _check(llm, _requests())


def test_end_tokens_and_stop_strings_inside_a_draft(dense: LLM) -> None:
    params = SamplingParams(temperature=1.2, max_tokens=30, logprobs=0)
    requests = [
        Request(prompt_ids=PROMPT[number:], params=replace(params, seed=number))
        for number in range(6)
    ]
    texts = _check(dense, requests)
    stopping = [
        replace(request, params=replace(request.params, stop=[text.text[3:5], "\n"]))
        for request, text in zip(requests, texts, strict=True)
        if len(text.text) > 6
    ]
    found = _check(dense, stopping)
    assert any(text.stop for text in found)


@pytest.mark.usefixtures("no_end_tokens")
@pytest.mark.parametrize("name", ["dense", "stateful"])
def test_the_context_is_full_inside_a_draft(name: str, request: pytest.FixtureRequest) -> None:
    llm = request.getfixturevalue(name)
    params = SamplingParams(seed=3, max_tokens=None, logprobs=0)
    long = Request(prompt_ids=[*PROMPT, *PROMPT], params=params)
    (text,) = _check(llm, [long], parallel=1)
    assert (text.finish_reason, len(text.token_ids)) == ("length", CONTEXT - 80 + 1)


@pytest.mark.usefixtures("no_end_tokens")
def test_a_context_that_shifts(dense: LLM) -> None:
    request = Request(prompt_ids=PROMPT, params=SamplingParams(seed=3, max_tokens=150, logprobs=0))
    plain = new_engine(dense, context_shift=True)
    forbid_drafts(plain)
    expected = _texts(plain, [request])
    for manner in MANNERS:
        engine = new_engine(dense, context_shift=True)
        force_drafts(engine, {id(request): expected[0]}, manner)
        assert _texts(engine, [request]) == expected


@pytest.mark.usefixtures("no_end_tokens")
@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize("shares_answers", [False, True])
@pytest.mark.parametrize("name", ["dense", "stateful"])
def test_later_texts_reuse_what_was_accepted(
    name: str, shares_answers: bool, manner: str, request: pytest.FixtureRequest
) -> None:
    llm = request.getfixturevalue(name)
    first = Request(prompt_ids=PROMPT, params=SamplingParams(seed=5, max_tokens=30, logprobs=0))
    answers = _answers(llm, [first])
    (text,) = answers[id(first)]
    # Part of the answer, and something else behind it; its bits are those of generated tokens.
    second = Request(
        prompt_ids=[*PROMPT, *text.token_ids[:28], 20, 21],
        params=SamplingParams(seed=6, max_tokens=4, logprobs=0),
        is_prompt=[True] * 40 + [False] * 28 + [True] * 2,
        shares_answers=shares_answers,
    )
    answers = {**answers, **_answers(llm, [second])}
    engine = new_engine(llm, kv_tokens=1024, reuse_prefix=True)
    force_drafts(engine, answers, manner)
    assert _texts(engine, [first]) == [answers[id(first)]]
    handle = engine.submit(second)
    outputs = run(engine, [handle])
    assert [text_of(outputs[handle, 0])] == answers[id(second)]
    assert name == "stateful" or handle.num_cached_tokens >= 64


@pytest.mark.usefixtures("no_end_tokens")
def test_right_drafts_save_steps_and_are_counted(dense: LLM, stateful: LLM) -> None:
    for llm in (dense, stateful):
        request = Request(prompt_ids=PROMPT, params=SamplingParams(seed=5, max_tokens=33))
        engine = new_engine(llm)
        force_drafts(engine, _answers(llm, [request]), "right")
        handle = engine.submit(request)
        run(engine, [handle])
        metrics = handle.metrics()
        assert metrics.num_accepted == metrics.num_drafted > 0
        assert metrics.decode_steps + metrics.num_accepted == 32
        assert metrics.draft_accepted_share == 1
        assert metrics.tokens_per_step == 32 / metrics.decode_steps
        statistics = engine.statistics()
        assert statistics.drafted_tokens == statistics.accepted_tokens == metrics.num_accepted
        assert (statistics.text_steps, statistics.generated_tokens) == (metrics.decode_steps, 33)


@pytest.mark.usefixtures("no_end_tokens")
@pytest.mark.parametrize("manner", ["right", "half"])
@pytest.mark.parametrize("name", ["dense", "stateful"])
def test_a_text_that_is_cancelled_while_its_drafts_are_computed(
    name: str, manner: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = request.getfixturevalue(name)
    wanted = Request(prompt_ids=PROMPT, params=SamplingParams(seed=5, max_tokens=30, logprobs=0))
    answers = _answers(llm, [wanted])
    (whole,) = answers[id(wanted)]
    engine = new_engine(llm, kv_tokens=1024, reuse_prefix=True)
    force_drafts(engine, answers, manner, seed=1)
    handle = engine.submit(wanted)
    forward = Model.forward

    def leave(model: Model, batch: Batch, *args: Any, **options: Any) -> FloatArray:
        if handle.num_generated and len(batch.token_ids) > 2:
            engine.cancel(handle)
        return forward(model, batch, *args, **options)

    monkeypatch.setattr(Model, "forward", leave)
    outputs = run(engine, [handle])[handle, 0]
    assert outputs[-1].finish_reason == "cancelled"
    made = [token_id for output in outputs for token_id in output.token_ids]
    assert 0 < len(made) < 30
    assert made == whole.token_ids[: len(made)]
    # What it leaves in the cache is right: the same request, from the same prompt.
    again = replace(wanted)
    force_drafts(engine, {id(again): [whole]}, manner)
    assert _texts(engine, [again]) == [[whole]]


FORMS = {
    "schema": {
        "json_schema": json.dumps(
            {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 8},
                    "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
                },
                "required": ["name", "tags"],
                "additionalProperties": False,
            }
        )
    },
    "regex": {"regex": r"(once|upon|a time| ){2,9}!"},
}


@pytest.mark.parametrize("form", list(FORMS))
def test_forms(form: str) -> None:
    with LLM(threads=2, context_length=128) as llm:
        prompt = llm.loaded.tokenizer.encode("Once upon a time")
        params = SamplingParams(seed=2, max_tokens=60, logprobs=1, n=2, **FORMS[form])  # type: ignore[arg-type]
        requests = [Request(prompt_ids=prompt, params=params)]
        plain = new_engine(llm)
        forbid_drafts(plain)
        expected = _texts(plain, requests)
        for manner in MANNERS:
            engine = new_engine(llm)
            force_drafts(engine, {id(requests[0]): expected[0]}, manner)
            assert _texts(engine, requests) == expected, manner


@pytest.mark.usefixtures("no_end_tokens")
def test_a_rejected_row_that_is_not_a_number_harms_nobody(
    dense: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Request(prompt_ids=PROMPT, params=SamplingParams(seed=5, max_tokens=9, logprobs=1))
    answers = _answers(dense, [request])
    forward = Model.forward

    def damaged(model: Model, *args: Any, **options: Any) -> FloatArray:
        rows = forward(model, *args, **options).copy()
        rows[1:] = np.nan
        return rows

    monkeypatch.setattr(Model, "forward", damaged)
    engine = new_engine(dense)
    force_drafts(engine, answers, "wrong")
    assert _texts(engine, [request]) == [answers[id(request)]]
    # A row that counts is looked at.
    force_drafts(engine, answers, "right")
    handle = engine.submit(request)
    (error,) = [output.error for output in run(engine, [handle])[handle, 0] if output.is_last]
    assert isinstance(error, NumericsError)
