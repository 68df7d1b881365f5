"""How far the computation of a prompt is: said often, never wrong, and without changing a bit."""

from pathlib import Path

import numpy as np
import pytest

from command_line import run_json
from powerinfer import LLM, SamplingParams
from powerinfer.cli import model as models
from powerinfer.cli.commands import run as run_command
from powerinfer.cli.report import progress
from terminal import shown_lines, terminal_as_stderr
from tiny_models import TINY_MODELS, write_model

Reports = list[tuple[int, int]]


@pytest.mark.parametrize("name", TINY_MODELS)
def test_every_layer_of_every_architecture_reports(tmp_path: Path, name: str) -> None:
    path = write_model(tmp_path / "m.gguf", TINY_MODELS[name])
    reports: Reports = []
    with LLM(path) as silent, LLM(path, reading=lambda *at: reports.append(at)) as telling:
        ids = silent.encode("the quick brown fox jumps over the lazy dog")
        wanted = silent.new_sequence().extend(ids)
        np.testing.assert_array_equal(telling.new_sequence().extend(ids), wanted)
        num_layers = telling.loaded.model.config.num_layers
    assert len(reports) == num_layers + 2
    assert reports == sorted(reports)
    assert reports[0] == (0, len(ids))
    assert reports.index((len(ids), len(ids))) == len(reports) - 1


def test_several_steps_and_the_model_s_own_observer(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", TINY_MODELS["bamboo"])
    reports: Reports = []
    options = {"batch_size": 4, "measure_recall": True}
    with LLM(path, reading=lambda *at: reports.append(at), **options) as llm:  # type: ignore[arg-type]
        ids = llm.encode("hello world")[:10]
        llm.new_sequence().extend(ids)
        assert reports == [(0, 10), (4, 10), (8, 10), (10, 10)]
        # Measuring goes on: the observer of the model was not replaced.
        meter = llm.loaded.model.observer
        assert meter is not None
        reports.clear()
        for _ in llm.stream(ids):
            break
        assert reports[-1] == (10, 10)


def test_tokens_one_at_a_time_report_nothing(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", TINY_MODELS["llama"])
    reports: Reports = []
    with LLM(path, reading=lambda *at: reports.append(at)) as llm:
        sequence = llm.new_sequence()
        sequence.extend(llm.encode("hello"))
        assert reports
        reports.clear()
        sequence.extend([5])
    assert reports == []


def test_a_bar_never_shares_a_line_with_the_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """stdout and stderr are one terminal, and every report draws the bar."""
    path = write_model(tmp_path / "m.gguf", TINY_MODELS["llama"])
    terminal = terminal_as_stderr(monkeypatch)
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setattr(progress, "_INTERVAL_S", 0.0)
    bar = progress.ProgressBar("reading the prompt", unit="tokens")
    with bar, models.open_llm(path, {}, bar) as llm:
        params = SamplingParams(max_tokens=3, seed=1, ignore_eos=True)
        text = run_command._completion(llm, b"hello there", params, displays_prompt=True)
        run_command._print_text(llm, text)
    assert "reading the prompt" in terminal.getvalue()
    assert shown_lines(terminal.getvalue())[0].startswith("hello there")
    assert "reading" not in "".join(shown_lines(terminal.getvalue()))


def test_perplexity_shows_the_tokens_of_all_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_model(tmp_path / "m.gguf", TINY_MODELS["llama"])
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog " * 4)
    reports: Reports = []

    def shown(_bar: progress.ProgressBar, done: int, total: int, what: str | None = None) -> None:
        if what is not None:
            reports.append((done, total))

    monkeypatch.setattr(progress.ProgressBar, "__call__", shown)
    report = run_json("perplexity", "-m", model, "-f", text, "-c", "16")
    total = 15 * report["windows"]
    assert {all_tokens for _, all_tokens in reports} == {total}
    assert reports == sorted(reports)
    assert reports[-1] == (total, total)
    # More often than once a window.
    assert len(set(reports)) > 2 * report["windows"]
