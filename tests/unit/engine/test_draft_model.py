"""Drafts of a second model: it changes no bit, follows what was accepted, and counts as a cost."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import pytest

from command_line import assert_error, invoke
from forced_drafts import ask_draft_model
from powerinfer import LLM, SamplingParams
from powerinfer.engine.drafts.draft_model import DraftModel, Wish
from powerinfer.engine.drafts.drafter import NO_DRAFT, Draft
from powerinfer.engine.drafts.ngram import NgramDrafter
from powerinfer.engine.engine import Engine
from powerinfer.engine.request import Request, RequestHandle
from powerinfer.errors import PowerInferError, PromptError, UnsupportedError
from scheduling_cases import WholeText, all_alone, new_engine, run, text_of
from tiny_models import TINY_MODELS, TinyModel, write_model

CONTEXT = 96
PROMPT = [10 + number * 7 % 250 for number in range(40)]
TARGET = replace(TINY_MODELS["llama"], context_length=CONTEXT)
# Of other sizes, and wrong as a rule.
OTHER = replace(TINY_MODELS["qwen2"], context_length=CONTEXT)

Models: TypeAlias = dict[str, LLM]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def _write(folder: Path, name: str, model: TinyModel, seed: int = 0) -> Path:
    return write_model(folder / f"{name}.gguf", model, seed)


@pytest.fixture(scope="module")
def models(folder: Path) -> Iterator[Models]:
    """One model with drafts of itself, of another one, and a recurrent one with drafts."""
    target, other = _write(folder, "target", TARGET), _write(folder, "other", OTHER, seed=3)
    recurrent = _write(folder, "lfm2", replace(TINY_MODELS["lfm2"], context_length=CONTEXT))
    named = {"itself": (target, target), "other": (target, other), "recurrent": (recurrent, other)}
    opened = {name: LLM(a, draft_model=b, threads=2) for name, (a, b) in named.items()}
    yield opened
    for llm in opened.values():
        llm.close()


def _engine(llm: LLM, *, kv_tokens: int = 8 * CONTEXT, context_shift: bool = False) -> Engine:
    """An engine whose draft model has as much room, and is asked whenever that is possible."""
    loaded = llm.loaded
    assert loaded.draft is not None
    draft = replace(loaded.draft, options=replace(loaded.draft.options, kv_tokens=kv_tokens))
    options = replace(loaded.options, kv_tokens=kv_tokens, context_shift=context_shift)
    engine = Engine(replace(loaded, options=options, draft=draft))
    ask_draft_model(engine)
    return engine


def _reader(engine: Engine) -> DraftModel:
    assert engine._drafts._model is not None
    return engine._drafts._model._model


def _run(engine: Engine, requests: list[Request]) -> tuple[list[RequestHandle], list[WholeText]]:
    handles = [engine.submit(request) for request in requests]
    outputs = run(engine, handles)
    texts = [
        text_of(outputs[handle, index])
        for handle in handles
        for index in range(handle.request.params.n)
    ]
    return handles, texts


def _check(llm: LLM, requests: list[Request]) -> list[RequestHandle]:
    """Compare texts with those alone; returns their handles."""
    expected = [text for request in requests for text in all_alone(llm.loaded, request)]
    engine = _engine(llm)
    handles, texts = _run(engine, requests)
    assert texts == expected
    _is_empty(engine)
    return handles


def _is_empty(engine: Engine) -> None:
    reader = _reader(engine)
    reader.sweep()
    reader._cache.check_integrity()
    assert reader._cache.num_used_blocks == 0


REQUESTS = [
    Request(prompt_ids=PROMPT, params=SamplingParams(temperature=0, max_tokens=20, logprobs=2)),
    Request(
        prompt_ids=PROMPT[:23],
        params=SamplingParams(temperature=0.8, max_tokens=18, seed=7, logprobs=0, n=2),
    ),
    Request(
        prompt_ids=PROMPT[5:],
        params=SamplingParams(
            temperature=1.5, seed=3, max_tokens=11, repeat_penalty=1.3, logit_bias={17: 4.0}
        ),
    ),
]


@pytest.mark.usefixtures("no_end_tokens")
@pytest.mark.parametrize("name", ["itself", "other", "recurrent"])
def test_texts_are_those_without(models: Models, name: str) -> None:
    requests = [
        replace(each, params=replace(each.params, seed=each.params.seed or 1)) for each in REQUESTS
    ]
    drafted = _check(models[name], requests)
    one_by_one = [_check(models[name], [request])[0] for request in requests]
    metrics = [handle.metrics() for handle in (*drafted, *one_by_one)]
    assert any(each.num_drafted for each in metrics)
    if name == "itself":
        # Greedy, alone, all of them are right.
        greedy = one_by_one[0].metrics()
        assert greedy.num_accepted == greedy.num_drafted > 10


def test_forms(models: Models, folder: Path) -> None:
    form = r"(once|upon|a time| ){2,9}!"
    params = SamplingParams(seed=2, max_tokens=40, logprobs=1, n=2, regex=form)
    texts = []
    for draft_model in (None, folder / "target.gguf"):
        with LLM(folder / "target.gguf", threads=1, draft_model=draft_model) as llm:
            engine = new_engine(llm)
            if draft_model is not None:
                ask_draft_model(engine)
            request = Request(prompt_ids=llm.loaded.tokenizer.encode("Once"), params=params)
            texts.append(_run(engine, [request])[1])
    assert texts[0] == texts[1]


@pytest.mark.usefixtures("no_end_tokens")
def test_the_context_is_full(models: Models) -> None:
    for name in ("itself", "recurrent"):
        params = SamplingParams(temperature=0, max_tokens=None, seed=1)
        (handle,) = _check(models[name], [Request(prompt_ids=[*PROMPT, *PROMPT], params=params)])
        assert handle.num_generated == CONTEXT - 80 + 1


@pytest.mark.usefixtures("no_end_tokens")
def test_a_context_that_shifts(models: Models) -> None:
    request = Request(prompt_ids=PROMPT, params=SamplingParams(temperature=0, max_tokens=150))
    texts = []
    for is_drafted in (False, True):
        engine = _engine(models["itself"], context_shift=True)
        if not is_drafted:
            engine._drafts._model = None
        (handle,), (text,) = _run(engine, [request])
        texts.append(text)
    assert texts[0] == texts[1]
    assert handle.metrics().num_accepted > 30


@pytest.mark.usefixtures("no_end_tokens")
def test_a_smaller_context_ends_the_drafts(folder: Path) -> None:
    short = _write(folder, "short", replace(TARGET, context_length=64))
    with LLM(folder / "target.gguf", draft_model=short, threads=2) as llm:
        assert llm.loaded.draft is not None
        assert llm.loaded.draft.model.context_length == 64
        request = Request(
            prompt_ids=PROMPT, params=SamplingParams(temperature=0, max_tokens=50, seed=1)
        )
        engine = _engine(llm)
        (handle,), texts = _run(engine, [request])
        assert texts == all_alone(llm.loaded, request)
        (reading,) = _reader(engine)._held
        assert 60 <= len(reading.token_ids) <= 64
        assert handle.metrics().num_accepted > 10


@pytest.mark.usefixtures("no_end_tokens")
def test_its_keys_follow_accepted_tokens_and_prefixes(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = _engine(models["other"])
    reader, computed = _reader(engine), list[int]()
    forward = reader._forward

    def count(readings: list[object], wholes: list[list[int]], starts: list[int], *rest: int):  # type: ignore[no-untyped-def]
        computed.append(sum(map(len, wholes)) - sum(starts))
        return forward(readings, wholes, starts, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(reader, "_forward", count)
    prompt = [*PROMPT, *PROMPT[:34]]
    params = SamplingParams(temperature=0, max_tokens=12)
    _, (text,) = _run(engine, [Request(prompt_ids=prompt, params=params)])
    assert max(computed) == 74
    # No token twice: after wrong guesses it goes on behind what was accepted.
    assert sorted(computed)[-2] <= 4
    computed.clear()
    longer = Request(prompt_ids=[*prompt, *text.token_ids[:2]], params=params)
    _run(engine, [longer])
    assert max(computed) <= 12
    _is_empty(engine)


@pytest.mark.usefixtures("no_end_tokens")
def test_cancelled_texts_leave_nothing(models: Models) -> None:
    engine = _engine(models["itself"])
    params = SamplingParams(temperature=0, max_tokens=40)
    handles = [engine.submit(Request(prompt_ids=PROMPT[n:], params=params)) for n in range(3)]
    for _ in range(3):
        engine.step()
    assert _reader(engine)._cache.num_used_blocks
    engine.abandon(handles)
    _is_empty(engine)


@pytest.mark.usefixtures("no_end_tokens")
def test_without_room_for_another_text_it_drafts_for_those_it_has(models: Models) -> None:
    engine = _engine(models["itself"], kv_tokens=2 * CONTEXT)
    reader = _reader(engine)
    reader._cache.reserve("somebody", 2 * CONTEXT - 64)
    params = SamplingParams(temperature=0, max_tokens=20, seed=1)
    requests = [Request(prompt_ids=PROMPT[n:], params=params) for n in range(2)]
    expected = [text for each in requests for text in all_alone(models["itself"].loaded, each)]
    handles, texts = _run(engine, requests)
    assert texts == expected
    assert sum(handle.metrics().num_drafted > 0 for handle in handles) == 1


@pytest.mark.usefixtures("no_end_tokens")
def test_a_slow_one_is_hardly_asked(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = _engine(models["itself"])
    reader = _reader(engine)
    monkeypatch.setattr(reader.costs, "seconds", lambda _: 2.0)
    monkeypatch.setattr(reader, "guess", lambda *_: pytest.fail("it was asked"))
    params = SamplingParams(temperature=0, max_tokens=50)
    _run(engine, [Request(prompt_ids=PROMPT, params=params)])


@pytest.mark.usefixtures("no_end_tokens")
def test_a_wrong_one_falls_silent(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = _engine(models["other"])
    reader = _reader(engine)
    monkeypatch.setattr(reader.costs, "seconds", lambda _: 0.2)
    params = SamplingParams(temperature=0, max_tokens=50)
    (handle,), _ = _run(engine, [Request(prompt_ids=PROMPT, params=params)])
    metrics = handle.metrics()
    assert metrics.num_accepted < metrics.num_drafted < 25


@pytest.mark.usefixtures("no_end_tokens")
@pytest.mark.parametrize("name", ["itself", "other"])
def test_it_reads_on_now_and_then_to_see_whether_it_would_pay(
    models: Models, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time pays only for guesses that are right more often than is expected at first."""
    engine = _engine(models[name])
    reader, asked = _reader(engine), list[int]()
    monkeypatch.setattr(reader.costs, "seconds", lambda _: 0.8)
    # Nothing is looked up.
    monkeypatch.setattr(NgramDrafter, "propose", lambda *_: NO_DRAFT)
    guess = reader.guess

    def count(wishes: list[Wish], least: float) -> list[Draft]:
        asked.append(len(wishes))
        return guess(wishes, least)

    monkeypatch.setattr(reader, "guess", count)
    params = SamplingParams(temperature=0, max_tokens=56)
    (handle,), _ = _run(engine, [Request(prompt_ids=PROMPT, params=params)])
    if name == "itself":
        assert len(asked) > 5
        assert handle.metrics().num_accepted > 3
    else:
        assert len(asked) == 1


def test_settings_of_a_request(models: Models) -> None:
    for setting in ("off", "ngram"):
        engine = _engine(models["itself"])
        params = SamplingParams(temperature=0, max_tokens=9, draft=setting)
        _run(engine, [Request(prompt_ids=PROMPT, params=params)])
        assert not _reader(engine)._held


def _without_a_token(folder: Path) -> Path:
    return _write(folder, "vocabulary", replace(TARGET, vocab_size=TARGET.vocab_size + 8))


def _recurrent(folder: Path) -> Path:
    return _write(folder, "lfm2", replace(TINY_MODELS["lfm2"], context_length=CONTEXT))


@pytest.mark.parametrize(
    ("draft_model", "error", "message"),
    [
        (_without_a_token, UnsupportedError, r"has another vocabulary than .*: token \d+ is"),
        (_recurrent, UnsupportedError, "lfm2 has recurrent layers"),
        (lambda folder: folder / "nothing.gguf", PowerInferError, "nothing.gguf"),
    ],
)
def test_models_that_cannot_draft(
    folder: Path,
    draft_model: Callable[[Path], Path],
    error: type[PowerInferError],
    message: str,
) -> None:
    target = _write(folder, "target", TARGET)
    with pytest.raises(error, match=message):
        LLM(target, draft_model=draft_model(folder))


def test_options_that_contradict(folder: Path) -> None:
    target = _write(folder, "target", TARGET)
    with pytest.raises(PromptError, match="reference"):
        LLM(target, draft_model=target, kernels="reference")
    with pytest.raises(PromptError, match="CPU alone"):
        LLM(target, draft_model=target, device="cuda")


def test_on_the_command_line(folder: Path) -> None:
    target, other = _write(folder, "target", TARGET), _write(folder, "other", OTHER, seed=3)
    words = ("run", "-m", target, "-p", "once", "-n", "20", "--seed", "3")
    texts = [invoke(*words, *more).stdout for more in ((), ("--draft-model", other))]
    assert texts[0] == texts[1] != ""
    message = "name a --draft-model with the same vocabulary"
    assert_error(invoke(*words, "--draft-model", _without_a_token(folder)), message)
    silent = invoke(*words, "--draft-model", other, "--draft", "off")
    assert_error(silent, "--draft-model guesses with --draft auto: leave one out")
    several = invoke("serve", "-m", target, "-m", other, "--draft-model", other)
    assert_error(several, "--draft-model drafts for one model; serve one alone")
