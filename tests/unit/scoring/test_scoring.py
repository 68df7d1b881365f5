"""Scores of texts and logits of prompts, against a softmax of each prefix computed anew."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from powerinfer import LLM, NumericsError, PromptError, SamplingParams, Score
from powerinfer.engine.perplexity import perplexity_windows
from powerinfer.models import Model
from powerinfer.prompts.texts import Scorable
from powerinfer.tokenizer import Tokenizer
from powerinfer.values import Batch, FloatArray, IntArray

OpenLLM = Callable[..., LLM]
PAIRS: list[Scorable] = [
    ("the dog", " ran"),
    ("the dog", " sat down"),
    "a text alone",
    ("a cat", " sat"),
    ("the dog", " ran"),
]


@pytest.fixture
def open_llm(tiny: Path) -> OpenLLM:
    def opened(**options: Any) -> LLM:
        return LLM(tiny, **({"kernels": "reference"} | options))

    return opened


@pytest.fixture
def num_computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of each step that any model computes."""
    counts: list[int] = []
    forward = Model.forward

    def counting(self: Model, batch: Batch, *args: Any, **options: Any) -> FloatArray:
        counts.append(batch.num_tokens)
        return forward(self, batch, *args, **options)

    monkeypatch.setattr(Model, "forward", counting)
    return counts


def by_hand(llm: LLM, token_ids: list[int], first: int) -> list[float]:
    """The log probability of each token from the `first` on, prefix after prefix."""
    found = []
    for end in range(first, len(token_ids)):
        logits = llm.new_sequence().extend(token_ids[:end]).astype(np.float64)
        found.append(float(logits[token_ids[end]] - np.log(np.exp(logits).sum())))
    return found


def check(llm: LLM, score: Score, token_ids: list[int], first: int) -> None:
    assert score.token_ids == token_ids[first:]
    assert score.num_tokens == len(token_ids) - first
    # The steps differ; see tests/support/tolerances.py.
    assert score.token_logprobs == pytest.approx(by_hand(llm, token_ids, first), abs=2e-3)
    assert score.logprob == pytest.approx(sum(score.token_logprobs))


def test_a_text_alone_is_scored_behind_bos(open_llm: OpenLLM) -> None:
    llm = open_llm(batch_size=4)
    ids = llm.encode("hello world")
    assert ids[0] == llm.loaded.tokenizer.bos_id
    for text in ("hello world", b"hello world", ids, np.array(ids), ("", "hello world")):
        texts: Any = [text]
        check(llm, llm.score(texts)[0], ids, 1)
    assert llm.score("hello world") == llm.score(ids) == llm.score(["hello world"])


def test_without_bos_the_first_token_is_not_scored(
    open_llm: OpenLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tokenizer, "add_bos", False)
    llm = open_llm()
    ids = llm.encode("hello")
    assert ids[0] != llm.loaded.tokenizer.bos_id
    check(llm, llm.score("hello")[0], ids, 1)
    with pytest.raises(PromptError, match="no token precedes the continuation"):
        llm.score([("", "hello")])
    with pytest.raises(PromptError, match=r"has 1 tokens, BOS included: .* two are needed"):
        llm.score([ids[:1]])


def test_of_a_pair_the_continuation_is_scored(open_llm: OpenLLM) -> None:
    llm = open_llm()
    ids, front = llm.encode("the dog ran"), llm.encode("the dog")
    assert ids[: len(front)] == front
    for pair in (("the dog", " ran"), ("the dog ", "ran"), (b"the dog", b" ran")):
        check(llm, llm.score([pair])[0], ids, len(front))
    check(llm, llm.score([(ids[:2], ids[2:])])[0], ids, 2)


def test_a_token_across_the_border_belongs_to_the_continuation() -> None:
    """The embedded model's vocabulary has ` dog` and ` dogs`."""
    with LLM() as llm:
        ids, front = llm.encode("The dogs ran"), llm.encode("The dog")
        assert ids[:2] == front[:2]
        assert ids[2] != front[2]
        check(llm, llm.score([("The dog", "s ran")])[0], ids, 2)


def test_a_shared_context_is_computed_once(open_llm: OpenLLM, num_computed: list[int]) -> None:
    llm = open_llm()
    context = llm.encode("the quick brown fox")
    endings = [[20, 21, 22], [30], [40, 41]]
    pairs: list[Scorable] = [(context, ending) for ending in endings]
    llm.score([pairs[0], "abc", *pairs[1:], pairs[0]])
    abc = len(llm.encode("abc"))
    # The last token of each text predicts nothing that is scored.
    # The last token of a context is computed again: the logits after it are wanted.
    assert sum(num_computed) == (len(context) + 2) + (1 + 0) + (1 + 1) + (abc - 1)


def test_what_contexts_share_is_computed_once(open_llm: OpenLLM, num_computed: list[int]) -> None:
    llm = open_llm(parallel=1)
    start = [1, 20, 21, 22, 23, 24, 25, 26]
    pairs: list[Scorable] = [([*start, 30], [9]), ([*start, 31], [9]), (start[:6], [9])]
    scores = llm.score(pairs)
    assert num_computed == [6, 3, 1]
    assert scores == [llm.score([pair])[0] for pair in pairs]


@pytest.mark.parametrize(
    "options", [{"kernels": "reference"}, {"kernels": None}, {"batch_size": 2}]
)
def test_a_score_depends_on_nothing_else_in_the_call(
    open_llm: OpenLLM, options: dict[str, Any]
) -> None:
    llm = open_llm(**{"kernels": None, **options})
    alone = [llm.score([pair])[0] for pair in PAIRS]
    assert llm.score(PAIRS) == alone
    assert llm.score(PAIRS[::-1]) == alone[::-1]
    assert alone[0] == alone[4]
    assert len({score.logprob for score in alone}) == 4


def test_threads_change_no_bit_of_a_score(open_llm: OpenLLM) -> None:
    one, more = (open_llm(kernels=None, threads=threads) for threads in (1, 3))
    assert one.score(PAIRS) == more.score(PAIRS)


def test_what_greedy_decoding_would_give(open_llm: OpenLLM) -> None:
    llm = open_llm()
    greedy = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    context = llm.encode("hello")
    answer = llm.generate(context, greedy)[0].token_ids
    other = [*answer[:-1], answer[-1] ^ 1]
    pairs: list[Scorable] = [(context, answer), (context, other), (context, [answer[0] ^ 1])]
    assert [score.is_greedy for score in llm.score(pairs)] == [True, False, False]


def test_perplexity_of_windows_is_that_of_the_command(tiny: Path) -> None:
    """Of the second half of each window, with BOS in place of its first token."""
    window = 40
    with LLM(tiny, context_length=window, kernels="reference") as llm:
        bos_id = llm.loaded.tokenizer.bos_id
        ids = llm.encode("once upon a time there was")[1:] + list(range(3, 140))
        *_, expected = perplexity_windows(llm, ids, window)
        starts = range(0, len(ids) - window + 1, window)
        windows = [[bos_id, *ids[start + 1 : start + window]] for start in starts]
        half = window // 2 + 1
        pairs: Any = [(tokens[:half], tokens[half:]) for tokens in windows]
        scores = llm.score(pairs)
    num_tokens = sum(score.num_tokens for score in scores)
    assert num_tokens == expected.num_scored
    value = np.exp(-sum(score.logprob for score in scores) / num_tokens)
    # The steps differ, so that f16 roundings in the cache do now and then.
    assert value == pytest.approx(expected.value, rel=1e-5)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([("a", "")], "the text has an empty continuation"),
        (["a b", ("a ", "")], "text 2 of 2 has an empty continuation"),
        (["a b", ([5], [])], "text 2 of 2 has an empty continuation"),
        ([([], [5])], "no token precedes the continuation"),
        ([("a", [5])], "must be two texts or two lists of ids"),
        (["a b", ""], "text 2 of 2 has 1 tokens, BOS included"),
        (["a b", [5, 999]], "text 2 of 2: token ids must be from 0 to 287"),
        (["a b", [5, -1]], "text 2 of 2: token ids must be from 0 to 287"),
        (["a b", 7], r"text 2 of 2: a prompt is a text, UTF-8 bytes or a list of token ids, got 7"),
        (["a b", ("a", "b", "c")], "text 2 of 2: a prompt is a text"),
        (["a b", [1.5]], "text 2 of 2: a prompt is a text"),
        (7, "the text: a prompt is a text.*got 7"),
        (
            ["a b", "x" * 1000],
            "text 2 of 2 has at least 167 tokens, the context holds 16",
        ),
        ([("a", "x " * 10**7)], "the text has"),
        (["a b", [5] * 18], "text 2 of 2: it has 18 tokens, the context holds 16"),
        ([([5] * 9, [5] * 9)], r"the text has 18 tokens, .* larger context \(context_length\)"),
    ],
)
def test_what_cannot_be_scored_is_named_before_anything_is_computed(
    open_llm: OpenLLM, num_computed: list[int], texts: Any, message: str
) -> None:
    llm = open_llm(context_length=16)
    with pytest.raises(PromptError, match=message):
        llm.score(texts)
    assert num_computed == []


def test_a_text_may_have_one_token_more_than_the_context(open_llm: OpenLLM) -> None:
    llm = open_llm(context_length=16)
    score = llm.score([[5] * 17])[0]
    assert score.num_tokens == 16
    assert score.token_logprobs[:3] == pytest.approx(by_hand(llm, [5] * 4, 1), abs=2e-3)


def test_nothing_to_score_is_no_error(open_llm: OpenLLM) -> None:
    assert open_llm().score([]) == []


def test_logits_of_a_prompt_are_those_of_its_steps(open_llm: OpenLLM) -> None:
    llm = open_llm(kernels=None, batch_size=4)
    ids = llm.encode("hello world")
    every = llm.logits("hello world")
    np.testing.assert_array_equal(every, llm.new_sequence().extend_scored(ids, len(ids)))
    assert every.shape == (len(ids), 288)
    assert every.dtype == np.float32
    np.testing.assert_array_equal(llm.logits(ids), every)
    for last in (1, 5, np.int64(5)):
        found = llm.logits(ids, last=last)  # type: ignore[arg-type]
        np.testing.assert_array_equal(found, llm.new_sequence().extend_scored(ids, int(last)))


@pytest.mark.parametrize("last", [0, -1, 5, True, "2"])
def test_no_more_logits_than_tokens(open_llm: OpenLLM, last: Any) -> None:
    with pytest.raises(PromptError, match="last must be a whole number from 1 to 4"):
        open_llm().logits([1, 2, 3, 4], last=last)


def test_numbers_that_are_not_finite_are_reported(
    open_llm: OpenLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(
        _self: Model, batch: Batch, _cache: object, *, logits_for: IntArray, **_: object
    ) -> FloatArray:
        assert batch.num_tokens
        return np.full((len(logits_for), 288), np.nan, np.float32)

    llm = open_llm()
    monkeypatch.setattr(Model, "forward", broken)
    monkeypatch.setattr(
        "powerinfer.loading.loader.find_nonfinite_layer", lambda *_: "layer 1 (FFN)"
    )
    for call in (lambda: llm.logits("a"), lambda: llm.score("a b")):
        with pytest.raises(NumericsError, match=r"layer 1 \(FFN\)"):
            call()


def test_a_stream_is_ended_and_generation_goes_on_as_before(open_llm: OpenLLM) -> None:
    llm = open_llm(reuse_prefix=True)
    params = SamplingParams(temperature=0, max_tokens=5)
    expected = llm.generate("hello", params)[0].token_ids
    llm.score([("hello", " there"), ("hello", " dog")])
    llm.logits("hello there")
    assert llm.generate("hello", params)[0].token_ids == expected


def test_threads_wait_for_each_other(open_llm: OpenLLM) -> None:
    llm = open_llm(kernels=None)
    calls: list[Callable[[], Any]] = [
        lambda: llm.score(PAIRS),
        lambda: llm.logits("hello").tolist(),
        lambda: llm.embed("hello").tolist(),
        lambda: llm.generate("hello", SamplingParams(temperature=0, max_tokens=5))[0].token_ids,
    ]
    expected = [call() for call in calls]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda call: call(), calls * 5))
    assert found == expected * 5
