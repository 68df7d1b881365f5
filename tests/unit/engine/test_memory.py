"""Closing a model gives its memory back at once: nothing waits for Python's cyclic collector."""

import asyncio
import gc
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from benchmarks.timing.operators import measure_operators
from patience import PATIENCE_S
from powerinfer import LLM, NumericsError, SamplingParams
from powerinfer.calibration.recall import recall_meter
from powerinfer.engine.conversation import Conversation
from powerinfer.engine.llm import Prompt
from powerinfer.engine.perplexity import scored_windows
from powerinfer.sampling.sampler import Sampler
from tiny_models import TINY_MODELS, write_model

PROMPT: Prompt = "Once upon a time"
pytestmark = pytest.mark.usefixtures("little_to_collect")
SHORT = SamplingParams(temperature=0, max_tokens=4)
LONG = SamplingParams(temperature=0, max_tokens=60)


class _UsersError(Exception):
    """Raised by the user of a model."""


OpenLLM = Callable[..., LLM]
Use = Callable[[LLM], object]
"""Uses a model and returns what its user keeps after closing it."""


def _generate(llm: LLM) -> object:
    return llm.generate([PROMPT, "The"], SHORT)


def _finish_a_stream(llm: LLM) -> object:
    stream = llm.stream(PROMPT, SHORT)
    return stream, list(stream)


def _leave_a_stream_unfinished(llm: LLM) -> object:
    stream = llm.stream(PROMPT, LONG)
    return stream, next(stream)


def _never_begin_a_stream(llm: LLM) -> object:
    return llm.stream(PROMPT, LONG)


def _close_a_stream(llm: LLM) -> object:
    stream = llm.stream(PROMPT, LONG)
    next(stream)
    stream.close()
    return stream


def _leave_a_stream_beside_others(llm: LLM) -> object:
    stream = llm.stream(PROMPT, LONG)
    next(stream)
    return stream, llm.generate(PROMPT, SHORT)


def _raise(llm: LLM) -> object:
    next(llm.stream(PROMPT, LONG))
    raise _UsersError


def _fill_the_context(llm: LLM) -> object:
    length = llm.loaded.model.context_length
    stream = llm.stream([1] * length, LONG)
    return stream, list(stream)


def _damage(llm: LLM) -> object:
    """An error for which the model runs a second time, to name what is damaged."""
    with pytest.MonkeyPatch.context() as patch, suppress(NumericsError):
        patch.setattr(Sampler, "sample", _not_finite)
        return llm.generate(PROMPT, SHORT)
    return None


def _not_finite(*_: object) -> int:
    raise NumericsError("1 of 2 logits are NaN or infinite")


def _score(llm: LLM) -> object:
    return list(scored_windows(llm, [1, *range(100, 131)], 16))


def _converse(llm: LLM) -> object:
    conversation = Conversation(llm, SHORT)
    answer = conversation.ask("Tell a story.")
    return conversation, answer, next(answer)


def _share(llm: LLM) -> object:
    """A second `LLM` over the same weights, which is dropped and not closed."""
    other = llm.share()
    next(other.stream(PROMPT, LONG))
    return other.generate(PROMPT, SHORT)


def _generate_several(llm: LLM) -> object:
    return llm.generate([PROMPT, "The"], replace(SHORT, n=2))


def _chat(llm: LLM) -> object:
    return llm.chat([{"role": "user", "content": "Hello"}], SHORT)


def _stream_for_asyncio(llm: LLM) -> object:
    """One stream is read, one left unfinished by its task, one never begun."""

    async def main() -> object:
        read, left = llm.astream(PROMPT, SHORT), llm.astream(PROMPT, LONG)
        pieces = [piece async for piece in read]
        return read, pieces, left, await anext(left), llm.astream(PROMPT, SHORT)

    return asyncio.run(main())


def _be_closed_by_another_thread(llm: LLM) -> object:
    stream = llm.stream(PROMPT, LONG)
    next(stream)
    closing = threading.Thread(target=llm.close)
    closing.start()
    closing.join(PATIENCE_S)
    assert not closing.is_alive()
    return stream


def _measure_recall(llm: LLM) -> object:
    llm.generate(PROMPT, SHORT)
    meter = recall_meter(llm.loaded.model)
    assert meter is not None
    return meter.layers


def _time_operators(llm: LLM) -> object:
    return measure_operators(llm, steps=2)


USES: dict[str, tuple[Use, OpenLLM]] = {
    "generate": (_generate, LLM),
    "finished stream": (_finish_a_stream, LLM),
    "unfinished stream": (_leave_a_stream_unfinished, LLM),
    "stream never begun": (_never_begin_a_stream, LLM),
    "closed stream": (_close_a_stream, LLM),
    "stream beside others": (_leave_a_stream_beside_others, LLM),
    "exception": (_raise, LLM),
    "full context": (_fill_the_context, partial(LLM, context_length=16)),
    "damaged weights": (_damage, LLM),
    "scored text": (_score, LLM),
    "conversation": (_converse, LLM),
    "shared weights": (_share, LLM),
    "several texts": (_generate_several, LLM),
    "chat": (_chat, LLM),
    "asyncio": (_stream_for_asyncio, LLM),
    "closed elsewhere": (_be_closed_by_another_thread, LLM),
    "timed operators": (_time_operators, LLM),
    "recall meter": (_measure_recall, partial(LLM, measure_recall=True)),
    "oracle": (_generate, partial(LLM, sparsity="oracle")),
    "predictors": (_generate, partial(LLM, sparsity="sign+lowbit:2")),
}


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("kernels", [None, pytest.param("reference", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", USES)
def test_closing_frees_all_at_once(name: str, kernels: str | None) -> None:
    kept, parts = _use_and_close(*USES[name], kernels)
    alive = [what for what, part in parts.items() if part() is not None]
    assert not alive, f"still there after close: {alive}, beside {type(kept).__name__}"


@pytest.mark.parametrize("name", ["unfinished stream", "conversation", "recall meter", "asyncio"])
def test_a_model_that_is_dropped_needs_no_close(name: str) -> None:
    use, open_llm = USES[name]
    llm = open_llm(threads=1)
    parts = _parts_of(llm)
    use(llm)
    del llm
    # The thread that computed for asyncio may be leaving its last step.
    deadline = time.monotonic() + 10
    while any(part() is not None for part in parts.values()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [what for what, part in parts.items() if part() is not None] == []


@pytest.mark.parametrize("name", ["unfinished stream", "exception"])
def test_closing_frees_a_model_on_two_devices(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    # Imports Triton such that kernels are interpreted where there is no GPU.
    pytest.importorskip("powerinfer.ops.gpu.kernels", reason="triton is not installed")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    path = write_model(tmp_path / "tiny.gguf", TINY_MODELS["bamboo"])
    placed = partial(LLM, path, device="cuda", vram_budget="1", solver="greedy", online=True)
    kept, parts = _use_and_close(USES[name][0], placed)
    alive = [what for what, part in parts.items() if part() is not None]
    assert not alive, f"still there after close: {alive}, beside {type(kept).__name__}"


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
def test_memory_stays_flat() -> None:
    """Twenty models after each other, used in every way: mappings, threads, resident memory."""
    uses = list(USES.values())
    for use, open_llm in uses[:5]:  # what is made once per process is made here
        _use_and_close(use, open_llm)
    before, threads = _resident_bytes(), _num_threads()
    kept = [_use_and_close(*uses[number % len(uses)]) for number in range(20)]
    assert _num_mappings("stories-") == 0
    assert _num_threads() <= threads  # fewer: one of an earlier test has ended
    # A model that stays takes 14 MiB at least, so twenty take 280. What is kept here, and memory
    # that the allocator does not return to the system, took 2.
    assert _resident_bytes() - before < 28 << 20, f"after {len(kept)} models"


def _use_and_close(
    use: Use, open_llm: OpenLLM, kernels: str | None = None
) -> tuple[object, dict[str, "weakref.ref[object]"]]:
    """What the user of a model keeps, and references to what the model is made of."""
    kept: object = None
    with suppress(_UsersError), open_llm(threads=2, kernels=kernels) as llm:
        parts = _parts_of(llm)
        kept = use(llm)
    return kept, parts


def _parts_of(llm: LLM) -> dict[str, "weakref.ref[object]"]:
    """Backend, mapped weights and KV cache."""
    loaded = llm.loaded
    sequence = llm.new_sequence()
    parts: dict[str, object] = {
        "tokenizer": loaded.tokenizer,
        "weights": next(iter(loaded.file.tensors.values())).data,
        "KV cache": sequence._cache,
        "sequence": sequence,
    }
    if loaded.placement is not None:
        from powerinfer.ops.hybrid.ops import HybridOps

        ops = loaded.model.ops
        assert isinstance(ops, HybridOps)
        parts |= {"CPU backend": ops.cpu, "GPU backend": ops.gpu, "blocks": ops.blocks}
    if loaded.kernels != "reference":  # that backend has slots, and no room for references
        parts["backend"] = loaded.model.ops
    return {name: weakref.ref(part) for name, part in parts.items()}


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _num_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def _num_mappings(name: str) -> int:
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return sum(name in line for line in lines)
