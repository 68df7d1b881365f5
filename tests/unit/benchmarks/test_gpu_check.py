"""What scripts/gpu-check does after the build: it must not call right what is wrong."""

import importlib.util
import json
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

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
        assert last.line == "failed  two: OutOfDeviceMemoryError: no room for it"

    def test_an_error_of_a_class_of_its_own_is_one_too(self) -> None:
        """Triton's derive from Exception alone."""
        findings = _module("findings")

        class CompilationError(Exception):
            pass

        def breaks() -> Iterator[object]:
            raise CompilationError("at 3:4:\n    tl.load(x)\n    ^")
            yield

        (only,) = findings.attempted("a kernel", breaks())
        assert only.line == "failed  a kernel: CompilationError: at 3:4: tl.load(x) ^"


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
        driver = 700

        def verdict(**changed: int) -> str:
            given = {"promised": driver + 100, "taken": 100, "reserved": 90} | changed
            placed = memory.Placed(
                full=900, overhead=50, driver=driver, hot=0.5, where="cuda:0", **given
            )
            return str(memory.finding("x", placed, driver + 110).verdict)

        assert verdict() == findings.Verdict.OK
        for wrong in ({"taken": 101}, {"reserved": 101}, {"promised": driver + 111}):
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


class TestParts:
    @pytest.fixture(autouse=True)
    def _gpu_extra(self) -> None:
        _need("torch", "triton")

    def _setting(self, folder: Path) -> Any:
        return _module("findings").Setting("cpu", folder, folder, 1)

    def _clock(self, seconds_left: float) -> Any:
        return _module("processes").Clock(time.time(), seconds_left)

    def test_a_check_that_fails_ends_no_other(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        parts, findings = _module("parts"), _module("findings")

        def checked(name: str, *_: object) -> Iterator[object]:
            failed, well = findings.Verdict.FAILED, findings.Verdict.OK
            yield findings.Finding(name, failed if name.startswith("tests") else well, "so")

        monkeypatch.setattr(parts, "_checked", checked)
        only = ["tests test_graph", "bench"]
        assert parts.run_part("steps", self._setting(tmp_path), self._clock(60), only) == 1
        page = (tmp_path / "results.md").read_text(encoding="utf-8")
        assert "| failed | tests test_graph | so |" in page
        assert "| ok | bench tiny | so |" in page

    @pytest.mark.slow
    def test_a_check_that_ends_badly_is_a_failure(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        parts, findings, processes = _module("parts"), _module("findings"), _module("processes")
        setting, log = self._setting(tmp_path), processes.Log(tmp_path / "log")

        def texts(seconds_left: float, code: str) -> list[str]:
            monkeypatch.setattr(parts, "python", lambda *arguments: ["sh", "-c", code])
            found = list(parts._checked("programs", setting, self._clock(seconds_left), log, None))
            assert all(one.verdict is findings.Verdict.FAILED for one in found)
            return [one.text for one in found]

        assert texts(60, "exit 0") == ["found nothing at all"]
        assert texts(60, "exit 7")[0].startswith("exit code 7")
        assert texts(6, "sleep 60")[0].startswith("not done after")

    def test_what_the_time_does_not_suffice_for_fails_and_is_named(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        only = ["memory", "prompts"]
        setting = self._setting(tmp_path)
        assert _module("parts").run_part("rest", setting, self._clock(0), only) == 1
        printed = capsys.readouterr().out
        assert "failed  memory tiny-f16: not run: the time is over" in printed
        assert "ONLY='memory tiny-f16,prompts tiny-f16' scripts/gpu-check OUT rest" in printed

    def test_every_check_exists_and_every_model_is_checked(self) -> None:
        checks = _module("checks")
        for is_cuda in (False, True):
            names = [n for part in checks.PARTS for n in checks.names_of(part, is_cuda=is_cuda)]
            assert len(set(names)) == len(names)
            assert all(checks.check_named(name) for name in names)
        models = {checks.planted_of(name) for name in names} - {None}
        assert models == set(_module("planted_models").MODELS)


class TestBench:
    def _row(self, **changed: object) -> dict[str, object]:
        row = {"side": "a", "fraction": 1 / 3, "summary": "this engine", "is_recorded": True}
        return {**row, "tokens_per_s": 48.4, "handoff": "memory_operations", **changed}

    def test_a_row_that_ran_eagerly_or_not_at_all_is_a_failure(self) -> None:
        _need("torch", "triton")
        finding = _module("bench").row_finding
        well = finding("falcon-40b", self._row(), is_cuda=True)
        assert well.line.startswith("ok      falcon-40b, a at 33%: 48.40 tokens/s")
        eager = finding("falcon-40b", self._row(is_recorded=False), is_cuda=True)
        assert eager.verdict == "failed"
        error = {"side": "a", "fraction": 0.5, "summary": "", "error": "DeviceError: lost"}
        lost = finding("falcon-40b", error, is_cuda=True)
        assert lost.line == "failed  falcon-40b, a at 50%: DeviceError: lost"

    def test_a_row_that_fails_ends_no_other(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _need("torch", "triton")
        hybrid = import_module("hybrid")

        def run(bench: object, side: Any, fraction: float) -> dict[str, object]:
            if side.name == "b":
                raise OutOfDeviceMemoryError("no room")
            return self._row(side=side.name, fraction=fraction)

        monkeypatch.setattr(hybrid, "_bench", lambda options: (None, {}))
        monkeypatch.setattr(hybrid, "_run", run)
        monkeypatch.setattr(hybrid, "_ratios", lambda result: [])
        path = tmp_path / "result.json"
        arguments = ["--only", "abd", "-o", str(path)]
        *_, result = hybrid.compare(hybrid.options_of(arguments))
        assert json.loads(path.read_text()) == result
        assert [row.get("error") for row in result["rows"] if row["side"] == "b"] == (
            ["OutOfDeviceMemoryError: no room"] * 3
        )
        assert [row["side"] for row in result["rows"]][-1] == "a"


class TestPeers:
    @pytest.mark.parametrize("program", ["", "echo"])
    def test_speeds_stand_beside_each_other(
        self, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _need("torch", "triton")
        peers, findings = _module("peers"), _module("findings")
        monkeypatch.setenv("LLAMA_BENCH", program)
        monkeypatch.setenv("PATH", "")

        def output(command: list[str]) -> str:
            if command[0] == program:
                rows = [{"n_gen": 0, "avg_ts": 100.0}, {"n_gen": 32, "avg_ts": 8.0}]
                return json.dumps(rows)
            return json.dumps({"decode_tokens_per_s": 12.0, "prefill_tokens_per_s": {"8": 50.0}})

        monkeypatch.setattr(peers, "_output", output)
        setting = findings.Setting("cpu", tmp_path, tmp_path, 1)
        everything, _third, nothing = peers.check_peers("f16", setting)
        assert everything.what == "llama-7b-f16, all on the GPU"
        if program:
            assert nothing.text.endswith("ours over theirs 1.50, prompt 0.50")
        else:
            assert nothing.text.endswith("skipped llama.cpp: LLAMA_BENCH names none")
        assert not list(tmp_path.glob("*.gguf"))


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


def test_packages_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    requirements = _module("requirements")
    # What is downloaded by the command of the help is what may be missing.
    script = (ROOT / "scripts" / "gpu-check").read_text(encoding="utf-8")
    assert all(name in script for name in requirements.REQUIRED)
    monkeypatch.setattr(requirements, "REQUIRED", ("numpy", "no-such-package"))
    assert requirements.missing_packages() == ["no-such-package"]
