"""Bias, bans, penalties and a caller's functions: what they make of the logits."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from powerinfer import LLM
from powerinfer.errors import PromptError
from powerinfer.models import Model
from powerinfer.sampling.logit_processors import LogitChanges, check_biased_ids
from powerinfer.sampling.sampler import Sampler
from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.values import FloatArray
from tiny_models import TINY_MODELS, write_model

LOGITS = (2.0, -1.0, 0.5, 0.0)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder: Path = tmp_path_factory.mktemp("models")
    return LLM(write_model(folder / "tiny.gguf", TINY_MODELS["llama"]), kernels="reference")


def changed(
    token_ids: Sequence[int] = (), banned: Sequence[int] = (), **params: Any
) -> list[float]:
    logits = np.array(LOGITS, np.float32)
    result = LogitChanges(SamplingParams(**params), banned).apply(logits, token_ids)
    np.testing.assert_array_equal(logits, LOGITS)
    return [float(value) for value in result]


def test_nothing_asked_for_copies_nothing() -> None:
    logits = np.array(LOGITS, np.float32)
    assert LogitChanges(SamplingParams()).apply(logits, [1]) is logits
    assert (
        LogitChanges(SamplingParams(repeat_penalty=2.0, repeat_last_n=0)).apply(logits, [1])
        is logits
    )


@pytest.mark.parametrize(
    ("params", "wanted"),
    [
        # Token 0 occurs twice, token 1 once.
        ({"presence_penalty": 0.5}, [1.5, -1.5, 0.5, 0]),
        ({"frequency_penalty": 0.5}, [1, -1.5, 0.5, 0]),
        ({"frequency_penalty": -0.25}, [2.5, -0.75, 0.5, 0]),
        ({"repeat_penalty": 2.0}, [1, -2, 0.5, 0]),
        # llama.cpp: first the repeat penalty, then count * frequency + presence.
        (
            {"repeat_penalty": 2.0, "frequency_penalty": 0.25, "presence_penalty": 1.0},
            [-0.5, -3.25, 0.5, 0],
        ),
        # The window holds the last two: token 1 and token 0 once each.
        ({"frequency_penalty": 0.5, "repeat_last_n": 2}, [1.5, -1.5, 0.5, 0]),
        ({"frequency_penalty": 0.5, "repeat_last_n": 1}, [1.5, -1, 0.5, 0]),
        ({"presence_penalty": 0.5, "repeat_last_n": 0}, [2, -1, 0.5, 0]),
    ],
)
def test_penalties(params: dict[str, Any], wanted: list[float]) -> None:
    assert changed([0, 1, 0], **params) == wanted


def test_bias_is_added_before_the_penalties() -> None:
    assert changed(logit_bias={1: 3.0, 3: -100}) == [2, 2, 0.5, -100]
    # -1 + 3 = 2 is positive, so the penalty divides it.
    assert changed([1], logit_bias={1: 3.0}, repeat_penalty=2.0) == [2, 1, 0.5, 0]


def test_minus_infinity_bans_a_token_whatever_follows() -> None:
    banned = changed([0], logit_bias={0: -np.inf}, repeat_penalty=0.5, presence_penalty=-100)
    assert banned == [-np.inf, -1, 0.5, 0]
    params = SamplingParams(seed=0, logit_bias={0: -np.inf}, temperature=100, top_k=0, top_p=1.0)
    sampler = Sampler(params)
    drawn = {sampler.sample(np.array(LOGITS, np.float32)) for _ in range(200)}
    assert drawn == {1, 2, 3}


def test_a_share_that_rounds_up_to_the_total_draws_no_banned_token() -> None:
    class LastDraw:
        def random(self) -> float:
            return 1.0

    for filters in ({}, {"top_k": 3}, {"top_p": 1.0}):
        params: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0} | filters
        sampler = Sampler(SamplingParams(logit_bias={3: -np.inf, 1: -np.inf}, **params))
        sampler._random = LastDraw()  # type: ignore[assignment]
        assert sampler.sample(np.array(LOGITS, np.float32)) in (0, 2)


def test_bias_for_a_token_that_does_not_exist_is_refused() -> None:
    check_biased_ids(SamplingParams(logit_bias={3: 1.0}), 4)
    check_biased_ids(SamplingParams(), 4)
    with pytest.raises(PromptError, match=r"logit_bias names token 4; .* from 0 to 3"):
        check_biased_ids(SamplingParams(logit_bias={0: 1.0, 4: 1.0}), 4)


def test_processors_see_tokens_and_changed_logits_one_after_the_other() -> None:
    seen: list[tuple[list[int], list[float]]] = []

    def first(token_ids: Sequence[int], logits: FloatArray) -> FloatArray:
        seen.append((list(token_ids), logits.tolist()))
        return logits + np.float32(1)

    def second(token_ids: Sequence[int], logits: FloatArray) -> FloatArray:
        seen.append((list(token_ids), logits.tolist()))
        return -logits

    result = changed([0, 3], presence_penalty=1.0, logits_processors=[first, second])
    assert result == [-2, 0, -1.5, 0]
    assert seen == [([0, 3], [1, -1, 0.5, -1]), ([0, 3], [2, 0, 1.5, 0])]


def test_what_a_processor_is_given_is_its_own() -> None:
    ids, kept = [0, 3], []

    def clearing(token_ids: Sequence[int], logits: FloatArray) -> FloatArray:
        assert isinstance(token_ids, list)
        token_ids.clear()
        logits[:2] = 5
        kept.append(logits)
        return logits

    def keeping(token_ids: Sequence[int], logits: FloatArray) -> FloatArray:
        assert len(token_ids) == 2
        kept[0][:] = np.nan
        return logits

    assert changed(ids, logits_processors=[clearing, keeping]) == [5, 5, 0.5, 0]
    assert ids == [0, 3]


def test_a_processor_cannot_bring_banned_tokens_back() -> None:
    def level(_token_ids: Sequence[int], logits: FloatArray) -> FloatArray:
        assert np.isneginf(logits[2])
        return np.zeros_like(logits)

    assert changed(banned=[2], logits_processors=[level]) == [0, 0, -np.inf, 0]


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (None, "NoneType instead of an array float32[4]"),
        ([1.0] * 4, "list instead of an array float32[4]"),
        (np.zeros(4), "float64[4] instead of float32[4]"),
        (np.zeros((1, 4), np.float32), "float32[1, 4] instead of float32[4]"),
        (np.zeros(3, np.float32), "float32[3] instead of float32[4]"),
        (np.array([0, np.nan, 0, 0], np.float32), "NaN or infinity; of these only minus"),
        (np.array([0, np.inf, 0, 0], np.float32), "NaN or infinity; of these only minus"),
        (np.full(4, -np.inf, np.float32), "minus infinity for every token"),
    ],
)
def test_a_bad_result_names_its_processor(result: object, problem: str) -> None:
    def broken(_token_ids: Sequence[int], _logits: FloatArray) -> object:
        return result

    with pytest.raises(PromptError) as caught:
        changed(logits_processors=[broken])
    assert "logits processor test_a_bad_result_names_its_processor.<locals>.broken returned " in (
        str(caught.value)
    )
    assert problem in str(caught.value)


def test_a_processor_that_is_an_object_is_named_by_its_class() -> None:
    class Grammar:
        def __call__(self, _token_ids: Sequence[int], _logits: FloatArray) -> None:
            return None

    with pytest.raises(PromptError, match=r"processor .*Grammar returned NoneType"):
        changed(logits_processors=[Grammar()])


def test_a_vocabulary_that_is_banned_as_a_whole_is_an_error() -> None:
    with pytest.raises(PromptError, match="no token is left to choose"):
        changed(logit_bias=dict.fromkeys(range(4), -np.inf))


def test_a_processor_sees_the_prompt_and_what_was_generated(tiny: LLM) -> None:
    seen: list[list[int]] = []

    def only(token_ids: Sequence[int], logits: FloatArray) -> FloatArray:
        seen.append(list(token_ids))
        logits[:] = -np.inf
        logits[100 + len(seen)] = 0
        return logits

    prompt = tiny.encode("hello")
    params = SamplingParams(max_tokens=3, logits_processors=[only])
    assert tiny.generate(prompt, params)[0].token_ids == [101, 102, 103]
    assert seen == [prompt, [*prompt, 101], [*prompt, 101, 102]]


def test_bias_is_checked_before_anything_is_computed(
    tiny: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> FloatArray:
        raise AssertionError

    assert tiny.generate("a", SamplingParams(max_tokens=1, logit_bias={287: 1e9}))[0].token_ids == [
        287
    ]
    monkeypatch.setattr(Model, "forward", refuse)
    with pytest.raises(PromptError, match="logit_bias names token 288"):
        tiny.generate("a", SamplingParams(logit_bias={288: 1.0}))
