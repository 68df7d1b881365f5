"""Models with different kernels in one process: neither changes the bits of the other."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import combinations, zip_longest
from threading import Barrier

import numpy as np
import pytest

from native_cases import KERNELS, same_bits
from patience import PATIENCE_S
from powerinfer import LLM
from powerinfer.values import FloatArray

PROMPT = "Once upon a time there was a little girl who lived in a house near the sea. " * 2
NUM_STEPS = 6
NUM_ROUNDS = 3

# Also a model beside another one with the same kernels.
PAIRS = [*combinations(KERNELS, 2), (KERNELS[0], KERNELS[0])]


def opened(kernels: str) -> LLM:
    """The embedded model."""
    return LLM(kernels=kernels, threads=2)


def steps(llm: LLM) -> Iterator[FloatArray]:
    """Logits after a prompt, then after each of some tokens chosen greedily."""
    sequence = llm.new_sequence()
    logits = sequence.extend(llm.encode(PROMPT))
    for _ in range(NUM_STEPS):
        yield logits.copy()
        logits = sequence.extend([int(np.argmax(logits))])
    yield logits.copy()


def run(llm: LLM) -> FloatArray:
    """f32[NUM_STEPS + 1, vocab_size]."""
    return np.stack(list(steps(llm)))


@pytest.fixture(scope="module")
def alone() -> dict[str, FloatArray]:
    """What each kernel table computes while no other model is loaded."""
    results = {}
    for name in KERNELS:
        with opened(name) as llm:
            assert llm.loaded.kernels == name
            results[name] = run(llm)
    return results


def test_kernels_differ_in_bits(alone: dict[str, FloatArray]) -> None:
    """Otherwise the tests below would compare nothing."""
    if len(KERNELS) == 1:
        pytest.skip(f"this CPU has {KERNELS[0]} kernels only")
    assert not same_bits(alone["portable"], alone[KERNELS[1]])


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_models_in_turns(pair: tuple[str, str], alone: dict[str, FloatArray]) -> None:
    with ExitStack() as stack:
        first, second = (stack.enter_context(opened(name)) for name in pair)
        for llm, other in ((first, second), (second, first)):
            both = list(zip_longest(steps(llm), steps(other)))
            results = [np.stack(list(part)) for part in zip(*both, strict=True)]
            for result, model in zip(results, (llm, other), strict=True):
                assert same_bits(result, alone[model.loaded.kernels])
        assert [first.loaded.kernels, second.loaded.kernels] == list(pair)


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_models_at_once(pair: tuple[str, str], alone: dict[str, FloatArray]) -> None:
    together = Barrier(2)

    def rounds(llm: LLM) -> list[FloatArray]:
        together.wait(PATIENCE_S)
        return [run(llm) for _ in range(NUM_ROUNDS)]

    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        models = [stack.enter_context(opened(name)) for name in pair]
        for name, results in zip(pair, pool.map(rounds, models), strict=True):
            assert all(same_bits(result, alone[name]) for result in results)
