"""Texts that follow a schema, an expression or a grammar, written by random logits."""

import gc
import json
import re
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from grammar_cases import REAL, real_tokenizer, small_tokenizer, written
from powerinfer import LLM
from powerinfer.errors import PromptError
from powerinfer.sampling.grammar.constraint import Constraint
from powerinfer.sampling.grammar.vocabulary import grammar_vocabulary
from powerinfer.sampling.sampler import new_sampler
from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.tokenizer.tokenizer import Tokenizer
from powerinfer.values import FloatArray
from tiny_models import TINY_MODELS, write_model
from tokenizer_metadata import small_sentencepiece

SMALL = ("sentencepiece", "byte level", "no end")
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "likes": {"type": "array", "items": {"enum": ["tea", "wine"]}, "maxItems": 3},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}
EXPRESSIONS = (
    "[a-z]{2,5}[0-9]{1,4}/é?",
    "(true|false|null)",
    "^x y?$",
    "(ab|a)(bc|c)d{0,3}",
    "[^a-z ]{3}",
    "日本(語|人)",
    "",
)
# The large vocabularies take seconds to read.
real = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in ("llama3", "qwen2") else name
        for name in REAL
    ],
)


def allowed(constraint: Constraint, tokenizer: Tokenizer) -> set[int]:
    """Ids that may come next."""
    masked = constraint.mask(np.zeros(tokenizer.vocab_size, np.float32))
    return set(np.flatnonzero(masked == 0).tolist())


@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_text_matches_its_expression_as_a_whole(kind: str, expression: str) -> None:
    tokenizer = small_tokenizer(kind)
    for seed in range(10):
        text = written(tokenizer, seed, regex=expression)
        assert text is not None
        assert re.fullmatch(expression, text), text


@pytest.mark.parametrize("kind", SMALL)
def test_a_text_is_what_its_schema_allows_without_white_space(kind: str) -> None:
    tokenizer = small_tokenizer(kind)
    for seed in range(10):
        text = written(tokenizer, seed, json_schema=PERSON)
        assert text is not None
        value = json.loads(text)
        assert list(value) == ["name", "age", "likes"]
        assert len(value["name"]) <= 20
        assert 0 <= value["age"] <= 150
        assert set(value["likes"]) <= {"tea", "wine"}
        assert text == json.dumps(value, separators=(",", ":"), ensure_ascii=False)


@real
def test_real_vocabularies_keep_to_a_form(name: str, data_dir: Path) -> None:
    tokenizer = real_tokenizer(name, data_dir)
    for seed in range(3):
        text = written(tokenizer, seed, json_schema=PERSON)
        assert text is not None
        assert list(json.loads(text)) == ["name", "age", "likes"]
        text = written(tokenizer, seed, regex="[a-z]{2,5}[0-9]{1,4}/é?|日本語")
        assert text is not None
        assert re.fullmatch("[a-z]{2,5}[0-9]{1,4}/é?|日本語", text)


@real
def test_text_that_must_come_is_cut_as_the_tokenizer_cuts_it(name: str, data_dir: Path) -> None:
    tokenizer = real_tokenizer(name, data_dir)
    text = '{"first name":"日本 x"} done'
    sampler = new_sampler(tokenizer, SamplingParams(temperature=0, regex=re.escape(text)), [1])
    ids: list[int] = []
    while not sampler.is_complete:
        ids.append(sampler.sample(np.zeros(tokenizer.vocab_size, np.float32)))
    assert ids == tokenizer.encode_inside(text)


@pytest.mark.parametrize("kind", SMALL)
def test_a_complete_text_ends_without_an_end_token(kind: str) -> None:
    tokenizer = small_tokenizer(kind)
    constraint = Constraint(tokenizer, SamplingParams(regex="a|ab"))
    assert not constraint.is_complete
    (a,) = tokenizer.encode_inside("a")
    (b,) = tokenizer.encode_inside("b")
    constraint.accept(a)
    assert not constraint.is_complete
    assert allowed(constraint, tokenizer) == {b, *tokenizer.eog_ids}
    constraint.accept(b)
    assert constraint.is_complete


def test_an_empty_text_may_be_complete_from_the_start() -> None:
    tokenizer = small_tokenizer("no end")
    assert Constraint(tokenizer, SamplingParams(regex="")).is_complete
    assert written(tokenizer, 0, grammar='root ::= ""') == ""


def test_an_end_token_ends_a_text_that_may_go_on() -> None:
    tokenizer = small_tokenizer("byte level")
    constraint = Constraint(tokenizer, SamplingParams(regex="a+"))
    constraint.accept(*tokenizer.encode_inside("a"))
    assert tokenizer.eog_ids <= allowed(constraint, tokenizer)
    constraint.accept(*tokenizer.eog_ids)
    assert constraint.is_complete


def test_without_ends_a_text_goes_on_until_nothing_can_follow() -> None:
    tokenizer = small_tokenizer("byte level")
    for seed in range(5):
        assert written(tokenizer, seed, regex="a{1,9}", ignore_eos=True) == "a" * 9


def test_the_first_space_that_a_vocabulary_drops_is_not_part_of_the_text() -> None:
    tokenizer = small_tokenizer("sentencepiece")
    for prompt_ids in ((), (1,)):
        texts = {written(tokenizer, seed, prompt_ids, regex=" ?hello") for seed in range(30)}
        assert texts == {"hello", " hello"}
        assert {written(tokenizer, seed, prompt_ids, regex="  b") for seed in range(9)} == {"  b"}
    inside = tuple(tokenizer.encode("a", add_bos=False))
    assert {written(tokenizer, seed, inside, regex=" hello") for seed in range(9)} == {" hello"}


def test_prompts_are_no_part_of_the_form() -> None:
    tokenizer = small_tokenizer("byte level")
    prompt_ids = tuple(tokenizer.encode('{"a":'))
    assert written(tokenizer, 0, prompt_ids, regex="x") == "x"


def test_special_tokens_are_no_text() -> None:
    tokenizer = small_tokenizer("byte level")
    constraint = Constraint(tokenizer, SamplingParams(regex="<.end.>(?s:.)*"))
    assert not allowed(constraint, tokenizer) & tokenizer.eog_ids
    for letter in "<|end|>":
        constraint.accept(*tokenizer.encode_inside(letter))
    # As an end it may come now.
    assert tokenizer.eog_ids <= allowed(constraint, tokenizer)


def test_of_tokens_with_the_same_bytes_the_one_of_the_tokenizer_is_chosen() -> None:
    tokenizer = small_tokenizer("sentencepiece")
    constraint = Constraint(tokenizer, SamplingParams(regex="[a-f]"))
    wanted = {tokenizer.encode_inside(letter)[0] for letter in "abcdef"}
    assert allowed(constraint, tokenizer) == wanted
    # Letters are pieces, f is written as a byte.
    assert {each >= 259 for each in wanted} == {True, False}


def test_logits_beyond_the_vocabulary_are_banned() -> None:
    tokenizer = small_tokenizer("no end")
    constraint = Constraint(tokenizer, SamplingParams(regex="[ab]+"))
    for size in (tokenizer.vocab_size, tokenizer.vocab_size + 1, tokenizer.vocab_size + 500):
        logits = np.arange(size, dtype=np.float32)
        masked = constraint.mask(logits)
        kept = np.flatnonzero(masked > -np.inf)
        assert kept.tolist() == sorted(tokenizer.encode_inside("a") + tokenizer.encode_inside("b"))
        np.testing.assert_array_equal(masked[kept], logits[kept])
        np.testing.assert_array_equal(logits, np.arange(size))


def test_what_the_form_allows_may_be_banned_otherwise() -> None:
    tokenizer = small_tokenizer("byte level")
    (a,) = tokenizer.encode_inside("a")
    params = SamplingParams(regex="a", logit_bias={a: -np.inf}, temperature=0)
    with pytest.raises(PromptError, match="no token is left to choose: every token that the form"):
        new_sampler(tokenizer, params, [0]).sample(np.zeros(tokenizer.vocab_size, np.float32))


def test_the_form_comes_after_processors_and_before_filters() -> None:
    tokenizer = small_tokenizer("byte level")
    (a,), (b,), (c,) = (tokenizer.encode_inside(letter) for letter in "abc")
    seen: list[FloatArray] = []

    def processor(_ids: object, logits: FloatArray) -> FloatArray:
        seen.append(logits.copy())
        logits[b] += 5
        return logits

    logits = np.zeros(tokenizer.vocab_size, np.float32)
    logits[c] = 9
    for temperature in (0.0, 1.0):
        params = SamplingParams(
            regex="[ab]", top_k=1, temperature=temperature, logits_processors=[processor]
        )
        assert new_sampler(tokenizer, params, [0]).sample(logits) == b
    assert all(np.isfinite(each).all() for each in seen)
    assert a != b


def test_texts_of_a_request_share_a_compiled_form_and_nothing_else() -> None:
    tokenizer = small_tokenizer("byte level")
    together = [Constraint(tokenizer, SamplingParams(json_schema=PERSON, n=3)) for _ in range(7)]
    begin = tokenizer.encode_inside('{"name":"')
    for number, constraint in enumerate(together):
        for token_id in begin[: number + 1]:
            constraint.accept(token_id)
    for number, constraint in enumerate(together):
        assert allowed(constraint, tokenizer) == {begin[number + 1]}


def test_a_vocabulary_is_kept_once_and_goes_with_its_tokenizer() -> None:
    tokenizer = Tokenizer.from_metadata(small_sentencepiece(eos_token_id=2))
    vocabulary = grammar_vocabulary(tokenizer)
    assert grammar_vocabulary(tokenizer) is vocabulary
    Constraint(tokenizer, SamplingParams(regex="abc|[a-z]+"))
    gone = weakref.ref(tokenizer), weakref.ref(vocabulary)
    del tokenizer, vocabulary
    gc.collect()
    assert [each() for each in gone] == [None, None]


def test_the_engine_keeps_to_a_form(tmp_path: Path) -> None:
    path = write_model(tmp_path / "tiny.gguf", TINY_MODELS["llama"])
    with LLM(path) as llm:
        for temperature in (0.0, 5.0):
            params = SamplingParams(regex="[0-9]{3}-[a-c]{2}", temperature=temperature, seed=3)
            first, second = llm.generate("Hello", params)[0], llm.generate("Hello", params)[0]
            assert re.fullmatch("[0-9]{3}-[a-c]{2}", first.text)
            assert (first.text, first.finish_reason) == (second.text, "stop")
        several = SamplingParams(json_schema=PERSON, n=3, seed=1, max_tokens=200, logprobs=2)
        for each in llm.generate("Hello", several):
            assert each.logprobs is not None
            assert all(np.isfinite(one.logprob) for one in each.logprobs)
            if each.finish_reason == "stop":
                assert set(json.loads(each.text)) == {"name", "age", "likes"}
        cut = llm.generate("Hello", SamplingParams(regex="a{50}", max_tokens=3))[0]
        assert (cut.finish_reason, set(cut.text)) == ("length", {"a"})
        with pytest.raises(PromptError, match="cannot be enforced"):
            llm.generate("Hello", SamplingParams(regex="(a"))


def test_a_step_that_is_undone_leaves_the_form_as_it_was() -> None:
    tokenizer = small_tokenizer("sentencepiece")
    params = SamplingParams(regex="( ?hello|abc){2}!", seed=1)
    sampler = new_sampler(tokenizer, params, ())
    logits = np.random.default_rng(0).normal(size=(40, tokenizer.vocab_size)).astype(np.float32)
    ids: list[int] = []
    for row in logits:
        if sampler.is_complete:
            break
        kept = sampler.state
        first = sampler.sample(row)
        sampler.state = kept
        assert not sampler.is_complete
        assert sampler.sample(row) == first
        ids.append(first)
    assert sampler.is_complete
    assert re.fullmatch("( ?hello|abc){2}!", tokenizer.decode(ids))


def test_texts_with_forms_are_the_same_alone_and_side_by_side(tmp_path: Path) -> None:
    path = write_model(tmp_path / "tiny.gguf", TINY_MODELS["llama"])
    forms: list[dict[str, object]] = [
        {"json_schema": PERSON},
        {"regex": "[a-z]{2,9}( [a-z]{2,9}){3}"},
        {"grammar": 'root ::= "(" root ")" | [0-9]{1,5}'},
        {},
    ]
    every = [
        SamplingParams(temperature=2.0, seed=seed, max_tokens=30, logprobs=3, **form)  # type: ignore[arg-type]
        for seed in range(2)
        for form in forms
    ]
    with LLM(path) as llm:
        together = llm.generate(["Hello"] * len(every), every)
        for params, found in zip(every, together, strict=True):
            (alone,) = llm.generate("Hello", params)
            assert (alone.token_ids, alone.text) == (found.token_ids, found.text)
            assert alone.logprobs == found.logprobs


def test_a_form_that_becomes_too_complex_ends_its_own_text(tmp_path: Path) -> None:
    path = write_model(tmp_path / "tiny.gguf", TINY_MODELS["llama"])
    greedy = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
    # Counts within counts: each character doubles what the lexer has to keep in mind.
    deep = replace(greedy, regex="(.{1,300}){1,300}x")
    with LLM(path) as llm:
        (wanted,) = llm.generate("Hello", greedy)
        streams = [llm.stream("Hello", params) for params in (deep, greedy)]
        with pytest.raises(PromptError, match="cannot follow its form any further"):
            list(streams[0])
        assert "".join(streams[1]) == wanted.text
