"""The commands that measure, and what they say about the machine."""

import io
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import assert_error, invoke, run_json
from powerinfer.bench import machine
from powerinfer.cli import model
from powerinfer.cli.progress import ProgressBar
from tiny_models import TINY_MODELS, write_model

# What a terminal is sent when a bar goes.
SHOW_CURSOR = "\x1b[?25h"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny.gguf", TINY_MODELS["llama"])


def test_perplexity(tmp_path: Path, tiny: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog " * 4)
    common = ("perplexity", "-m", tiny, "-f", text, "-c", "16")
    report = run_json(*common)
    assert report["perplexity"] > 1
    assert report["standard_error"] > 0
    assert report["tokens"] == 7 * report["windows"]
    assert report["context_length"] == 16
    assert invoke(*common).stdout.startswith(f"perplexity {report['perplexity']:.4f} +/- ")
    assert_error(invoke("perplexity", "-m", tiny, "-f", text, "-c", "4096"), "less than one window")
    assert_error(invoke("perplexity", "-m", tiny), "--file")


def test_perplexity_help_names_one_default_of_the_window() -> None:
    shown = " ".join(invoke("perplexity", "--help").stdout.split("--threads")[0].split())
    assert shown.count("[default: 512") == 1
    assert "at most 4096" not in shown


def test_bench_reports_medians_and_the_machine(tiny: Path) -> None:
    common = (
        "bench",
        "-m",
        tiny,
        "--prefill",
        "8,16",
        "--decode",
        "4",
        "--repeats",
        "2",
        "-t",
        "1",
    )
    report = run_json(*common)
    assert set(report["prefill_tokens_per_s"]) == {"8", "16"}
    for key in ("decode_tokens_per_s", "bytes_per_token", "gb_per_s", "read_gb_per_s"):
        assert report[key] > 0
    assert 0 < report["python_share"] < 1
    assert len(report["samples"]["decode_step_s"]) == 2
    assert {"cpu", "commit", "memory_bytes"} <= set(report["machine"])
    table = invoke(*common).stdout
    assert "prefill 16" in table
    assert "decode" in table


def test_bench_refuses_nonsense(tiny: Path) -> None:
    assert_error(invoke("bench", "-m", tiny, "--prefill", "a,b"), "not a list of prompt lengths")
    assert_error(
        invoke("bench", "-m", tiny, "--prefill", "", "--decode", "0"), "nothing to measure"
    )
    assert_error(invoke("bench", "-m", tiny, "-c", "8"), "needs a context of 512")


def test_the_commit_is_ours_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed in a folder of somebody else's repository, that commit says nothing about us."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    git = ("git", "-c", "user.name=a", "-c", "user.email=b", "-C", str(tmp_path))
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "c"], check=True)
    inner = tmp_path / "src" / "powerinfer" / "bench"
    inner.mkdir(parents=True)
    monkeypatch.setattr(machine, "__file__", str(inner / "machine.py"))
    assert machine._commit() is None
    (inner / "machine.py").touch()
    commit = machine._commit()
    assert commit is not None
    assert len(commit) == 12


def test_machine_without_git_or_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError("git")

    monkeypatch.setattr(subprocess, "run", missing)
    monkeypatch.setattr(machine, "_CPUINFO", tmp_path / "none")
    monkeypatch.setattr(machine, "_MEMINFO", tmp_path / "none")
    described = machine.describe_machine()
    assert described["commit"] is None
    assert described["memory_bytes"] is None
    assert described["cpu"]


class Terminal(io.StringIO):
    """Takes what is written to stderr and says that it is a terminal."""

    def isatty(self) -> bool:
        return True

    def taken(self) -> str:
        text = self.getvalue()
        self.truncate(0)
        self.seek(0)
        return text


def _terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Put a terminal in place of stderr; pytest would undo a fixture that did it."""
    stream = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def test_progress_is_for_terminals(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar("calibrating") as bar:
        bar(1, 2)
    assert capsys.readouterr().err == ""


def test_progress_is_shown_for_large_models(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _terminal(monkeypatch)
    with ProgressBar("loading", unit="bytes", shown_from=model.PROGRESS_FROM_BYTES) as bar:
        bar(1, 1000)
        assert terminal.taken() == ""
        bar(1 << 30, 2 << 30)
        shown = terminal.taken()
    assert "loading" in shown
    assert "1.0/2.0 GiB" in shown


def test_progress_of_a_calibration_is_shown_from_the_first_layer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = _terminal(monkeypatch)
    bar = ProgressBar("calibrating", unit="layers")
    bar(1, 2)
    shown = terminal.taken()
    assert "calibrating" in shown
    assert "1/2" in shown
    bar(2, 2)
    assert SHOW_CURSOR in terminal.taken()
    bar.close()
    assert terminal.taken() == ""


def test_an_error_takes_the_progress_away(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _terminal(monkeypatch)
    with pytest.raises(ZeroDivisionError), ProgressBar("packing") as bar:
        bar(1, 3, "another thing")
        assert "another thing" in terminal.taken()
        raise ZeroDivisionError
    assert SHOW_CURSOR in terminal.taken()
