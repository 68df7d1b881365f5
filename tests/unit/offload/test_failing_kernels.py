"""Kernels that do not compile or load: one line, and the fallback where there is one."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")
# Chooses how Triton runs, before anything else imports it.
pytest.importorskip("powerinfer.ops.gpu.kernels", reason="triton is not installed")

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.errors import OutOfResources, PTXASError
from triton.runtime.jit import JITFunction

from api_client import Api, running_api
from command_line import assert_error, invoke
from fake_uploads import PatientUploader, replace_everywhere, running_machine
from placed_models import load, make_plan, place, tiny_file
from powerinfer import LLM, SamplingParams
from powerinfer.engine.engine import Engine
from powerinfer.errors import DeviceError, OutOfDeviceMemoryError
from powerinfer.loading import loader
from powerinfer.offload import device_speeds
from powerinfer.offload import place as placing
from powerinfer.offload import problem as placement_problem
from powerinfer.offload.choose_plan import choose_plan
from powerinfer.offload.devices import Device
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.gpu.kernels import norm
from powerinfer.ops.gpu.memory import KernelError, naming_gpu_failure, naming_kernel_failure
from powerinfer.ops.gpu.uploads import Chunk, ChunkStream, Uploader
from powerinfer.options.options import engine_options
from powerinfer.serve.served_model import ServedModel
from repeating_recorder import repeating
from tolerances import assert_close

# One whose kernels are not interpreted, for all that `place` knows: it tries out what it placed.
GPU = Device("cpu", "a GPU for a test")
BROKEN = r"GPU kernel of norm\.rms_norm does not compile or load"


def _broken(
    x: object,
    weight: object,
    y: object,
    x_stride: object,
    columns: object,
    eps: object,
    BLOCK: tl.constexpr,  # noqa: N803
) -> None:
    tl.store(y, tl.no_such_function(x))


_broken_kernel: Any = triton.jit(_broken)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Break a kernel that every layer runs; calling the result mends it."""
    with monkeypatch.context() as patch:
        patch.setattr(norm, "rms_norm_kernel", _broken_kernel)
        yield patch.undo


def _compile() -> None:
    """Compile the broken kernel for a GPU, which needs none."""
    types = {"x": "*fp32", "weight": "*fp32", "y": "*fp32", "x_stride": "i32", "columns": "i32"}
    types |= {"eps": "fp32", "BLOCK": "constexpr"}
    source = ASTSource(JITFunction(_broken), types, constexprs={"BLOCK": 32})
    triton.compile(source, target=GPUTarget("cuda", 90, 32))


def _in_triton(error: Exception) -> Callable[[], None]:
    """A function that raises an error as from inside Triton."""
    module: dict[str, Any] = {"__name__": "triton.runtime.jit", "error": error}
    exec("def run():\n    raise error", module)
    run: Callable[[], None] = module["run"]
    return run


class TestNaming:
    def test_a_kernel_that_does_not_compile_is_named_in_one_line(self) -> None:
        with pytest.raises(KernelError) as caught, naming_kernel_failure():
            _compile()
        text = str(caught.value)
        assert "the GPU kernel of test_failing_kernels._compile does not compile" in text
        assert "CompilationError: " in text
        assert "device='cpu'" in text
        assert "\n" not in text

    @pytest.mark.parametrize(
        "error",
        [
            OutOfResources(232448, 166912, "shared memory"),
            PTXASError("ptxas fatal\n: no such option"),
            PermissionError(13, "Permission denied", "/root/.triton/cache"),
            RuntimeError("PassManager::run failed"),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_whatever_comes_out_of_triton_is_ours(self, error: Exception) -> None:
        expected = pytest.raises(KernelError, match=type(error).__name__)
        with expected as caught, naming_kernel_failure():
            _in_triton(error)()
        assert caught.value.__cause__ is error
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        "text", ["Triton Error [CUDA]: an illegal memory access", "CUDA out of memory"]
    )
    def test_what_the_driver_reports_stays_what_it_is(self, text: str) -> None:
        with pytest.raises(RuntimeError, match="CUDA"), naming_kernel_failure():
            _in_triton(RuntimeError(text))()

    def test_errors_of_others_pass(self) -> None:
        with pytest.raises(ValueError, match="of a caller"), naming_gpu_failure():
            raise ValueError("of a caller")

    def test_errors_of_torch_and_the_driver_are_one_line_too(self) -> None:
        expected = pytest.raises(DeviceError, match="the GPU failed: RuntimeError: CUDA error: no")
        with expected, naming_gpu_failure():
            raise RuntimeError("CUDA error: no\nkernel image")
        with pytest.raises(OutOfDeviceMemoryError), naming_gpu_failure():
            raise RuntimeError("CUDA out of memory")


@pytest.mark.parametrize("has_thread", [False, True])
def test_background_work_raises_it_where_it_is_needed(
    monkeypatch: pytest.MonkeyPatch, *, has_thread: bool
) -> None:
    with running_machine(monkeypatch):
        if has_thread:
            replace_everywhere(monkeypatch, Uploader, PatientUploader)
        stream = ChunkStream(torch.device("cpu"), torch.empty((2, 0), dtype=torch.uint8))
        chunk, broken = (
            Chunk(lambda _: None, fill) for fill in (lambda _: None, lambda _: _compile())
        )
        assert list(stream.each([chunk], broken)) == [None]
        # Sent early, and not needed after all.
        stream.stop()
        with pytest.raises(KernelError, match=r"kernel of test_failing_kernels\._compile"):
            list(stream.each([broken]))
        for uploader in stream.uploaders:
            uploader.close()


class TestPlacing:
    @pytest.fixture(autouse=True)
    def _on_a_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(placement_problem, "_free_bytes", lambda _: 4 << 30)
        speeds = device_speeds.machine_speeds
        monkeypatch.setattr(
            placement_problem, "machine_speeds", lambda ops, name, *_: speeds(ops, name, None)
        )
        monkeypatch.setattr("powerinfer.ops.hybrid.ops.HybridOps.pin", lambda _: False)

    def _place(self, folder: Path, **options: Any) -> Any:
        asked = engine_options(batch_size=4, **options)
        with LLM(tiny_file(folder, "bamboo"), device="cpu") as llm:
            loaded = llm.loaded
            return placing.place(loaded.sparsity, loaded.file, loaded.tokenizer, asked, GPU)

    @pytest.mark.usefixtures("broken")
    def test_a_gpu_that_was_asked_for_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(DeviceError, match=BROKEN) as caught:
            self._place(tmp_path, vram_budget="2", solver="greedy")
        assert "\n" not in str(caught.value)

    @pytest.mark.usefixtures("broken")
    def test_another_is_left_alone_with_a_warning(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        # The plan for a GPU that pays off.
        asked = engine_options(vram_budget="2", solver="greedy")
        monkeypatch.setattr(placing, "choose_plan", lambda task, _: choose_plan(task, asked))
        assert self._place(tmp_path) is None
        (warning,) = (one for one in caplog.records if one.levelno >= logging.WARNING)
        assert "rms_norm does not compile" in warning.message
        assert warning.message.endswith(": the CPU runs alone")
        assert "\n" not in warning.message

    def test_without_a_placement_the_cpu_runs(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(loader, "find_device", lambda _: GPU)
        monkeypatch.setattr(placing, "place", lambda *_: None)
        with LLM(tiny_file(tmp_path, "bamboo")) as llm:
            assert llm.loaded.device == "cpu"
            assert llm.loaded.placement is None
            llm.generate([[5, 6]], SamplingParams(max_tokens=2))


def test_speeds_that_cannot_be_measured_end_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`plan` and `run` measure before anything else runs on the GPU."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(norm, "rms_norm_kernel", _broken_kernel)
    with pytest.raises(KernelError, match=BROKEN):
        device_speeds.machine_speeds(NativeOps(threads=1), "f32", GPU)


def test_a_record_that_does_not_compile_leaves_eager_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = load(tiny_file(tmp_path, "bamboo"), NativeOps(threads=1))
    failure: Any = KernelError("the GPU kernel of norm.rms_norm does not compile or load")
    failure.__cause__ = OutOfResources(1, 2, "many\nlines")
    with repeating(monkeypatch, failure) as made:
        placed = place(model, make_plan("SS", 1))
        cache, alone = placed.new_cache(32), model.new_cache(32)
        for position in range(4):
            found, expected = (
                each.forward(kept.batch([(0, [7 + position], position)], [False]), kept)
                for each, kept in ((placed, cache), (model, alone))
            )
            assert_close(np.asarray(found), np.asarray(expected), "hybrid")
    assert not made[0].num_records
    assert "does not compile" in caplog.text
    assert "many" not in caplog.text


@contextmanager
def _served(llm: LLM) -> Iterator[Api]:
    """A server of a real model in this process."""
    loaded = llm.loaded
    served = ServedModel(
        engine=Engine(loaded),
        tokenizer=loaded.tokenizer,
        context_length=loaded.model.context_length,
        loaded=loaded,
    )

    async def start() -> None:
        api.context.start(served)

    with running_api(is_loading=True) as api:
        assert api.portal is not None
        api.portal.call(start)
        yield api


class TestSteps:
    @pytest.fixture(autouse=True)
    def _interpreted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TRITON_INTERPRET", "1")

    def test_a_text_ends_with_it_and_the_next_goes_on(
        self, tmp_path: Path, broken: Callable[[], None]
    ) -> None:
        options: dict[str, Any] = {"device": "cuda", "vram_budget": "1", "solver": "greedy"}
        params = SamplingParams(max_tokens=2, temperature=0)
        with LLM(tiny_file(tmp_path, "bamboo"), **options) as llm:
            with pytest.raises(DeviceError, match=BROKEN):
                llm.generate([[5, 6]], params)
            broken()
            assert llm.generate([[5, 6]], params)[0].token_ids

    def test_a_server_answers_with_it_and_goes_on(
        self, tmp_path: Path, broken: Callable[[], None]
    ) -> None:
        options: dict[str, Any] = {"device": "cuda", "vram_budget": "1", "solver": "greedy"}
        body = {"prompt": "a", "max_tokens": 2, "temperature": 0}
        with LLM(tiny_file(tmp_path, "bamboo"), **options) as llm, _served(llm) as api:
            failed = api.post("/v1/completions", json=body)
            assert failed.status_code == 500
            assert "rms_norm does not compile" in failed.text
            broken()
            answer = api.post("/v1/completions", json=body)
            assert answer.status_code == 200, answer.text

    @pytest.mark.usefixtures("broken")
    def test_the_command_line_ends_with_2(self, tmp_path: Path) -> None:
        model = tiny_file(tmp_path, "bamboo")
        options = ("--device", "cuda", "--vram-budget", "1", "--solver", "greedy")
        done = invoke("run", "-m", model, *options, "-p", "hi", "-n", "2")
        assert_error(done, "rms_norm does not compile or load", "--device cpu")
