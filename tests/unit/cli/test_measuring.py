"""The commands that measure, and what they say about the machine."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from command_line import assert_error, invoke, run_json
from patience import PATIENCE_S
from powerinfer.bench import machine
from powerinfer.store import measurements


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


def test_a_stopped_bench_says_that_it_begins_again(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("powerinfer.bench.speed.measure_speed", interrupted)
    result = invoke("bench", "-m", tiny)
    assert result.exit_code == 130
    assert "nothing was kept: the same command begins again" in result.stderr


def test_the_commit_is_ours_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed in a folder of somebody else's repository, that commit says nothing about us."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    git = ("git", "-c", "user.name=a", "-c", "user.email=b", "-C", str(tmp_path))
    subprocess.run([*git, "init", "-q"], check=True, timeout=PATIENCE_S)
    subprocess.run(
        [*git, "commit", "-q", "--allow-empty", "-m", "c"], check=True, timeout=PATIENCE_S
    )
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
    monkeypatch.setattr(measurements, "_CPUINFO", tmp_path / "none")
    monkeypatch.delattr(os, "sysconf")
    described = machine.describe_machine()
    assert described["commit"] is None
    assert described["memory_bytes"] is None
    assert described["cpu"]
