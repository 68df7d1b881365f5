"""A model's life: sharing its weights, closing it, and what a fork or a copy of it gets."""

import copy
import os
import pickle
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import powerinfer
from patience import PATIENCE_S
from powerinfer import LLM, PowerInferError, SamplingParams, TokenizerError, UnsupportedError
from tiny_models import TINY_MODELS, write_model

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def test_two_on_the_same_weights_compute_at_the_same_time(tmp_path: Path) -> None:
    """Each gets the bits it gets alone, and its own counts of neurons and tokens."""
    path = write_model(tmp_path / "drelu.gguf", TINY_MODELS["llama-drelu-transposed"])
    # Rows of drafts, which are tried as time permits, count too.
    first = LLM(path, threads=2, draft="off")
    second = first.share()
    prompts = ["hello", "world, this is longer"]
    alone = [first.generate(prompt, replace(GREEDY, max_tokens=60))[0] for prompt in prompts]
    both, results = threading.Barrier(2), dict[int, list[Any]]()

    def work(number: int, llm: LLM) -> None:
        both.wait(60)
        params = replace(GREEDY, max_tokens=60)
        results[number] = [llm.generate(prompts[number], params)[0] for _ in range(4)]

    threads = [threading.Thread(target=work, args=each) for each in enumerate((first, second))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for number in (0, 1):
        for found in results[number]:
            assert found.token_ids == alone[number].token_ids
            assert found.metrics.active_neurons == alone[number].metrics.active_neurons
            assert found.metrics.decode_bytes == alone[number].metrics.decode_bytes


def test_a_shared_model_outlives_the_first(tiny: Path) -> None:
    first = LLM(tiny, threads=2)
    wanted = first.generate("hello", GREEDY)[0].text
    with first.share() as second:
        held = first.stream("world", GREEDY)
        next(held)
        # Its own turn: the stream of the first holds nobody up.
        assert second.generate("hello", GREEDY)[0].text == wanted
        next(held)
        first.close()
        assert second.generate("hello", GREEDY)[0].text == wanted
        assert second.share().generate("hello", GREEDY)[0].text == wanted
    with pytest.raises(PowerInferError, match="was closed"):
        first.share()


def test_a_model_that_lies_on_a_gpu_in_part_is_not_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    # Imports Triton such that kernels are interpreted where there is no GPU.
    pytest.importorskip("powerinfer.ops.gpu.kernels", reason="triton is not installed")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    path = write_model(tmp_path / "tiny.gguf", TINY_MODELS["bamboo"])
    refused = pytest.raises(UnsupportedError, match=r"cannot be shared.*device='cpu'")
    with LLM(path, device="cuda", vram_budget="1", solver="greedy") as llm, refused:
        llm.share()
    with LLM(path, device="cuda", vram_budget="1", solver="greedy") as llm, refused:
        LLM.of(llm.loaded)


def test_a_closed_model_refuses_everything(tiny: Path) -> None:
    llm = LLM(tiny, kernels="reference")
    llm.close()
    uses: list[Callable[[], object]] = [
        llm.__enter__,
        llm.share,
        llm.new_sequence,
        lambda: llm.generate([]),
        lambda: llm.stream("a"),
        lambda: llm.astream("a"),
        lambda: llm.encode("a"),
        lambda: llm.decode([1]),
        lambda: llm.chat([{"role": "user", "content": "a"}]),
    ]
    for use in uses:
        with pytest.raises(PowerInferError, match="this LLM was closed"):
            use()


def test_both_that_share_are_observed_and_the_first_reports_prompts(tiny: Path) -> None:
    layers, reports = list[int](), list[tuple[int, int]]()
    first = LLM(
        tiny, observe=lambda each: layers.append(each.layer), reading=lambda *at: reports.append(at)
    )
    with first, first.share() as second:
        second.generate("hello", GREEDY)
        assert layers
        assert reports == []
        first.generate("hello", GREEDY)
        assert reports


def test_of_takes_what_was_loaded() -> None:
    with pytest.raises(PowerInferError, match="takes what another LLM has loaded, got 3"):
        LLM.of(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("make_copy", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_model_cannot_be_pickled_or_copied(
    llm: LLM, make_copy: Callable[[object], object]
) -> None:
    with pytest.raises(TypeError, match=r"cannot be pickled or copied.*use share\(\)"):
        make_copy(llm)


def test_every_error_can_be_imported_from_the_package() -> None:
    found = {
        name
        for name, value in vars(powerinfer.errors).items()
        if isinstance(value, type) and issubclass(value, PowerInferError)
    }
    assert found <= set(powerinfer.__all__)
    assert issubclass(TokenizerError, PowerInferError)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_gets_an_error_and_may_load_its_own(tiny: Path) -> None:
    """Though another thread holds the turn, and was waiting, when the process forked."""
    with LLM(tiny, threads=2) as llm:
        stream = llm.stream("hello", GREEDY)
        next(stream)
        waiting = threading.Thread(target=llm.generate, args=("world", GREEDY))
        waiting.start()
        child = os.fork()
        if child == 0:
            os._exit(_in_child(llm, stream, tiny))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        stream.close()
        waiting.join(60)


def _in_child(llm: LLM, stream: Iterator[str], path: Path) -> int:
    """Exit code: 0 if everything is as it should be."""
    try:
        uses: list[Callable[[], object]] = [
            lambda: llm.generate("hello"),
            lambda: llm.stream("hello"),
            lambda: llm.encode("hello"),
            lambda: next(stream),
            llm.new_sequence,
            llm.share,
        ]
        for use in uses:
            with pytest.raises(PowerInferError, match=r"belongs to the process that loaded it"):
                use()
        llm.close()
        with LLM(path, threads=2) as own:
            assert own.generate("hello", GREEDY)[0].text
    except BaseException:  # noqa: BLE001
        traceback.print_exc(file=sys.__stderr__)
        return 1
    return 0


def test_a_program_ends_with_its_main_thread_though_it_left_a_stream(tiny: Path) -> None:
    """Another thread waits for that stream, and must not wait for ever."""
    code = f"""
import asyncio, threading
from powerinfer import LLM, SamplingParams
params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
llm, other = (LLM({str(tiny)!r}, threads=2) for _ in range(2))
stream = llm.stream("hello", params)
next(stream)
threading.Thread(target=lambda: print(len(llm.generate("hello", params)))).start()

async def main():
    global left
    left = other.astream("hello", params)
    await anext(left)

asyncio.run(main())
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
