"""Progress bars: when they appear, that nothing of them stays, and that one stands at a time."""

import logging
import sys
import textwrap
from pathlib import Path

import pytest

from powerinfer.cli import main as program
from powerinfer.cli import model
from powerinfer.cli.report.progress import ProgressBar, when_stopped
from powerinfer.cli.signals import TerminatedError
from terminal import run_on_terminal, shown_lines, terminal_as_stderr
from tiny_models import TINY_MODELS, write_model

# What a terminal is sent when a bar goes.
SHOW_CURSOR = "\x1b[?25h"


def test_progress_is_for_terminals(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar("calibrating") as bar:
        bar(1, 2)
    assert capsys.readouterr().err == ""


def test_elsewhere_a_line_a_minute_tells_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of several bars, too; the first comes a minute after a bar's first report."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr(ProgressBar, "_told_at", 0.0)

    def told(bar: ProgressBar, seconds: int, done: int, what: str | None = None) -> str:
        now[0] += seconds
        bar(done, 100, what)
        return capsys.readouterr().err

    with ProgressBar("reading", unit="tokens") as reading, ProgressBar("training") as training:
        assert told(reading, 0, 1) == ""
        assert told(reading, 59, 40) == ""
        assert told(reading, 1, 50) == "reading: 50 of 100 tokens, 50 %\n"
        assert told(training, 0, 1) == ""
        assert told(training, 60, 9, "layer 3") == "layer 3: 9 %\n"
        assert told(reading, 30, 70) == ""
        assert told(reading, 30, 99) == "reading: 99 of 100 tokens, 99 %\n"
        assert told(training, 300, 100, "measuring") == "measuring: 100 %\n"
    with ProgressBar("loading", unit="bytes", delay_s=1.0) as bar:
        assert told(bar, 0, 0) == ""
        assert told(bar, 60, 50) == "loading: 50 B of 100 B, 50 %\n"
        assert told(bar, 1, 100) == ""
        # A task of its own.
        assert told(bar, 600, 0) == ""


@pytest.mark.parametrize("error", [KeyboardInterrupt(), TerminatedError(15)])
def test_who_stops_a_command_reads_how_to_go_on(
    error: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(type(error)), when_stopped("the same command resumes"):
        raise error
    assert capsys.readouterr().err == "the same command resumes\n"


def test_progress_is_shown_for_large_models(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_as_stderr(monkeypatch)
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
    terminal = terminal_as_stderr(monkeypatch)
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
    terminal = terminal_as_stderr(monkeypatch)
    with pytest.raises(ZeroDivisionError), ProgressBar("packing") as bar:
        bar(1, 3, "another thing")
        assert "another thing" in terminal.taken()
        raise ZeroDivisionError
    assert SHOW_CURSOR in terminal.taken()


def test_a_new_bar_takes_the_one_before_away(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_as_stderr(monkeypatch)
    with ProgressBar("loading") as loading, ProgressBar("calibrating") as calibrating:
        loading(93, 100)
        calibrating(1, 2)
        (line,) = filter(None, shown_lines(terminal.getvalue()))
        assert line.startswith("calibrating")
        loading(94, 100)
        (line,) = filter(None, shown_lines(terminal.getvalue()))
        assert line.startswith("loading")
    assert not any(shown_lines(terminal.getvalue()))


def test_a_warning_has_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_as_stderr(monkeypatch)
    handler = program._AboveBars()
    with ProgressBar("loading") as bar:
        bar(93, 100)
        handler.emit(logging.makeLogRecord({"msg": "something is wrong"}))
        bar(94, 100)
        lines = list(filter(None, shown_lines(terminal.getvalue())))
        assert lines[0] == "something is wrong"
        assert lines[1].startswith("loading")
    assert list(filter(None, shown_lines(terminal.getvalue()))) == ["something is wrong"]


def test_what_takes_no_time_shows_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_as_stderr(monkeypatch)
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with ProgressBar("reading", unit="tokens", delay_s=1.0) as bar:
        for started_at in (100.0, 200.0):
            now[0] = started_at
            bar(0, 10)
            now[0] += 0.9
            bar(9, 10)
            bar(10, 10)
            assert terminal.taken() == ""
        bar(0, 10)
        now[0] += 1.1
        bar(5, 10)
        assert "5/10" in terminal.taken()
        bar(10, 10)
        bar(10, 10)
        assert terminal.taken().count(SHOW_CURSOR) == 1


LOAD = """
    from powerinfer.cli import model
    from powerinfer.cli.report import progress
    from powerinfer.cli.main import main
    model.PROGRESS_FROM_BYTES, progress._INTERVAL_S = 0, 0.0
    main()
"""


@pytest.mark.parametrize("columns", ["80", "30"])
def test_nothing_of_a_bar_stays_on_a_terminal(tmp_path: Path, columns: str) -> None:
    """A PowerInfer file has predictors, which are not among what is loaded: the total is missed."""
    path = write_model(tmp_path / "m.gguf", TINY_MODELS["bamboo"])
    program_text = textwrap.dedent(LOAD)
    flags = ("run", "-m", str(path), "-p", "hello", "-n", "1")
    written = run_on_terminal(
        [sys.executable, "-c", program_text, *flags], {"COLUMNS": columns, "LINES": "24"}
    )
    assert "loading" in written
    left = [line for line in shown_lines(written) if "loading" in line or "%" in line]
    assert all(line.startswith("load ") for line in left), left
