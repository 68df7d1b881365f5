"""Models with state: what later texts need not compute again, and that no bit depends on it."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from powerinfer import LLM, PowerInferError, PromptError, SamplingParams
from powerinfer.engine.engine import Engine
from powerinfer.engine.request import Request, RequestHandle
from scheduling_cases import all_alone, new_engine, run, text_of
from tiny_models import TINY_MODELS, write_model

pytestmark = pytest.mark.usefixtures("no_end_tokens")

PARAMS = SamplingParams(seed=5, max_tokens=4)
LONG = [10 + number * 7 % 250 for number in range(300)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = replace(TINY_MODELS["lfm2"], context_length=640)
    return write_model(tmp_path_factory.mktemp("models") / "tiny.gguf", model)


@pytest.fixture
def llm(path: Path) -> Iterator[LLM]:
    with LLM(path, kernels="reference", reuse_prefix=True) as llm:
        yield llm


def _request(prompt: Sequence[int], *ends: int, **changes: int) -> Request:
    params = replace(PARAMS, **changes)  # type: ignore[arg-type]
    return Request(prompt_ids=prompt, params=params, snapshot_positions=ends)


def _answers(llm: LLM, engine: Engine, request: Request) -> tuple[list[list[int]], int]:
    """Run a request, compare its texts with those alone; return them and what was cached."""
    handle = engine.submit(request)
    outputs = run(engine, [handle])
    texts = [text_of(outputs[handle, index]) for index in range(request.params.n)]
    assert texts == all_alone(llm.loaded, request)
    computed = [handle.metrics(index).prefill_tokens for index in range(request.params.n)]
    num_computed = len(request.prompt_ids) - handle.num_cached_tokens
    assert computed == [num_computed] + [0] * (request.params.n - 1)
    return [text.token_ids for text in texts], handle.num_cached_tokens


def test_a_chat_resumes_at_the_last_message(llm: LLM) -> None:
    """Its answer is prompt in the next turn, and computed again; what came before is not."""
    engine = new_engine(llm, kv_tokens=2048)
    (said,), num_cached = _answers(llm, engine, _request(LONG, 290))
    assert num_cached == 0
    # The end of the message is inside a block, and the beginning of the answer differs.
    second = [*LONG[:290], 20, *said, 21, *range(30, 62), *LONG[290:]]
    _, num_cached = _answers(llm, engine, _request(second, 290, len(second) - 10))
    assert num_cached == 290
    # Another message in place of the second.
    edited = [*LONG[:290], 20, *said, 21, *range(40, 60), *LONG[290:]]
    _, num_cached = _answers(llm, engine, _request(edited, 290, len(edited) - 10))
    assert num_cached == 290
    # The third turn goes on where the second was asked.
    third = [*second[:-10], 20, 44, 45, 46, 21, *range(40, 75), *LONG[290:]]
    _, num_cached = _answers(llm, engine, _request(third, 290, len(second) - 10, len(third) - 10))
    assert num_cached == len(second) - 10


def test_an_earlier_message_is_edited(llm: LLM) -> None:
    engine = new_engine(llm, kv_tokens=2048, state_interval=128)
    _answers(llm, engine, _request(LONG, 70, 75, 150, 230, 290))
    for length, expected in ((280, 230), (229, 150), (150, 150), (149, 70), (69, 0)):
        edited = [*LONG[:length], *range(100, 120)]
        # Else the place where it leaves the other prompt is a new place to go on.
        handle = engine.submit(replace(_request(edited), reuses_prefix=length > 0))
        run(engine, [handle])
        assert handle.num_cached_tokens == expected, length


def test_where_prompts_part_is_a_place_to_go_on(llm: LLM) -> None:
    engine = new_engine(llm, kv_tokens=2048)
    cached = [
        _answers(llm, engine, _request([*LONG[:170], 20 + number, 50]))[1] for number in range(4)
    ]
    # The first leaves its end, the second where it parted, and the others go on there.
    assert cached == [0, 0, 170, 170]


def test_a_repeated_prompt_pays_for_its_place_once(llm: LLM) -> None:
    """Its logits need its last token, so the state at its end does not help; one before it does."""
    engine = new_engine(llm, kv_tokens=2048, state_interval=128)
    cached = [_answers(llm, engine, _request(LONG))[1] for _ in range(4)]
    assert cached == [0, 256, 299, 299]


def test_long_texts_leave_states_at_intervals(llm: LLM) -> None:
    engine = new_engine(llm, kv_tokens=2048, state_interval=100, batch_size=64)
    _answers(llm, engine, _request(LONG))
    assert _answers(llm, engine, _request([*LONG[:299], 20]))[1] == 200
    # A longer prompt goes on at the end of the first.
    assert _answers(llm, engine, _request([*LONG, 20, 21]))[1] == 300


@pytest.mark.parametrize("parallel", [1, 2, 8])
@pytest.mark.parametrize("max_tokens", [0, 1, 4])
def test_texts_of_one_prompt_fork_its_state(llm: LLM, parallel: int, max_tokens: int) -> None:
    """Also one at a time, when the state after the prompt is held for those that wait."""
    engine = new_engine(llm, kv_tokens=1024, parallel=parallel, state_cache=0)
    request = _request(LONG[:80], n=4, max_tokens=max_tokens)
    others = [engine.submit(_request(LONG[number : number + 9], n=3)) for number in range(3)]
    score = Request(prompt_ids=LONG[:50], params=replace(PARAMS, max_tokens=0), prompt_logprobs=1)
    scored = engine.submit(score)
    _answers(llm, engine, request)
    assert all(handle.is_over for handle in (*others, scored))
    assert scored.prompt_logprobs is not None


def test_a_cancelled_text_leaves_its_states(llm: LLM) -> None:
    engine = new_engine(llm, kv_tokens=2048, batch_size=64, state_interval=128)
    handle = engine.submit(_request(LONG, 140, 290))
    while engine._queue.running == [] or engine._queue.running[0].sequence.num_computed < 200:
        engine.step()
    engine.cancel(handle)
    run(engine, [handle])
    assert _answers(llm, engine, _request(LONG, 290))[1] == 140


def test_a_text_cancelled_while_it_is_generated(llm: LLM) -> None:
    engine = new_engine(llm, kv_tokens=2048)
    handle = engine.submit(_request(LONG, 290, max_tokens=50))
    for _ in range(5):
        engine.step()
    engine.cancel(handle)
    run(engine, [handle])
    assert _answers(llm, engine, _request(LONG, 290))[1] == 290


def test_the_oldest_states_give_way(llm: LLM) -> None:
    engine = new_engine(llm, kv_tokens=4096, parallel=1, state_cache=0)
    states = engine._queue.cache.states
    assert states is not None
    assert states.num_slots == 4
    prompts = [[number, *LONG[:150]] for number in range(20, 26)]
    for prompt in prompts:
        _answers(llm, engine, _request(prompt, 140))
    # A text that runs needs two.
    assert states.num_unused == 2
    cached = [_answers(llm, engine, _request(prompt, 140))[1] for prompt in prompts[::-1]]
    assert cached == [140, 140, 0, 0, 0, 0]


def test_states_of_generated_tokens_are_not_kept(llm: LLM) -> None:
    engine = new_engine(llm, kv_tokens=2048)
    is_prompt = [number < 100 or number >= 120 for number in range(len(LONG))]
    request = replace(_request(LONG, 100, 200, 290), is_prompt=is_prompt)
    _answers(llm, engine, request)
    assert _answers(llm, engine, request)[1] == 0
    shared = replace(_request([*LONG, 20]), shares_answers=True)
    handle = engine.submit(shared)
    run(engine, [handle])
    assert handle.num_cached_tokens == 0


def test_requests_that_share_nothing_keep_nothing(llm: LLM) -> None:
    engine = new_engine(llm, kv_tokens=2048)
    _answers(llm, engine, replace(_request(LONG, 290), reuses_prefix=False))
    statistics = engine.statistics()
    assert (statistics.states_used, statistics.states_cached) == (0, 0)
    _answers(llm, engine, _request(LONG, 290))
    assert engine.statistics().states_cached == 1


def test_more_texts_than_states(llm: LLM) -> None:
    """What takes no place among the texts waits for a state."""
    engine = new_engine(llm, kv_tokens=4096, parallel=1, state_cache=0)
    score = Request(prompt_ids=LONG[:50], params=replace(PARAMS, max_tokens=0), prompt_logprobs=1)
    handles: list[RequestHandle] = [engine.submit(score) for _ in range(4)]
    handles += [engine.submit(_request(LONG[:20], n=2)) for _ in range(2)]
    run(engine, handles)
    assert len({str(handle.prompt_logprobs) for handle in handles[:4]}) == 1


def test_continuations_of_one_context_compute_it_once(llm: LLM) -> None:
    context = llm.decode(LONG[:150])
    scores = llm.score([(context, text) for text in ("a", "b", "c")])
    assert len({score.logprob for score in scores}) == 3
    statistics = llm._engine.statistics()
    assert statistics.cached_tokens > statistics.prompt_tokens / 2


def test_a_context_is_not_shifted(path: Path) -> None:
    with pytest.raises(PromptError, match="lfm2 cannot be shifted: its layers have a state"):
        LLM(path, kernels="reference", context_shift=True)


def test_a_sequence_goes_back_to_where_its_state_is_kept(llm: LLM) -> None:
    sequence = llm.new_sequence()
    sequence.extend(LONG[:20])
    logits = sequence.extend(LONG[20:30]).copy()
    with pytest.raises(PowerInferError, match="state after 25 tokens is not kept"):
        sequence.truncate(25)
    assert sequence.token_ids == LONG[:30]
    sequence.truncate(20)
    assert (sequence.extend(LONG[20:30]) == logits).all()
    sequence.truncate(0)
    assert (sequence.extend(LONG[:30]) == logits).all()


def test_states_count_in_the_memory_check(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    free = iter([50 << 20, 310 << 20])
    monkeypatch.setattr("powerinfer.loading.loader.available_memory_bytes", lambda: next(free))
    # Two slots of 512 bytes for each text.
    with pytest.raises(PromptError, match=r"and states of .* fewer texts at once"):
        LLM(path, kernels="reference", kv_tokens=64, parallel=1 << 16)
    with LLM(path, kernels="reference", parallel=1 << 16):
        assert re.search(r"KV cache for \d+ tokens .*, states 6\d\S* MiB\)", caplog.text)


def test_states_that_exceed_the_memory_are_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("powerinfer.loading.loader.available_memory_bytes", lambda: 60 << 20)
    refused = r"6\d\S* MiB of memory, but only 60\S* MiB are free: .*parallel.* kept states"
    with pytest.raises(PromptError, match="the states of texts take " + refused):
        LLM(path, kernels="reference", parallel=1 << 16)
    with pytest.raises(PromptError, match="64 tokens takes .* and states of " + refused):
        LLM(path, kernels="reference", parallel=1 << 16, context_length=64)
