"""Properties of scores: what else is in the call changes nothing."""

from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerinfer import LLM
from powerinfer.prompts.texts import Scorable
from tiny_models import TINY_MODELS, write_model

# Few tokens, so that contexts and beginnings of contexts are often shared.
ids = st.lists(st.integers(5, 7), min_size=1, max_size=9)


@pytest.fixture(scope="module")
def llms(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], LLM]:
    """By recipe and tokens in a step, on the native backend."""
    folder: Path = tmp_path_factory.mktemp("models")

    @cache
    def path(name: str) -> Path:
        return write_model(folder / f"{name}.gguf", TINY_MODELS[name])

    names, sizes = ("llama-relu", "falcon", "llama-window"), (1, 3, 512)
    return {(name, size): LLM(path(name), batch_size=size) for name in names for size in sizes}


@given(
    pairs=st.lists(st.tuples(ids, ids), min_size=1, max_size=6),
    name=st.sampled_from(["llama-relu", "falcon", "llama-window"]),
    size=st.sampled_from([1, 3, 512]),
)
def test_a_score_has_the_same_bits_alone_and_among_others(
    llms: dict[tuple[str, int], LLM],
    pairs: list[tuple[list[int], list[int]]],
    name: str,
    size: int,
) -> None:
    llm = llms[name, size]
    together = llm.score(pairs)
    for pair, score in zip(pairs, together, strict=True):
        one: Scorable = pair
        assert llm.score([one]) == [score]
        assert score.token_ids == pair[1]
        assert all(logprob < 0 for logprob in score.token_logprobs)
