"""Our engine as a model of lm-eval: its answers are those of lm-eval's own `hf` model."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("lm_eval", reason="lm_eval is not installed")

from lm_eval.api.instance import Instance

from powerinfer import LLM, SamplingParams
from powerinfer.errors import PromptError, TokenizerError
from powerinfer.evaluation.engine_lm import EngineLM
from powerinfer.models import Model
from powerinfer.sampling.logprobs import token_logprob
from powerinfer.values import Batch
from tolerances import assert_close
from transformers_cases import Case
from transformers_tokenizer import BOS_ID, VOCAB_SIZE, as_metadata, as_transformers
from transformers_weights import save, transformers_model

CONTEXT_LENGTH = 64
PAIRS = [
    ("hello world", " old"),
    ("hello world", " word"),
    ("hello world", " hello hello"),
    # Spaces at the end of a context belong to the continuation.
    ("hello  ", "world"),
    ("hello\n ", " world"),
    # Without context: behind BOS.
    ("", "hello"),
    ("", "<|begin|>hello"),
    # BOS is not added to a text that begins with it.
    ("<|begin|>hello", " world"),
    # Longer than the context: the beginning goes.
    ("old " * 20, "hello world" * 2),
    ("w" * 64, "o"),
]
TEXTS = ["hello", "hello world, " * 3, "held words " * 20]


def _case(*, add_bos: bool) -> Case:
    keys = as_metadata(add_bos=add_bos) | {"powerinfer.ffn_activation": "relu"}
    metadata = {f"!{key}": value for key, value in keys.items()}
    sizes = {"vocab_size": VOCAB_SIZE, "max_position_embeddings": CONTEXT_LENGTH}
    return Case("Llama", "llama", sizes, metadata, hidden_act="relu")


@pytest.fixture(scope="module", params=[True, False], ids=["bos", "no-bos"])
def add_bos(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module")
def path(add_bos: bool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("models") / "tiny.gguf", _case(add_bos=add_bos))


@pytest.fixture(scope="module")
def llm(path: Path) -> Iterator[LLM]:
    with LLM(path) as llm:
        yield llm


@pytest.fixture(scope="module")
def theirs(add_bos: bool) -> Any:
    """lm-eval's `hf` model with the same weights and vocabulary."""
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    from lm_eval.models.huggingface import HFLM

    return HFLM(
        pretrained=transformers_model(_case(add_bos=add_bos)),
        tokenizer=as_transformers(add_bos=add_bos),
        batch_size=1,
    )


def _requests(kind: str, arguments: list[tuple[Any, ...]]) -> list[Instance]:
    return [
        Instance(request_type=kind, doc={}, arguments=each, idx=0, metadata=("task", index, 1))
        for index, each in enumerate(arguments)
    ]


def test_tokens_are_those_of_the_hf_model(llm: LLM, theirs: Any) -> None:
    lm = EngineLM(llm)
    for context, continuation in PAIRS:
        if context:
            expected = theirs._encode_pair(context, continuation)
            assert lm._encode_pair(context, continuation) == expected
        assert lm.tok_encode(continuation) == theirs.tok_encode(continuation)
    assert lm.prefix_token_id == theirs.prefix_token_id == BOS_ID
    assert lm.eot_token_id == theirs.eot_token_id
    assert lm.max_length == theirs.max_length == CONTEXT_LENGTH


@pytest.mark.parametrize("sparsity", ["off", "exact"])
def test_log_likelihoods_are_those_of_the_hf_model(
    path: Path, sparsity: str, theirs: Any, *, add_bos: bool
) -> None:
    requests = _requests("loglikelihood", PAIRS)
    with LLM(path, sparsity=sparsity) as llm:
        lm = EngineLM(llm)
        got = lm.loglikelihood(requests)
    expected = theirs.loglikelihood(requests, disable_tqdm=True)
    assert_close(
        np.array([logprob for logprob, _ in got]),
        np.array([logprob for logprob, _ in expected]),
        "transformers",
    )
    assert [is_greedy for _, is_greedy in got] == [bool(each) for _, each in expected]
    # The last context leaves room for one token besides the continuation, not for BOS too.
    assert lm.num_cut == 1 + add_bos


def test_rolling_log_likelihoods_are_those_of_the_hf_model(llm: LLM, theirs: Any) -> None:
    requests = _requests("loglikelihood_rolling", [(text,) for text in TEXTS])
    assert_close(
        np.array(EngineLM(llm).loglikelihood_rolling(requests)),
        np.array(theirs.loglikelihood_rolling(requests, disable_tqdm=True)),
        "transformers",
    )


def test_generated_texts_are_those_of_the_hf_model(llm: LLM, theirs: Any) -> None:
    wanted = {"until": ["l"], "max_gen_toks": 12, "do_sample": False}
    requests = _requests("generate_until", [("hello wor", wanted), ("old " * 20, wanted)])
    # A character that is not complete at the end is left out by us, and replaced by transformers.
    expected = [text.rstrip("\ufffd") for text in theirs.generate_until(requests)]
    lm = EngineLM(llm)
    assert [text.rstrip("\ufffd") for text in lm.generate_until(requests)] == expected
    assert lm.num_cut == 1


def test_rolling_windows_score_each_token_once(llm: LLM) -> None:
    lm = EngineLM(llm)
    ids = lm.tok_encode(TEXTS[-1])
    assert len(ids) > CONTEXT_LENGTH
    first, rest = ids[:CONTEXT_LENGTH], ids[CONTEXT_LENGTH:]
    # The second window is as long as the context too, and scores what the first did not.
    before = ids[len(ids) - CONTEXT_LENGTH - 1 : CONTEXT_LENGTH]
    scores = llm.score([([BOS_ID], first), (before, rest)])
    (total,) = lm.loglikelihood_rolling(_requests("loglikelihood_rolling", [(TEXTS[-1],)]))
    assert total == sum(score.logprob for score in scores)


def test_generation_stops_where_the_task_says(llm: LLM) -> None:
    greedy = {"max_gen_toks": 12, "do_sample": False, "temperature": 1.0}
    (text,) = EngineLM(llm).generate_until(_requests("generate_until", [("hello wor", greedy)]))
    params = SamplingParams(temperature=0, max_tokens=12)
    assert text == llm.generate([llm.encode("hello wor")], params)[0].text
    assert len(text) > 2
    for until in (text[2], ["", text[2]]):
        wanted = _requests("generate_until", [("hello wor", greedy | {"until": until})])
        assert EngineLM(llm).generate_until(wanted) == [text[: text.index(text[2])]]


def test_greedy_continuations_are_recognised(llm: LLM) -> None:
    context = llm.encode("hello")
    greedy = SamplingParams(temperature=0, max_tokens=3)
    written = llm.generate([context], greedy)[0].token_ids
    other = [*written[:-1], (written[-1] + 1) % VOCAB_SIZE]
    lm = EngineLM(llm)
    answers = lm._loglikelihood_tokens([(None, context, written), (None, context, other)])
    assert [is_greedy for _, is_greedy in answers] == [True, False]
    assert answers[1][0] < answers[0][0] < 0


def test_a_shared_context_changes_no_bit(llm: LLM) -> None:
    """Each request alone, each as one text in one step, and all together with shared contexts."""
    requests = _requests("loglikelihood", PAIRS)
    together = EngineLM(llm).loglikelihood(requests)
    assert together == [EngineLM(llm).loglikelihood([request])[0] for request in requests]
    for (context, continuation), (logprob, _) in zip(PAIRS[:5], together, strict=False):
        front, rest = EngineLM(llm)._encode_pair(context, continuation)
        rows = llm.logits(front + rest)[len(front) - 1 : -1]
        pairs = zip(rows, rest, strict=True)
        whole = [token_logprob(row, target, 0, str).logprob for row, target in pairs]
        assert logprob == math.fsum(whole)


def test_a_context_is_computed_once(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    real = Model.forward

    def counted(self: Model, batch: Batch, *args: Any, **options: Any) -> Any:
        computed.append(batch.num_tokens)
        return real(self, batch, *args, **options)

    monkeypatch.setattr(Model, "forward", counted)
    lm = EngineLM(llm)
    lm.loglikelihood(_requests("loglikelihood", PAIRS[:3]))
    context, *_ = (lm._encode_pair(*pair) for pair in PAIRS[:1])
    ends = [len(lm._encode_pair(*pair)[1]) - 1 for pair in PAIRS[:3]]
    # The last token of the context is computed for each: the logits after it are wanted.
    assert sum(computed) == len(context[0]) + sum(ends) + 2


def test_progress_reaches_the_end(llm: LLM) -> None:
    seen: list[tuple[int, int]] = []
    lm = EngineLM(llm, lambda done, total: seen.append((done, total)))
    lm.loglikelihood(_requests("loglikelihood", PAIRS))
    assert seen[-1] == (len(PAIRS), len(PAIRS))
    assert seen == sorted(seen)


def test_what_cannot_be_scored_is_an_error(llm: LLM) -> None:
    lm = EngineLM(llm)
    with pytest.raises(PromptError, match="'llo' has no token of its own"):
        lm.loglikelihood(_requests("loglikelihood", [("he", "llo")]))
    with pytest.raises(PromptError, match="has 65 tokens, the context holds 64"):
        lm.loglikelihood(_requests("loglikelihood", [("", "x" * 65)]))
    with pytest.raises(PromptError, match="64 new tokens, the context holds 64"):
        lm.generate_until(_requests("generate_until", [("a", {"max_gen_toks": 64})]))


def test_a_context_of_spaces_alone_is_no_context(llm: LLM) -> None:
    lm = EngineLM(llm)
    spaces, joined = lm.loglikelihood(
        _requests("loglikelihood", [("  ", "hello"), ("", "  hello")])
    )
    assert spaces == joined


def test_a_vocabulary_without_marks_has_nothing_before_a_text(tmp_path: Path) -> None:
    case = _case(add_bos=False)
    ends = ("!tokenizer.ggml.bos_token_id", "!tokenizer.ggml.eos_token_id")
    metadata = {key: value for key, value in case.metadata.items() if key not in ends}
    with LLM(save(tmp_path / "m.gguf", replace(case, metadata=metadata))) as llm:
        lm = EngineLM(llm)
        assert len(lm.loglikelihood(_requests("loglikelihood", [("hello", " old")]))) == 1
        with pytest.raises(TokenizerError, match="no token that ends a text"):
            lm.loglikelihood(_requests("loglikelihood", [("", "hello")]))
