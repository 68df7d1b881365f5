"""The study of benchmarks/sparsify.py, tiny: complete, resumable; its page quotes its report."""

import fcntl
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("zstandard", reason="zstandard is not installed")

from corpus_folder import tiny_stories, write_corpus

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_corpus(folder, "tinystories", tiny_stories(120))
    write_corpus(folder, "tinystories", tiny_stories(30)[::-1], "valid")
    return folder


def _run(data: Path, out: Path) -> dict[str, Any]:
    from sparsify import main

    main(["--preset", "tiny", "--data", str(data), "-o", str(out), "--device", "cpu"])
    return _report(out)


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study that nothing stopped."""
    import torch

    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        _run(data, folder)
        torch.set_num_threads(threads)
    return folder


def _report(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def _measured(report: dict[str, Any]) -> list[tuple[float, list[float]]]:
    return [(run["perplexity"], run["zeros"]) for run in report["runs"]]


def _study(data: Path, out: Path) -> Any:
    from sparsifying.corpus import prepare_corpus
    from sparsifying.presets import PRESETS
    from sparsifying.study import Study

    preset = PRESETS["tiny"]
    corpus = prepare_corpus(data, out / "corpus", preset.sources, preset.vocab_size)
    return Study(preset, corpus, out, "cpu")


def _ignore(*_: object) -> None:
    return


def test_one_command_trains_and_measures_everything(finished: Path) -> None:
    report = _report(finished)
    assert report["missing"] == []
    runs = {
        (run["variant"], run["recipe"]["tokens"], run["is_trial"]): run for run in report["runs"]
    }
    variants = {"swiglu", "reglu", "drelu", "drelu-distilled"}
    assert {(name, tokens, False) for name in variants for tokens in (256, 512)} < set(runs)
    assert ("drelu", 256, True) in runs
    zeros = {name: sum(runs[name, 512, False]["zeros"]) / 2 for name in variants}
    assert zeros["swiglu"] == 0.0
    assert 0.2 < zeros["reglu"] < zeros["drelu"] < 1.0
    found = [run["perplexity"] for run in runs.values()]
    assert len(set(found)) == len(found)
    base = report["base"]
    assert base["perplexity"] < 0.9 * base["start"]["perplexity"]
    assert all(run["perplexity"] < base["perplexity"] for name, run in _largest(runs).items())
    for run in _largest(runs).values():
        assert set(run["top"]) == {"0.5", "0.1"}
    assert len(set(runs["swiglu", 512, False]["top"].values())) == 2
    assert runs["swiglu", 256, False]["top"] is None
    assert report["cpu_seconds"] > 0


def _largest(runs: dict[tuple[str, int, bool], Any]) -> dict[str, Any]:
    return {name: run for (name, tokens, _), run in runs.items() if tokens == 512}


def test_the_runs_are_checkpoints(data: Path, tmp_path: Path) -> None:
    study = _study(data, tmp_path)
    for job in study.jobs[:3]:
        assert study.run(job, _ignore)
    types = {
        job.variant: json.loads((tmp_path / job.name / "config.json").read_text())["model_type"]
        for job in study.jobs[:3]
    }
    assert types == {"base": "llama", "swiglu": "llama", "drelu": "bamboo"}
    assert (tmp_path / "drelu-512" / "tokenizer.json").exists()
    assert not (tmp_path / "drelu-512" / "checkpoint.pt").exists()


def test_a_stopped_study_goes_on_and_repeats_nothing(
    data: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sparsifying.study as module

    whole = _report(finished)
    monkeypatch.setattr(module, "_SAVE_SECONDS", -1.0)
    steps: list[tuple[str, int]] = []

    def stop_at_third(name: str, step: int, _steps: int, _figures: str) -> None:
        steps.append((name, step))
        if step == 3 and steps.count((name, 3)) == 1:
            raise KeyboardInterrupt

    study = _study(data, tmp_path / "cut")
    for job in study.jobs:
        for _ in range(2):
            try:
                study.run(job, stop_at_third)
            except KeyboardInterrupt:
                continue
    # Step 3 was made but not saved.
    base = [step for name, step in steps if name == "base"]
    assert base == [1, 2, 3, 3, 4, 5, 6, 7, 8]
    again = _run(data, tmp_path / "cut")
    assert _measured(again) == _measured(whole)
    assert again["base"]["perplexity"] == whole["base"]["perplexity"]
    made = len(steps)
    for job in study.jobs:
        study.run(job, stop_at_third)
    assert len(steps) == made


def test_a_run_of_another_process_is_left_to_it(data: Path, tmp_path: Path) -> None:
    study = _study(data, tmp_path)
    base = study.jobs[0]
    (tmp_path / "base").mkdir()
    with (tmp_path / "base" / "lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert not study.run(base, _ignore)
        assert study.figures(base) is None
    assert study.run(base, _ignore)
    assert study.figures(base)["recipe"] == asdict(base.recipe)


def test_a_folder_of_another_study_is_refused(data: Path, tmp_path: Path) -> None:
    study = _study(data, tmp_path)
    study.run(study.jobs[0], _ignore)
    path = tmp_path / "base" / "figures.json"
    figures = json.loads(path.read_text())
    figures["recipe"]["learning_rate"] *= 2
    path.write_text(json.dumps(figures))
    with pytest.raises(SystemExit, match=r"^error: .*another study"):
        _run(data, tmp_path)


def test_the_page_says_what_was_measured(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from figures import pictures, sparsify
    from figures.parts import PARTS

    report = _report(finished)
    monkeypatch.setattr(sparsify, "_report", lambda: report)
    runs = {
        run["variant"]: run
        for run in report["runs"]
        if run["recipe"]["tokens"] == 512 and not run["is_trial"]
    }
    ratio = runs["drelu"]["perplexity"] / runs["swiglu"]["perplexity"] - 1
    parts = {name: write() for name, write in PARTS.items() if name.startswith("sparsify")}
    assert f"| {100 * ratio:+.2f} % |" in parts["sparsify_budgets"]
    assert parts["sparsify_budgets"].count("\n") == 2 + 8
    assert f"{runs['reglu']['top']['0.1']:.2f} |" in parts["sparsify_top"]
    assert f"{100 * runs['drelu']['zeros'][1]:.1f} %" in parts["sparsify_layers"]
    assert [line.split(" | ")[1] for line in parts["sparsify_penalties"].splitlines()[2:]] == [
        *("0", "1") * 2
    ]
    assert f"{report['base']['perplexity']:.2f}" in parts["sparsify_setting"]
    assert f"{100 * ratio:+.2f} %" in pictures.PICTURES["sparsify-budgets.svg"]().svg()
