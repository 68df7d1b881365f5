"""Requests come and go for a long time: none is forgotten, no block of keys and values is lost.

POWERINFER_SOAK_REQUESTS sets how many there are.
"""

import os
from pathlib import Path

import numpy as np
import pytest

from powerinfer import LLM, SamplingParams
from powerinfer.engine.engine import Engine
from powerinfer.engine.request import Output, Request, RequestHandle
from scheduling_cases import alone, new_engine, text_of
from tiny_models import TINY_MODELS, write_model

NUM_REQUESTS = int(os.environ.get("POWERINFER_SOAK_REQUESTS", "300"))
_MOST_AT_ONCE = 30


def _request(random: np.random.Generator, number: int) -> Request:
    prefix = list(range(10, 10 + int(random.choice([0, 3, 64, 90]))))
    ids = [*prefix, *random.integers(5, 280, int(random.integers(1, 20))).tolist()]
    params = SamplingParams(
        seed=number,
        n=int(random.choice([1, 1, 1, 2, 4])),
        max_tokens=None if number % 50 == 0 else int(random.integers(0, 40)),
        stop=("a",) if number % 3 == 0 else (),
        logprobs=1 if number % 4 == 0 else None,
    )
    return Request(
        prompt_ids=ids,
        params=params,
        prompt_logprobs=1 if number % 7 == 0 else None,
        reuses_prefix=number % 5 != 0,
    )


class _Visitors:
    """Submits requests at random moments, and gives some of them up."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self._engine = engine
        self._random = np.random.default_rng(seed)
        self.outputs: dict[RequestHandle, list[Output]] = {}
        self.cancelled: set[RequestHandle] = set()

    def come_and_go(self) -> None:
        open_tickets = [handle for handle in self.outputs if not handle.is_over]
        if open_tickets and self._random.random() < 0.05:
            chosen = open_tickets[int(self._random.integers(len(open_tickets)))]
            self._engine.cancel(chosen)
            self.cancelled.add(chosen)
        burst = int(self._random.choice([0, 0, 0, 1, 1, 9]))
        for _ in range(min(burst, _MOST_AT_ONCE - len(open_tickets))):
            if len(self.outputs) < NUM_REQUESTS:
                request = _request(self._random, len(self.outputs))
                self.outputs[self._engine.submit(request)] = []


@pytest.mark.slow
def test_nothing_is_lost(tmp_path: Path) -> None:
    path = write_model(tmp_path / "tiny.gguf", TINY_MODELS["llama-relu"])
    with LLM(path, threads=1) as llm:
        engine = new_engine(llm, parallel=5, kv_tokens=512, batch_size=64)
        visitors = _Visitors(engine, 1)
        step = 0
        while len(visitors.outputs) < NUM_REQUESTS or engine.has_work:
            visitors.come_and_go()
            for handle, output in engine.step():
                visitors.outputs[handle].append(output)
            step += 1
            if step % 20 == 0:
                engine.check_integrity()
        engine.check_integrity()
        statistics = engine.statistics()
        assert (statistics.running, statistics.waiting, statistics.blocks_used) == (0, 0, 0)
        assert statistics.generated_tokens == sum(t.num_generated for t in visitors.outputs)
        assert visitors.cancelled
        for number, (handle, outputs) in enumerate(visitors.outputs.items()):
            assert handle.is_over
            assert sum(output.is_last for output in outputs) == handle.request.params.n
            if number % 10 == 0 and handle not in visitors.cancelled:
                last = handle.request.params.n - 1
                of_last = [output for output in outputs if output.index == last]
                assert text_of(of_last) == alone(llm.loaded, handle.request, last)
