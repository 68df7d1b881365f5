"""What scripts/gpu-check does after the build: it must not call right what is wrong."""

import importlib.util
import json
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from powerinfer.errors import OutOfDeviceMemoryError
from powerinfer.gguf import open_gguf
from powerinfer.models import load_model
from powerinfer.ops.cpu.ops import NativeOps

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules beside ours, as the script runs them."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "gpu_check"]:
        del sys.modules[name]


def _module(name: str) -> ModuleType:
    return import_module(f"gpu_check.{name}")


def _need(*names: str) -> None:
    """Skip without a library; nothing is imported here, as `torch_device` says."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")


class TestFindings:
    def test_what_was_found_comes_back_from_the_file(self, tmp_path: Path) -> None:
        findings = _module("findings")
        found = [
            findings.Finding("memory", findings.Verdict.FAILED, "too much", {"bytes": 3}),
            findings.Finding("replays", findings.Verdict.SKIPPED, "no CUDA"),
        ]
        findings.keep(found, tmp_path / "found.jsonl")
        assert findings.read(tmp_path / "found.jsonl") == found
        assert found[0].line == "failed  memory: too much"

    def test_what_came_before_an_error_stays(self, tmp_path: Path) -> None:
        findings = _module("findings")

        def breaks() -> Iterator[object]:
            yield findings.Finding("one", findings.Verdict.OK, "well")
            raise ValueError

        with pytest.raises(ValueError):
            findings.keep(breaks(), tmp_path / "found.jsonl")
        assert [one.what for one in findings.read(tmp_path / "found.jsonl")] == ["one"]

    def test_an_error_is_one_more_finding(self) -> None:
        findings = _module("findings")

        def breaks() -> Iterator[object]:
            yield findings.Finding("one", findings.Verdict.OK, "well")
            raise OutOfDeviceMemoryError("no room\nfor it")

        _one, last = findings.attempted("two", breaks())
        assert last.line == "failed  two: OutOfDeviceMemoryError: no room"


class TestProcesses:
    @pytest.mark.slow
    def test_a_process_that_hangs_is_ended_with_its_children(self, tmp_path: Path) -> None:
        processes = _module("processes")
        log = processes.Log(tmp_path / "log")
        child = tmp_path / "child"
        script = f"echo begun; (sleep 2; touch {child}) & sleep 60"
        began = time.monotonic()
        ended = processes.ran(["sh", "-c", script], log, 1.0)
        assert ended.code is None
        assert "not done after" in ended.text
        assert time.monotonic() - began < 30
        assert "begun" in (tmp_path / "log").read_text(encoding="utf-8")
        time.sleep(1.5)
        assert not child.exists()

    def test_what_is_said_and_what_processes_print_are_in_one_log(self, tmp_path: Path) -> None:
        processes = _module("processes")
        log = processes.Log(tmp_path / "log")
        log.say("first")
        assert processes.ran(["sh", "-c", "echo second; exit 3"], log, 60).code == 3
        log.say("third")
        lines = (tmp_path / "log").read_text(encoding="utf-8").split("\n")
        assert [line for line in lines if line in ("first", "second", "third")] == [
            *("first", "second", "third")
        ]


class TestLaunches:
    def test_kernels_and_replays_are_counted(self) -> None:
        _need("torch", "triton")
        import torch

        from powerinfer.ops.gpu.ops import TorchGPU

        launches = _module("launches")
        gpu = TorchGPU("cuda" if torch.cuda.is_available() else "cpu")
        x = gpu.to_device(np.ones((1, 32), np.float32))
        weight = gpu.to_device(np.ones(32, np.float32))
        with launches.counting() as found:
            assert found.is_recorded
            gpu.rms_norm(x, weight, 1e-5)
            assert (found.kernels, found.replays, found.is_recorded) == (1, 0, False)
        gpu.rms_norm(x, weight, 1e-5)
        assert found.kernels == 1

    def test_a_replay_is_no_launch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        _need("torch", "triton")
        import torch

        calls: list[object] = []
        monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", calls.append)
        with _module("launches").counting() as found:
            torch.cuda.CUDAGraph.replay("a graph")  # type: ignore[arg-type]
        assert (found.replays, found.is_recorded, calls) == (1, True, ["a graph"])


class TestLogits:
    def test_numbers_that_differ_fail(self) -> None:
        _need("torch", "triton")
        logits, findings = _module("logits"), _module("findings")
        expected = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
        got = expected.copy()
        assert logits.closeness("x", got, expected, "f16").verdict is findings.Verdict.OK
        assert logits.sameness("x", got, expected).verdict is findings.Verdict.OK
        got[2, 5] = np.nextafter(got[2, 5], np.float32(9))
        same = logits.sameness("x", got, expected)
        assert same.verdict is findings.Verdict.FAILED
        assert "1 of 4 steps differ, step 2 first" in same.text
        assert logits.closeness("x", got, expected, "f16").verdict is findings.Verdict.OK
        for wrong in (got[2, 5] + 0.1, np.nan):
            got[2, 5] = wrong
            close = logits.closeness("x", got, expected, "f16")
            assert close.verdict is findings.Verdict.FAILED


class TestMemory:
    def test_more_than_was_promised_fails(self) -> None:
        _need("torch", "triton")
        memory, findings = _module("memory"), _module("findings")
        context = memory.CONTEXT_BYTES

        def verdict(**changed: int) -> str:
            given = {"promised": context + 100, "taken": 100, "reserved": 90} | changed
            placed = memory.Placed(full=900, overhead=50, hot=0.5, where="cuda:0", **given)
            return str(memory.finding("x", placed, context + 110).verdict)

        assert verdict() == findings.Verdict.OK
        for wrong in ({"taken": 101}, {"reserved": 101}, {"promised": context + 111}):
            assert verdict(**wrong) == findings.Verdict.FAILED


class TestReplays:
    def test_speeds_are_bytes_that_a_step_must_read_over_the_kernels_time(
        self, tmp_path: Path
    ) -> None:
        _need("torch", "triton")
        replays, findings, models = (
            _module(name) for name in ("replays", "findings", "planted_models")
        )
        planted = models.TINY[0]
        models.make([planted], tmp_path)
        model = load_model(open_gguf(planted.path(tmp_path)), NativeOps(1))
        kernels = [
            replays.Kernel("matvec_kernel", 8, 2e-6),
            replays.Kernel("matvec_kernel", 1, 1e-6),
            replays.Kernel("value_kernel", 2, 1e-6),
        ]
        matvec, value, down = replays.roofline(planted, model, kernels, 1e9, (3, 5))
        hidden, vocabulary, rank = 64, 512, 32
        attention = 2 * hidden * hidden + 2 * hidden * (hidden // 2)
        weights = 2 * (attention + rank * hidden) + vocabulary * hidden
        # Two norms a layer, and the one before the head, in f32; gaps of up to 256 bytes behind
        # each of some 25 arrays.
        read = 2 * weights + 4 * hidden * 5
        assert read <= matvec.figures["bytes"] <= read + 25 * 256
        assert matvec.figures["share_of_copy"] == pytest.approx(
            matvec.figures["bytes"] / 3e-6 / 1e9
        )
        # The gate of what was predicted, up of what fires.
        assert value.figures["bytes"] == (5 + 3) * 2 * hidden
        assert down.verdict is findings.Verdict.FAILED


class TestSmoke:
    @pytest.fixture(autouse=True)
    def _gpu_extra(self) -> None:
        _need("torch", "triton")

    def test_tests_that_fail_end_no_check(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        smoke, findings = _module("smoke"), _module("findings")
        failed = findings.Finding("tests, test_graph", findings.Verdict.FAILED, "exit code 1")
        monkeypatch.setattr(smoke.device_tests, "run_first", lambda log, seconds: failed)
        ran = []

        def run_check(name: str, *_: object) -> list[object]:
            ran.append(name)
            return [findings.Finding(name, findings.Verdict.OK, "well")]

        monkeypatch.setattr(smoke, "_prepare", lambda *_, has_tests: [])
        monkeypatch.setattr(smoke, "_run_check", run_check)
        setting = findings.Setting("cpu", tmp_path, 1)
        clock = _module("processes").Clock(time.time(), 60)
        assert smoke.smoke(tmp_path, setting, clock, []) == 1
        assert "programs tiny-f16" in ran

    @pytest.mark.slow
    def test_a_check_that_ends_badly_is_a_failure(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        smoke, findings, processes = _module("smoke"), _module("findings"), _module("processes")
        setting, log = findings.Setting("cpu", tmp_path, 1), processes.Log(tmp_path / "log")

        def texts(seconds_left: float, code: str) -> list[str]:
            monkeypatch.setattr(smoke, "python", lambda *arguments: ["sh", "-c", code])
            clock = processes.Clock(time.time(), seconds_left)
            found = list(smoke._run_check("programs", setting, clock, log))
            assert all(one.verdict is findings.Verdict.FAILED for one in found)
            return [one.text for one in found]

        assert texts(60, "exit 0") == ["found nothing at all"]
        assert texts(60, "exit 7")[0].startswith("exit code 7")
        assert texts(6, "sleep 60")[0].startswith("not done after")

    def test_what_the_time_does_not_suffice_for_fails_and_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        smoke, findings = _module("smoke"), _module("findings")
        monkeypatch.setattr(smoke, "_prepare", lambda *arguments, **named: iter(()))
        setting = findings.Setting("cpu", tmp_path, 1)
        clock = _module("processes").Clock(time.time(), 0)
        assert smoke.smoke(tmp_path, setting, clock, ["memory", "replays"]) == 1
        printed = capsys.readouterr().out
        assert "failed  memory tiny-f16: not run: the time is over" in printed
        assert "ONLY='memory tiny-f16,replays tiny-f16'" in printed

    def test_every_check_has_its_model(self) -> None:
        smoke = _module("smoke")
        for name in (*smoke._ON_A_GPU, *smoke._WITHOUT_A_GPU):
            assert smoke.check_named(name)
        models = {model.name for model in smoke._models_of(list(smoke._ON_A_GPU))}
        assert models == {model.name for model in _module("planted_models").MODELS}


class TestBench:
    def _code(self, monkeypatch: pytest.MonkeyPatch, folder: Path, *, recorded: bool) -> int:
        bench, processes = _module("bench"), _module("processes")
        row = {"side": "a", "fraction": 1 / 3, "is_recorded": recorded}

        def ran(command: list[str], log: object, seconds: float) -> object:
            result = {"machine": {"gpu": "H100"}, "rows": [row]}
            Path(command[command.index("-o") + 1]).write_text(json.dumps(result))
            return processes.Ended(0, 1.0)

        monkeypatch.setattr(bench, "ran", ran)
        monkeypatch.setattr(bench, "table", lambda result: "the table")
        setting = _module("findings").Setting("cuda", folder, 1)
        return int(bench.bench(folder, setting, processes.Clock(time.time(), 60), ["falcon"]))

    def test_a_row_that_ran_eagerly_is_a_failure(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert self._code(monkeypatch, tmp_path, recorded=True) == 0
        assert "the table" in capsys.readouterr().out
        assert self._code(monkeypatch, tmp_path, recorded=False) == 1
        assert "failed  falcon-40b: a at 33% ran eagerly" in capsys.readouterr().out


def test_what_is_to_run_must_exist(capsys: pytest.CaptureFixture[str]) -> None:
    """A name that is misspelt would look like a part that passed."""
    chosen = _module("findings").chosen
    names = ["logits a", "logits b", "memory a"]
    assert chosen(names, []) == names
    assert chosen(names, ["logits b", "memory"]) == ["logits b", "memory a"]
    for only in (["logit b"], ["memory", "bogus"]):
        with pytest.raises(SystemExit) as caught:
            chosen(names, only)
        assert caught.value.code == 2
        assert f"no '{only[-1]}'; there are logits a" in capsys.readouterr().err


def test_rows_that_ran_eagerly_are_named() -> None:
    table = import_module("hybrid_table")
    rows = [
        {"side": "a", "fraction": 1 / 3, "is_recorded": True},
        {"side": "c", "fraction": 0.6, "is_recorded": False},
    ]
    assert table.eager_rows({"machine": {"gpu": "H100"}, "rows": rows}) == ["c at 60%"]
    assert table.eager_rows({"machine": {"gpu": None}, "rows": rows}) == []


def test_packages_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    requirements = _module("requirements")
    # What is downloaded by the command of the help is what may be missing.
    script = (ROOT / "scripts" / "gpu-check").read_text(encoding="utf-8")
    assert all(name in script for name in requirements.REQUIRED)
    monkeypatch.setattr(requirements, "REQUIRED", ("numpy", "no-such-package"))
    assert requirements.missing_packages() == ["no-such-package"]
