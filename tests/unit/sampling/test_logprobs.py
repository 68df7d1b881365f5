"""Log probabilities of generated tokens, against a softmax in float64."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from command_line import assert_error, invoke
from powerinfer import LLM, PromptError, SamplingParams
from powerinfer.engine import text
from powerinfer.sampling.logprobs import TokenLogprob, token_logprob
from powerinfer.tokenizer import Tokenizer
from powerinfer.values import FloatArray

DRAWN = SamplingParams(
    seed=3,
    temperature=2.0,
    top_k=50,
    max_tokens=6,
    logprobs=4,
    presence_penalty=1.0,
    logit_bias={100: 3.0},
    ignore_eos=True,
)


@pytest.fixture
def llm(tiny: Path) -> LLM:
    return LLM(tiny, kernels="reference")


def softmax_log(logits: FloatArray) -> npt.NDArray[np.float64]:
    wide = logits.astype(np.float64)
    result: npt.NDArray[np.float64] = wide - np.log(np.exp(wide).sum())
    return result


def test_they_are_of_the_distribution_before_anything_changes_it(llm: LLM) -> None:
    result = llm.generate("hello", DRAWN)[0]
    assert result.logprobs is not None
    assert [each.token_id for each in result.logprobs] == result.token_ids
    ids = llm.encode("hello")
    for found in result.logprobs:
        expected = softmax_log(llm.new_sequence().extend(ids))
        # The steps differ, one token or all at once; see tests/support/tolerances.py.
        assert found.logprob == pytest.approx(expected[found.token_id], abs=1e-3)
        assert [token_id for token_id, _ in found.top] == np.argsort(-expected)[:4].tolist()
        np.testing.assert_allclose(
            [value for _, value in found.top], -np.sort(-expected)[:4], atol=1e-3
        )
        ids.append(found.token_id)


def test_they_change_nothing_else(llm: LLM) -> None:
    without = llm.generate("hello", replace(DRAWN, logprobs=None))[0]
    assert without.logprobs is None
    assert llm.generate("hello", DRAWN)[0].token_ids == without.token_ids


def test_nobody_pays_who_did_not_ask(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> TokenLogprob:
        raise AssertionError

    monkeypatch.setattr(text, "token_logprob", refuse)
    assert llm.generate("hello", replace(DRAWN, logprobs=None))[0].token_ids
    with pytest.raises(PromptError, match="AssertionError"):
        llm.generate("hello", DRAWN)


def test_the_token_that_ends_a_text_has_none(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    params = replace(DRAWN, ignore_eos=False, logprobs=0)
    monkeypatch.setattr(Tokenizer, "eog_ids", property(lambda _: frozenset()))
    ids = llm.generate("hello", params)[0].token_ids
    last = next(number for number, token_id in enumerate(ids) if token_id != ids[0])
    monkeypatch.setattr(Tokenizer, "eog_ids", property(lambda _: frozenset([ids[last]])))
    result = llm.generate("hello", params)[0]
    assert result.finish_reason == "stop"
    assert result.token_ids == ids[:last]
    assert [each.token_id for each in result.logprobs or ()] == ids[:last]
    assert [each.top for each in result.logprobs or ()] == [()] * last


def test_a_stream_shows_those_of_its_tokens_so_far(llm: LLM) -> None:
    stream = llm.stream("hello", DRAWN)
    next(stream)
    first = stream.generation
    assert first.logprobs is not None
    assert len(first.logprobs) == len(first.token_ids)
    for _ in stream:
        pass
    assert len(first.logprobs) == len(first.token_ids)


def test_equals_have_the_lower_id_first() -> None:
    row = np.array([1, 2, 0, 2], np.float32)
    total = np.log(np.exp([1.0, 2.0, 0.0, 2.0]).sum())
    found = token_logprob(row, 2, 3, piece=str)
    assert (found.token_id, found.text) == (2, "2")
    assert found.logprob == pytest.approx(-total)
    assert [token_id for token_id, _ in found.top] == [1, 3, 0]
    assert [value for _, value in found.top] == pytest.approx([2 - total, 2 - total, 1 - total])
    every = token_logprob(row, 2, 9, piece=str).top
    assert [token_id for token_id, _ in every] == [1, 3, 0, 2]


def test_large_logits_do_not_overflow() -> None:
    def logprob(row: list[int], token_id: int) -> float:
        return token_logprob(np.array(row, np.float32), token_id, 0, str).logprob

    assert logprob([30000, 0], 0) == 0
    assert logprob([30000, 0], 1) == -30000
    assert logprob([-30000, -30000], 1) == pytest.approx(-np.log(2))


def test_run_prints_them_when_asked(tiny: Path) -> None:
    command = ("run", "-m", str(tiny), "-p", "a", "-n", "3", "--temp", "0", "--ignore-eos")
    report = json.loads(invoke(*command, "--json", "--logprobs", "2").stdout)
    assert [each["token_id"] for each in report["logprobs"]] == report["token_ids"]
    for each in report["logprobs"]:
        assert each["top"][0] == [each["token_id"], each["logprob"]]
        assert len(each["top"]) == 2
        assert each["logprob"] < 0
    assert "logprobs" not in json.loads(invoke(*command, "--json").stdout)
    assert_error(invoke(*command, "--logprobs", "2"), "--logprobs adds to --json: give --json too")
