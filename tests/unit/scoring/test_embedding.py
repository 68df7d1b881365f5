"""Texts as vectors, against hidden states of the numpy reference."""

from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from powerinfer import LLM, NumericsError, PromptError, SamplingParams, UnsupportedError
from powerinfer.models import Model
from powerinfer.values import FloatArray
from tolerances import assert_close

TEXTS = ["the quick brown fox", "a dog", "héllo wörld"]


@pytest.fixture
def llm(tiny: Path) -> LLM:
    return LLM(tiny, kernels="reference")


def states_of(llm: LLM, token_ids: list[int]) -> FloatArray:
    model = llm.loaded.model
    cache = model.new_cache(64)
    return model.hidden_states(cache.batch([(0, token_ids, 0)], [True]), cache)


def test_the_mean_is_of_all_tokens_but_bos(llm: LLM) -> None:
    found = llm.embed(TEXTS, normalize=False)
    assert found.shape == (3, 32)
    assert found.dtype == np.float32
    for vector, text in zip(found, TEXTS, strict=True):
        ids = llm.encode(text)
        assert ids[0] == llm.loaded.tokenizer.bos_id
        assert_close(vector, states_of(llm, ids)[1:].mean(axis=0), "same backend, other batch")


def test_the_last_state_has_seen_all_tokens(llm: LLM) -> None:
    found = llm.embed(TEXTS, pooling="last", normalize=False)
    for vector, text in zip(found, TEXTS, strict=True):
        expected = states_of(llm, llm.encode(text))[-1]
        assert_close(vector, expected, "same backend, other batch")


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_vectors_have_length_one_unless_told_otherwise(
    llm: LLM, pooling: Literal["mean", "last"]
) -> None:
    found = llm.embed(TEXTS, pooling=pooling)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-6)
    raw = llm.embed(TEXTS, pooling=pooling, normalize=False)
    lengths = np.linalg.norm(raw, axis=1, keepdims=True)
    assert (np.abs(lengths - 1) > 0.1).all()
    np.testing.assert_allclose(found, raw / lengths, rtol=1e-5, atol=1e-6)


def test_one_text_several_and_ids(llm: LLM) -> None:
    one = llm.embed("a dog")
    assert one.shape == (1, 32)
    ids = llm.encode("a dog")
    for texts in (["a dog"], b"a dog", ids, [ids], np.array(ids), (text for text in ["a dog"])):
        np.testing.assert_array_equal(llm.embed(texts), one)
    assert llm.embed([]).shape == (0, 32)


def test_ids_without_bos_are_all_pooled(llm: LLM) -> None:
    found = llm.embed([[5, 6, 7]], normalize=False)[0]
    assert_close(found, states_of(llm, [5, 6, 7]).mean(axis=0), "same backend, other batch")


@pytest.mark.parametrize("kernels", ["reference", None])
def test_a_vector_depends_on_nothing_else_in_the_call(tiny: Path, kernels: str | None) -> None:
    llm = LLM(tiny, kernels=kernels)
    together = llm.embed(TEXTS)
    for vector, text in zip(together, TEXTS, strict=True):
        np.testing.assert_array_equal(llm.embed(text)[0], vector)


def test_kernels_and_batches_change_only_roundings(tiny: Path, llm: LLM) -> None:
    expected = llm.embed(TEXTS)
    assert_close(LLM(tiny).embed(TEXTS), expected, "native float")
    in_steps = LLM(tiny, kernels="reference", batch_size=3).embed(TEXTS)
    assert_close(in_steps, expected, "same backend, other batch")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("", "the text is empty"),
        (["a", b""], "text 2 of 2 is empty"),
        (["a", []], "text 2 of 2 is empty"),
        (["a", [1]], "text 2 of 2 is BOS alone"),
        (["a", [5, 288]], "text 2 of 2: token ids must be from 0 to 287"),
        (["a", ("b", "c")], "text 2 of 2: a prompt is a text"),
        (["a", [5] * 161], "text 2 of 2: it has 161 tokens, the context holds 160"),
    ],
)
def test_what_cannot_be_embedded_is_named(llm: LLM, texts: object, message: str) -> None:
    # Before it waits for its turn: a stream of the same thread goes on.
    stream = llm.stream("a", SamplingParams(temperature=0, max_tokens=30, ignore_eos=True))
    next(stream)
    with pytest.raises(PromptError, match=message):
        llm.embed(texts)  # type: ignore[arg-type]
    next(stream)


def test_an_unknown_pooling_names_those_there_are(llm: LLM) -> None:
    with pytest.raises(UnsupportedError, match=r"pooling 'max'.*mean, last"):
        llm.embed("a", pooling="max")  # type: ignore[arg-type]


def test_states_that_are_not_finite_are_reported(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> FloatArray:
        return np.full((1, 32), np.inf, np.float32)

    monkeypatch.setattr(Model, "hidden_states", broken)
    with pytest.raises(NumericsError, match=r"^hidden states are NaN or infinite, "):
        llm.embed("a")
