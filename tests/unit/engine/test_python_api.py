"""What an application calls: prompts and parameters, n texts, chat, encode and decode."""

import asyncio
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from powerinfer import LLM, PromptError, SamplingParams, UnsupportedError
from powerinfer.engine.engine import Engine
from powerinfer.tokenizer import Tokenizer

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
RANDOM = SamplingParams(seed=7, max_tokens=16, ignore_eos=True)


def test_parameters_for_each_prompt(llm: LLM) -> None:
    params = [GREEDY, RANDOM, replace(GREEDY, max_tokens=3)]
    prompts = ["hello", "world", "a"]
    found = llm.generate(prompts, params)
    alone = [llm.generate(*each)[0] for each in zip(prompts, params, strict=True)]
    assert [each.token_ids for each in found] == [each.token_ids for each in alone]
    assert llm.generate([], GREEDY) == []


@pytest.mark.parametrize(
    ("prompts", "params", "message"),
    [
        (["a", "b", "c"], [GREEDY, GREEDY], "there are 3 prompts and 2 sampling parameters"),
        ("a", [], "there are 1 prompts and 0 sampling parameters"),
        ("a", {"max_tokens": 3}, r"must be SamplingParams, such as .*got \{'max_tokens': 3\}"),
        (["a", "b"], [GREEDY, None, {}], r"must be SamplingParams.*got \{\}"),
        ("a", "greedy", "must be SamplingParams.*got 'greedy'"),
        (["a", []], GREEDY, "the prompt is empty: a prompt is a text.* at least one token"),
        ([[]], GREEDY, "the prompt is empty: a prompt is a text"),
        ([True], GREEDY, r"a list of token ids, got True"),
        ([[1, True]], GREEDY, r"a list of token ids, got \[1, True\]"),
        (np.array([True, False]), GREEDY, "a list of token ids, got"),
        (np.array(5), GREEDY, r"a list of token ids, got array\(5\)"),
        (np.array([1.0]), GREEDY, "a list of token ids, got"),
        (["a", "b" * 5000], GREEDY, "the context holds"),
        (["a", [300]], GREEDY, "ids must be from 0 to 287"),
        (["a", "b"], [GREEDY, replace(GREEDY, logit_bias={999: 1.0})], "names token 999"),
    ],
)
def test_all_is_checked_before_anything_is_computed(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, prompts: Any, params: Any, message: str
) -> None:
    def computed(*_: object) -> None:
        raise AssertionError("a step was computed")

    monkeypatch.setattr(Engine, "run_step", computed)
    with pytest.raises(PromptError, match=message):
        llm.generate(prompts, params)


def test_a_misspelt_parameter_names_the_nearest() -> None:
    with pytest.raises(UnsupportedError, match=r"'max_token' is not .*mean 'max_t"):
        SamplingParams(max_token=3)  # type: ignore[call-arg]
    with pytest.raises(UnsupportedError, match="Did you mean 'temperature'"):
        replace(GREEDY, temparature=3)  # type: ignore[call-arg]
    assert SamplingParams(0.5) == SamplingParams(temperature=0.5)
    assert pickle.loads(pickle.dumps(RANDOM)) == RANDOM


def test_a_budget_names_its_option() -> None:
    for wrong in ("x", "-1", "200%"):
        with pytest.raises(PromptError, match="vram_budget"):
            LLM(vram_budget=wrong)
    with pytest.raises(PromptError, match=r"vram_budget must be an amount .* got True"):
        LLM(vram_budget=True)


@pytest.mark.parametrize("options", [{}, {"context_length": 24, "context_shift": True}])
def test_n_texts_are_those_of_their_seeds(tiny: Path, options: Any) -> None:
    llm = LLM(tiny, threads=2, **options)
    params = replace(RANDOM, n=3, max_tokens=40)
    found = llm.generate(["hello", "world"], [params, replace(params, n=2, seed=100)])
    assert [each.seed for each in found] == [7, 8, 9, 100, 101]
    for each, prompt in zip(found, ["hello"] * 3 + ["world"] * 2, strict=True):
        alone = LLM.of(llm.loaded).generate(prompt, replace(params, n=1, seed=each.seed))[0]
        assert (each.text, each.token_ids) == (alone.text, alone.token_ids)
    assert len({tuple(each.token_ids) for each in found}) > 2


def test_n_texts_compute_their_prompt_once(llm: LLM) -> None:
    found = llm.generate("hello world", replace(GREEDY, n=3, seed=None))
    assert [each.metrics.prefill_tokens > 0 for each in found] == [True, False, False]
    assert len({each.text for each in found}) == 1
    assert [each.seed - found[0].seed for each in found] == [0, 1, 2]
    for one in (lambda params: llm.stream("a", params), lambda params: llm.chat(TALK, params)):
        with pytest.raises(PromptError, match="one text, got n = 3: leave n out, or use generate"):
            one(replace(GREEDY, n=3))


def test_bits_of_logits_are_the_same_after_the_first_text(tiny: Path) -> None:
    logits: dict[int, list[Any]] = {}

    def note(token_ids: Any, values: Any) -> Any:
        logits.setdefault(len(token_ids), []).append(values.copy())
        return values

    params = replace(GREEDY, n=2, logits_processors=[note])
    LLM(tiny, threads=2).generate("hello world", params)
    assert len(logits) == 12
    for first, second in logits.values():
        np.testing.assert_array_equal(first, second)


def test_encode_and_decode(llm: LLM) -> None:
    ids = llm.encode("hello world")
    assert llm.decode(ids) == "hello world"
    assert llm.decode(np.array(ids)) == "hello world"
    assert llm.encode(b"hello world") == ids
    assert llm.encode("hello world", add_bos=False) == ids[1:]
    assert llm.decode([]) == ""
    assert llm.decode(ids, skip_special=False) != "hello world"
    assert len(llm.encode("long " * 5000)) > llm.loaded.model.context_length
    assert llm.encode("</s>", add_bos=False) == [2] != llm.encode("</s>", parse_special=False)
    for wrong in ("text", 5, [1.5], [True], [288], [-1], None):
        with pytest.raises(PromptError, match="token ids"):
            llm.decode(wrong)  # type: ignore[arg-type]
    with pytest.raises(PromptError, match="only a text"):
        llm.encode([1, 2])  # type: ignore[arg-type]


def test_numbers_of_numpy_are_options_and_ids(tiny: Path) -> None:
    options: Any = {"context_length": np.int64(64), "context_shift": np.bool_(True)}
    llm = LLM(tiny, kernels="reference", **options)
    assert llm.loaded.model.context_length == 64
    assert type(llm.loaded.options.context_length) is int
    wanted = llm.generate([[1, 5], [1, 6]], GREEDY)
    found = llm.generate(np.array([[1, 5], [1, 6]]), GREEDY)
    assert [each.text for each in found] == [each.text for each in wanted]
    mixed: Any = [np.int32(1), 5]
    assert llm.generate(mixed, GREEDY)[0].text == wanted[0].text


TALK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]


def test_chat_uses_the_template_of_the_model(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[bot]"
    monkeypatch.setattr(Tokenizer, "chat_template", property(lambda _: template))
    ids = llm.chat_prompt(TALK)
    assert llm.decode(ids) == "[system]Be brief.[user]hello[bot]"
    assert llm.chat(TALK, GREEDY).text == llm.generate(ids, GREEDY)[0].text
    assert llm.chat_params(GREEDY) is GREEDY


def test_chat_without_a_template_does_not_speak_for_the_user(llm: LLM) -> None:
    params = llm.chat_params(replace(GREEDY, stop="x"))
    assert params.stop == ("x", "\nUser:")
    assert llm.chat_params(params) == params
    assert "".join(llm.stream(llm.chat_prompt(TALK), llm.chat_params(GREEDY))) == (
        llm.chat(TALK, GREEDY).text
    )


def test_an_answer_can_be_streamed(llm: LLM) -> None:
    answer = llm.chat(TALK, RANDOM)
    with llm.stream_chat(TALK, RANDOM) as stream:
        assert "".join(stream) == answer.text
    assert stream.generation.token_ids == answer.token_ids

    async def streamed() -> str:
        async with llm.astream_chat(TALK, RANDOM) as stream:
            return "".join([piece async for piece in stream])

    assert asyncio.run(streamed()) == answer.text


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ("hello", "messages must be a list such as"),
        (TALK[0], "messages must be a list such as"),
        ([], "there are no messages"),
        (["hello"], "message 0 is 'hello'; expected a mapping with 'role'"),
        ([TALK[0], {"role": "user"}], "the content of message 1 must be a text, it has none"),
        ([{"role": 3, "content": "a"}], r"message 0 is \{'role': 3.*a mapping with 'role'"),
        ([{"role": "user", "content": ["a"]}], r"content of message 0 .* got \['a'\]"),
        ([{"role": "user", "content": "long " * 9000}], "the context holds"),
    ],
)
def test_bad_messages_are_one_clear_error(llm: LLM, messages: Any, error: str) -> None:
    for use in (llm.chat, llm.chat_prompt, llm.stream_chat, llm.astream_chat):
        with pytest.raises(PromptError, match=error):
            use(messages)


def test_a_dictionary_is_no_list_of_prompts(llm: LLM) -> None:
    texts: Any = {"a": 1}
    for use in (llm.generate, llm.score, llm.embed):
        with pytest.raises(PromptError, match=r"a prompt is a text.*got \{'a': 1\}"):
            use(texts)
