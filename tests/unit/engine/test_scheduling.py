"""Many texts on one engine: each as if it were alone, whatever the others do."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from powerinfer import LLM, NumericsError, PromptError, SamplingParams
from powerinfer.engine.request import PromptRows, Request
from powerinfer.engine.text import TokenSequence
from powerinfer.kvcache.kv_cache import BLOCK_SIZE
from powerinfer.loading.loader import LoadedModel
from powerinfer.sampling.finish_reason import FinishReason
from powerinfer.values import FloatArray
from scheduling_cases import all_alone, alone, new_engine, new_sequence, run, text_of
from tiny_models import TINY_MODELS, write_model

pytestmark = pytest.mark.usefixtures("no_end_tokens")

PARAMS = SamplingParams(seed=5, max_tokens=9, logprobs=2)
PROMPTS = [[7, 8, 9], list(range(10, 90)), [20], list(range(10, 80)), [7, 8, 9, 11]]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny.gguf", TINY_MODELS["llama-relu"])


@pytest.fixture
def llm(tiny: Path) -> Iterator[LLM]:
    with LLM(tiny) as llm:
        yield llm


def _request(prompt: list[int], **changes: object) -> Request:
    return Request(prompt_ids=prompt, params=replace(PARAMS, **changes))  # type: ignore[arg-type]


def test_texts_side_by_side_are_those_alone(llm: LLM) -> None:
    engine = new_engine(llm, kv_tokens=1024)
    requests = [_request(prompt, seed=number) for number, prompt in enumerate(PROMPTS)]
    handles = [engine.submit(request) for request in requests]
    outputs = run(engine, handles)
    for handle in handles:
        assert text_of(outputs[handle, 0]) == alone(llm.loaded, handle.request)
        assert handle.num_generated == 9
        times = handle.times
        assert times.admitted is not None
        assert times.first_token is not None
        assert times.last is not None
        assert times.submitted <= times.admitted <= times.first_token <= times.last
    statistics = engine.statistics()
    assert (statistics.running, statistics.waiting, statistics.blocks_used) == (0, 0, 0)
    assert statistics.generated_tokens == 45
    assert statistics.prompt_tokens == sum(map(len, PROMPTS))
    assert statistics.steps < 20


def test_nothing_to_do(llm: LLM) -> None:
    engine = new_engine(llm)
    assert not engine.has_work
    assert engine.step() == []
    engine.check_integrity()


def test_a_step_gives_every_text_one_token(llm: LLM) -> None:
    engine = new_engine(llm)
    handles = [engine.submit(_request([number + 5], max_tokens=4)) for number in range(3)]
    for _ in range(4):
        outputs = engine.step()
        assert [handle for handle, _ in outputs] == handles
        assert all(len(output.token_ids) == 1 for _, output in outputs)
    assert not engine.has_work


def test_no_more_texts_at_once_than_asked_for(llm: LLM) -> None:
    engine = new_engine(llm, parallel=2, kv_tokens=1024)
    handles = [engine.submit(_request([number + 5])) for number in range(5)]
    most = 0

    def look(_: int) -> None:
        nonlocal most
        most = max(most, engine.statistics().running)

    run(engine, handles, look)
    assert most == 2
    ended = [handle.times.last or 0 for handle in handles]
    assert ended == sorted(ended)


@pytest.mark.parametrize("kv_tokens", [128, 192, 1024])
@pytest.mark.parametrize("max_tokens", [0, 1, 30])
def test_texts_of_one_prompt_compute_it_once(llm: LLM, kv_tokens: int, max_tokens: int) -> None:
    """Also where there is room for one of them at a time."""
    engine = new_engine(llm, kv_tokens=kv_tokens)
    other = engine.submit(_request([3, 4]))
    handle = engine.submit(_request(list(range(10, 80)), n=4, max_tokens=max_tokens))
    outputs = run(engine, [handle, other])
    texts = [text_of(outputs[handle, index]) for index in range(4)]
    assert texts == all_alone(llm.loaded, handle.request)
    assert [handle.metrics(index).prefill_tokens for index in range(4)] == [70, 0, 0, 0]
    assert text_of(outputs[other, 0]) == alone(llm.loaded, other.request)


def test_more_texts_of_one_prompt_than_may_run_at_once(llm: LLM) -> None:
    engine = new_engine(llm, parallel=2, kv_tokens=1024)
    handles = [engine.submit(_request([9, number], n=5)) for number in range(7, 10)]
    outputs = run(engine, handles)
    for handle in handles:
        texts = [text_of(outputs[handle, index]) for index in range(5)]
        assert texts == all_alone(llm.loaded, handle.request)


def test_the_last_position_of_a_text_is_promised_too(llm: LLM) -> None:
    """Two texts of two blocks each, which need the second for one position, in three blocks."""
    engine = new_engine(llm, kv_tokens=3 * BLOCK_SIZE)
    prompt = list(range(10, 10 + BLOCK_SIZE - 4))
    requests = [_request([number, *prompt[1:]], max_tokens=6) for number in (7, 8)]
    handles = [engine.submit(request) for request in requests]
    outputs = run(engine, handles)
    for handle in handles:
        assert text_of(outputs[handle, 0]) == alone(llm.loaded, handle.request)


def test_a_beginning_that_was_computed_before_is_not_computed_again(llm: LLM) -> None:
    engine = new_engine(llm, kv_tokens=1024)
    first, second = list(range(10, 150)), [*range(10, 140), 5, 6]
    handle = engine.submit(_request(first))
    run(engine, [handle])
    again, other, own = (
        engine.submit(_request(first)),
        engine.submit(_request(second)),
        engine.submit(Request(prompt_ids=first, params=PARAMS, reuses_prefix=False)),
    )
    outputs = run(engine, [again, other, own])
    assert (handle.num_cached_tokens, own.num_cached_tokens) == (0, 0)
    assert again.num_cached_tokens >= 128
    assert other.num_cached_tokens >= 128
    assert again.metrics().prefill_tokens == 140 - again.num_cached_tokens
    for each in (again, other, own):
        assert text_of(outputs[each, 0]) == alone(llm.loaded, each.request)
    assert engine.statistics().blocks_cached


@pytest.mark.parametrize("shares_answers", [False, True])
def test_answers_are_computed_again_unless_they_may_be_shared(
    llm: LLM, *, shares_answers: bool
) -> None:
    engine = new_engine(llm, kv_tokens=1024)
    first = engine.submit(_request([*range(10, 70)], max_tokens=70))
    made = text_of(run(engine, [first])[first, 0]).token_ids
    conversation = [*range(10, 70), *made, 5, 6]
    second = Request(prompt_ids=conversation, params=PARAMS, shares_answers=shares_answers)
    handle = engine.submit(second)
    text = text_of(run(engine, [handle])[handle, 0])
    assert (handle.num_cached_tokens > 64) == shares_answers
    if not shares_answers:
        assert text == alone(llm.loaded, second)
        return
    is_prompt = [True] * 60 + [False] * 70 + [True] * 2
    assert text == alone(llm.loaded, replace(second, is_prompt=is_prompt))


def test_marks_say_what_an_earlier_answer_was(llm: LLM) -> None:
    engine = new_engine(llm, kv_tokens=1024)
    is_prompt = [number % 7 < 4 for number in range(150)]
    request = Request(prompt_ids=list(range(10, 160)), params=PARAMS, is_prompt=is_prompt)
    handles = [engine.submit(request), engine.submit(_request([5]))]
    outputs = run(engine, handles)
    assert text_of(outputs[handles[0], 0]) == alone(llm.loaded, request)


def test_cancelling_frees_the_blocks_with_the_next_step(llm: LLM) -> None:
    engine = new_engine(llm, kv_tokens=1024)
    handle = engine.submit(_request(list(range(10, 80)), n=3, max_tokens=None))
    other = engine.submit(_request([5]))
    waiting = [engine.submit(_request([6], n=2)) for _ in range(9)]
    for _ in range(4):
        engine.step()
    for each in (handle, *waiting):
        engine.cancel(each)
    outputs = engine.step()
    ended = [(of, output) for of, output in outputs if of is not other]
    assert {output.finish_reason for _, output in ended} == {FinishReason.CANCELLED}
    assert len(ended) == 3 + 2 * len(waiting)
    assert engine.statistics().blocks_used == 1
    engine.cancel(handle)
    run(engine, [handle, other, *waiting])


def test_a_stream_goes_on_while_a_prompt_pauses_between_layers(llm: LLM) -> None:
    engine = new_engine(llm, is_slicing=True, kv_tokens=1024)
    num_layers = llm.loaded.model.config.num_layers
    stream = engine.submit(_request([5], max_tokens=40))
    while not stream.num_generated:
        engine.step()
    request = _request(list(range(10, 80)))
    long = engine.submit(request)
    before, num_steps = stream.num_generated, 0
    while not long.num_generated:
        engine.step()
        num_steps += 1
        assert stream.num_generated == before + num_steps
    assert num_steps % num_layers == 0
    given_up, after = engine.submit(_request([6] * 70)), engine.submit(request)
    engine.step()
    engine.cancel(given_up)
    outputs = run(engine, [stream, long, given_up, after])
    assert outputs[given_up, 0][-1].finish_reason is FinishReason.CANCELLED
    assert text_of(outputs[after, 0]) == alone(llm.loaded, request)


def test_a_request_that_can_never_run_is_refused(llm: LLM) -> None:
    engine = new_engine(llm, kv_tokens=64)
    with pytest.raises(PromptError, match="the prompt has 65 tokens, but only 64 fit"):
        engine.submit(_request([5] * 65))
    with pytest.raises(PromptError, match="the prompt is empty"):
        engine.submit(_request([]))
    with pytest.raises(PromptError, match="is_prompt has 1 entries, the prompt has 2 tokens"):
        engine.submit(Request(prompt_ids=[5, 6], params=PARAMS, is_prompt=[True]))
    assert not engine.has_work


def test_a_text_ends_where_context_or_blocks_do(llm: LLM) -> None:
    engine = new_engine(llm, kv_tokens=128)
    handle = engine.submit(_request([5] * 120, max_tokens=None))
    assert len(text_of(run(engine, [handle])[handle, 0]).token_ids) == 9
    engine = new_engine(llm)
    handle = engine.submit(_request([5] * 150, max_tokens=None))
    assert text_of(run(engine, [handle])[handle, 0]) == alone(llm.loaded, handle.request)
    assert handle.num_generated == 11


def test_the_stop_string_is_named(llm: LLM) -> None:
    engine = new_engine(llm)
    request = _request([5, 6], max_tokens=40)
    whole = alone(llm.loaded, request).text
    stop = whole[5:8]
    handle = engine.submit(_request([5, 6], max_tokens=40, stop=[stop, "never there"]))
    text = text_of(run(engine, [handle])[handle, 0])
    assert (text.text, text.stop) == (whole[: whole.index(stop)], stop)
    assert text == alone(llm.loaded, handle.request)


@pytest.mark.parametrize("num_top", [0, 3])
def test_log_probabilities_of_a_prompt(llm: LLM, num_top: int) -> None:
    engine = new_engine(llm, kv_tokens=1024)
    prompt = list(range(10, 150))
    request = Request(prompt_ids=prompt, params=PARAMS, prompt_logprobs=num_top)
    handles = [engine.submit(request), engine.submit(_request(prompt, n=2))]
    assert handles[0].prompt_logprobs is None
    outputs = run(engine, handles)
    found = handles[0].prompt_logprobs
    assert found is not None
    (score,) = llm.score([prompt])
    assert [each.logprob for each in found] == score.token_logprobs
    assert [each.token_id for each in found] == prompt[1:]
    assert {len(each.top) for each in found} == {num_top}
    assert handles[1].prompt_logprobs is None
    assert text_of(outputs[handles[0], 0]) == alone(llm.loaded, request)


@pytest.mark.parametrize("is_slicing", [False, True])
def test_rows_of_prompts_are_those_alone(llm: LLM, is_slicing: bool) -> None:
    """Logits and hidden states, which never share a step, beside texts that decode."""
    engine = new_engine(llm, is_slicing=is_slicing, kv_tokens=1024, batch_size=48)
    text = engine.submit(_request([5], max_tokens=30))
    prompt = list(range(10, 150))
    asked = [(PromptRows.LOGITS, 70), (PromptRows.STATES, 100), (PromptRows.LOGITS, 1)]
    handles = [engine.submit(_for_rows(prompt, kind, count)) for kind, count in asked]
    outputs = run(engine, [text, *handles])
    model = llm.loaded.model
    cache = model.new_cache()
    batch = cache.batch([(0, prompt, 0)], [True])
    rows = {
        PromptRows.LOGITS: model.forward(batch, cache),
        PromptRows.STATES: model.hidden_states(batch, cache),
    }
    for handle, (kind, count) in zip(handles, asked, strict=True):
        assert handle.prompt_rows is not None
        np.testing.assert_array_equal(handle.prompt_rows, rows[kind][-count:])
        assert handle.num_generated == 0
    assert text_of(outputs[text, 0]) == alone(llm.loaded, text.request)
    engine.check_integrity()


def test_hidden_states_pause_between_layers(llm: LLM) -> None:
    engine = new_engine(llm, is_slicing=True)
    handle = engine.submit(_for_rows(list(range(10, 40)), PromptRows.STATES, 5))
    num_steps = 0
    while engine.has_work:
        engine.step()
        num_steps += 1
    assert num_steps == llm.loaded.model.config.num_layers
    assert handle.is_over


def _for_rows(prompt: list[int], kind: PromptRows, count: int) -> Request:
    params = SamplingParams(max_tokens=0, seed=1)
    return Request(
        prompt_ids=prompt, params=params, prompt_rows=kind, num_rows=count, reuses_prefix=False
    )


def test_numbers_that_are_not_finite_end_their_own_text(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = type(llm.loaded.model)
    forward = model.forward

    def damaged(self: object, batch: object, *args: object, **named: object) -> FloatArray:
        logits = np.array(forward(self, batch, *args, **named))  # type: ignore[arg-type]
        rows = np.flatnonzero(np.asarray(batch.token_ids) == 13)  # type: ignore[attr-defined]
        if len(logits) == batch.num_tokens:  # type: ignore[attr-defined]
            logits[rows] = np.nan
        return logits

    monkeypatch.setattr(model, "forward", damaged)
    engine = new_engine(llm)
    bad, good = engine.submit(_request([13])), engine.submit(_request([5]))
    outputs = run(engine, [bad, good])
    (last,) = outputs[bad, 0]
    assert isinstance(last.error, NumericsError)
    assert "NaN" in str(last.error)
    assert last.finish_reason is None
    assert text_of(outputs[good, 0]).finish_reason == "length"


def test_a_processor_that_fails_ends_its_own_text(llm: LLM) -> None:
    def fails(token_ids: object, logits: FloatArray) -> FloatArray:
        raise ZeroDivisionError

    engine = new_engine(llm)
    bad, good = (
        engine.submit(_request([6], logits_processors=[fails])),
        engine.submit(_request([5])),
    )
    outputs = run(engine, [bad, good])
    error = outputs[bad, 0][-1].error
    assert isinstance(error, PromptError)
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert text_of(outputs[good, 0]) == alone(llm.loaded, good.request)


def test_a_text_nobody_reads_pauses_unless_somebody_waits(llm: LLM) -> None:
    engine = new_engine(llm, max_unread=4, parallel=2)
    slow = engine.submit(_request([6], max_tokens=30))
    other = engine.submit(_request([5], max_tokens=12))
    while not other.is_over:
        engine.run_step()
        other.unread.clear()
    assert len(slow.unread) == 4
    engine.run_step()
    assert len(slow.unread) == 4
    third, fourth = engine.submit(_request([5])), engine.submit(_request([5]))
    while not third.is_over:
        engine.run_step()
        third.unread.clear()
    assert len(slow.unread) > 4
    slow.unread.clear()
    while not (slow.is_over and fourth.is_over):
        engine.run_step()
        slow.unread.clear()
        fourth.unread.clear()
    assert not engine.has_work


def test_what_a_shared_step_reads_is_divided(llm: LLM) -> None:
    engine = new_engine(llm)
    alone_ = engine.submit(_request([5, 6]))
    run(engine, [alone_])
    handles = [engine.submit(_request([5, 6])) for _ in range(2)]
    run(engine, handles)
    one, (left, right) = alone_.metrics(), (handle.metrics() for handle in handles)
    assert left.active_neurons + right.active_neurons == 2 * one.active_neurons
    assert left.total_neurons + right.total_neurons == 2 * one.total_neurons
    assert (left.decode_steps, right.decode_steps) == (8, 8)
    assert left.decode_bytes < one.decode_bytes
    assert left.decode_bytes + right.decode_bytes > one.decode_bytes


@pytest.mark.parametrize("name", ["llama-relu", "opt", "opt-post-norm", "falcon", "nemotron"])
@pytest.mark.parametrize("keep_tokens", [0, 20])
def test_a_full_context_is_shifted(tmp_path: Path, name: str, keep_tokens: int) -> None:
    """What stays moves and is computed again, prompt as prompt and answers as answers."""
    with LLM(write_model(tmp_path / "m.gguf", TINY_MODELS[name]), threads=1) as llm:
        _check_shift(llm, keep_tokens)


def test_a_shift_keeps_the_start_and_the_newer_half() -> None:
    sequence = TokenSequence([1, 10, 11, 12, 13, 14, 15], [True] * 5 + [False] * 2)
    sequence.num_computed = 7
    sequence.append(16)
    sequence.num_computed = 8
    sequence.append(17)
    sequence.shift(2)
    assert sequence.token_ids == [1, 10, 14, 15, 16, 17]
    assert sequence.is_prompt == [True, True, False, False, False, False]
    assert (sequence.num_computed, sequence.num_pending) == (2, 3)
    assert sequence.pending_run(9) == ([14, 15, 16], False)
    with pytest.raises(PromptError, match="first 2 tokens are kept"):
        sequence.shift(2)


def _check_shift(llm: LLM, keep_tokens: int) -> None:
    loaded = replace(
        llm.loaded, options=replace(llm.loaded.options, context_shift=True, keep_tokens=keep_tokens)
    )
    engine = new_engine(llm, context_shift=True, keep_tokens=keep_tokens, kv_tokens=480)
    request = _request(list(range(10, 120)), max_tokens=200, n=2, temperature=0)
    handles = [engine.submit(request), engine.submit(_request([5]))]
    outputs = run(engine, handles)
    assert text_of(outputs[handles[0], 0]).token_ids == _shifted_by_hand(loaded, request)
    assert text_of(outputs[handles[0], 1]) == text_of(outputs[handles[0], 0])
    metrics = handles[0].metrics()
    assert metrics.prefill_tokens == 110
    assert metrics.decode_steps + metrics.num_accepted == 199
    assert text_of(outputs[handles[1], 0]) == alone(llm.loaded, handles[1].request)


def _shifted_by_hand(loaded: LoadedModel, request: Request) -> list[int]:
    """Greedy decoding; where the context is full, the newer half goes on in a new sequence."""
    num_kept = max(loaded.options.keep_tokens, int(request.prompt_ids[0] == 1))
    sequence, ids = new_sequence(loaded), list(request.prompt_ids)
    is_prompt = [True] * len(ids)
    logits = sequence.extend(ids, is_prompt=is_prompt)
    made: list[int] = []
    while len(made) < (request.params.max_tokens or 0):
        made.append(int(logits.argmax()))
        if not sequence.num_free:
            first = num_kept + (len(ids) - num_kept + 1) // 2
            ids, is_prompt = ids[:num_kept] + ids[first:], is_prompt[:num_kept] + is_prompt[first:]
            sequence = new_sequence(loaded)
            sequence.extend(ids, is_prompt=is_prompt)
        ids.append(made[-1])
        is_prompt.append(False)
        logits = sequence.append(made[-1])
    return made
