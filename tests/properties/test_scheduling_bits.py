"""Every text of an engine has the bits that it has alone, whoever comes, goes and shares steps.

Whatever is drafted, too: tokens that are right, wrong or both, also for texts that are cancelled
meanwhile, and for later ones that reuse what was accepted.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forced_drafts import MANNERS, force_drafts
from powerinfer import LLM, SamplingParams
from powerinfer.engine.engine import Engine
from powerinfer.engine.request import Output, Request, RequestHandle
from powerinfer.ops.cpu.machine import machine_info
from powerinfer.sampling.finish_reason import FinishReason
from scheduling_cases import WholeText, all_alone, new_engine, text_of
from tiny_models import TINY_EXPERTS, TINY_MODELS, wide, write_model

FORMATS = ("f16", "q4_0", "q4_k")
SPARSITIES = ("off", "exact", "mlp", "lowbit", "sign")
# Recipes, and which neurons they compute.
KINDS = (
    *(("bamboo", sparsity) for sparsity in SPARSITIES),
    ("gemma3", "off"),
    ("mixtral-drelu-transposed", "exact"),
    ("lfm2", "off"),
    ("qwen35moe", "off"),
    ("nemotron_h", "off"),
)
PREFIXES = tuple(
    tuple(np.random.default_rng(seed).integers(5, 500, 200).tolist()) for seed in range(3)
)


class Models:
    """Opens each model once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[tuple[str, ...], LLM] = {}

    def open(self, format_name: str, recipe: str, sparsity: str, kernels: str) -> LLM:
        key = format_name, recipe, sparsity, kernels
        if key not in self._open:
            path = self._folder / f"{recipe}-{format_name}.gguf"
            if not path.exists():
                model = wide((TINY_MODELS | TINY_EXPERTS)[recipe], format_name)
                write_model(path, replace(model, context_length=640))
            self._open[key] = LLM(path, sparsity=sparsity, kernels=kernels, threads=1)
        return self._open[key]

    def close(self) -> None:
        for llm in self._open.values():
            llm.close()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    models = Models(tmp_path_factory.mktemp("models"))
    yield models
    models.close()


@dataclass(frozen=True)
class Visit:
    """A request, the step before which it comes, and that before which it is cancelled."""

    request: Request
    comes: int = 0
    is_cancelled: int | None = None


def _answers(engine: Engine, visits: list[Visit]) -> list[tuple[RequestHandle, list[Output]]]:
    """All outputs for each visit, and that no block is lost."""
    handles: dict[int, RequestHandle] = {}
    outputs: dict[RequestHandle, list[Output]] = {}
    step = 0
    while len(handles) < len(visits) or engine.has_work:
        for number, visit in enumerate(visits):
            if visit.comes == step:
                handles[number] = engine.submit(visit.request)
            if visit.is_cancelled == step and number in handles:
                engine.cancel(handles[number])
        for handle, output in engine.step():
            outputs.setdefault(handle, []).append(output)
        step += 1
        assert step < 5000
    engine.check_integrity()
    return [(handles[number], outputs[handles[number]]) for number in range(len(visits))]


def _check(llm: LLM, engine: Engine, visits: list[Visit], manner: str | None = None) -> None:
    """Compare texts with those alone; `manner`: drafts of this kind at every step."""
    known: dict[tuple[object, ...], list[WholeText]] = {}
    answers: dict[int, list[WholeText]] = {}
    for request in (visit.request for visit in visits):
        key = tuple(request.prompt_ids), request.is_prompt, repr(request.params)
        if key not in known:
            known[key] = all_alone(llm.loaded, request)
        answers[id(request)] = known[key]
    if manner is not None:
        force_drafts(engine, answers, manner)
    for visit, (handle, outputs) in zip(visits, _answers(engine, visits), strict=True):
        request = visit.request
        for index, wanted in enumerate(answers[id(request)]):
            of_text = [output for output in outputs if output.index == index]
            if of_text[-1].finish_reason is FinishReason.CANCELLED:
                made = [token_id for output in of_text for token_id in output.token_ids]
                assert wanted.token_ids[: len(made)] == made
            else:
                assert text_of(of_text) == wanted
        assert handle.num_cached_tokens < len(request.prompt_ids)


@st.composite
def requests(draw: st.DrawFn, most: int = 30) -> Request:
    prefix = draw(st.sampled_from(PREFIXES))[: draw(st.integers(0, 200))]
    rest = draw(st.lists(st.integers(5, 500), min_size=1, max_size=20))
    params = SamplingParams(
        seed=draw(st.integers(0, 3)),
        temperature=draw(st.sampled_from([0.0, 0.8, 2.0])),
        max_tokens=draw(st.integers(0, most)),
        n=draw(st.sampled_from([1, 1, 1, 2, 3])),
        logprobs=2,
        stop=draw(st.lists(st.sampled_from(["a", "of", "0", "<", "xy"]), max_size=2)),
        repeat_penalty=draw(st.sampled_from([1.0, 1.3])),
    )
    ids = [*prefix, *rest]
    is_prompt = None
    if draw(st.integers(0, 3)) == 0:
        begin = draw(st.integers(0, len(ids)))
        is_prompt = tuple(number < begin or number + 3 > len(ids) for number in range(len(ids)))
    return Request(prompt_ids=ids, params=params, is_prompt=is_prompt)


@st.composite
def visits(draw: st.DrawFn) -> Visit:
    comes = draw(st.integers(0, 40))
    cancelled = draw(st.none() | st.integers(comes + 1, comes + 30))
    return Visit(draw(requests()), comes, cancelled)


@pytest.mark.slow
@settings(
    max_examples=settings().max_examples * 2 // 3,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    data=st.data(),
    kind=st.tuples(
        st.sampled_from(FORMATS),
        st.sampled_from(KINDS),
        st.sampled_from(machine_info().available_kernels),
    ),
    manner=st.none() | st.sampled_from(MANNERS),
    parallel=st.integers(1, 9),
    batch_size=st.sampled_from([3, 17, 64, 512]),
    is_slicing=st.booleans(),
    kv_tokens=st.sampled_from([320, 640, 2048]),
)
def test_whoever_comes_and_goes(
    models: Models,
    data: st.DataObject,
    kind: tuple[str, tuple[str, str], str],
    manner: str | None,
    parallel: int,
    batch_size: int,
    is_slicing: bool,
    kv_tokens: int,
) -> None:
    format_name, (recipe, sparsity), kernels = kind
    llm = models.open(format_name, recipe, sparsity, kernels)
    engine = new_engine(
        llm, is_slicing=is_slicing, parallel=parallel, batch_size=batch_size, kv_tokens=kv_tokens
    )
    _check(llm, engine, data.draw(st.lists(visits(), min_size=1, max_size=8)), manner)


@pytest.mark.each_value
@pytest.mark.parametrize("sparsity", SPARSITIES)
@pytest.mark.parametrize("format_name", FORMATS)
def test_thirty_two_at_once(models: Models, format_name: str, sparsity: str) -> None:
    """1 to 300 tokens, greedy and seeded, stop strings, shared prefixes, some cancelled."""
    best = machine_info().available_kernels[0]
    llm = models.open(format_name, "bamboo", sparsity, best)
    random = np.random.default_rng(7)
    listed = []
    for number in range(32):
        prefix = PREFIXES[number % 3][: int(random.choice([0, 70, 130, 200]))]
        params = SamplingParams(
            seed=number,
            temperature=0 if number % 2 else 1.0,
            max_tokens=int(random.choice([1, 2, 10, 30])) if number else 300,
            stop=("a", "of") if number % 5 == 0 else (),
            logprobs=3,
        )
        ids = [*prefix, *random.integers(5, 500, int(random.integers(1, 40))).tolist()]
        cancelled = int(random.integers(2, 40)) if number % 7 == 0 and number else None
        request = Request(prompt_ids=ids, params=params)
        listed.append(Visit(request, int(number > 20) * 3, cancelled))
    engine = new_engine(llm, parallel=32, kv_tokens=32 * 640)
    _check(llm, engine, listed)
    assert engine.statistics().cached_tokens
