"""`powerinfer eval`: figures of settings, tables, and what it refuses."""

import dataclasses
import importlib.util
import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from command_line import assert_error, invoke, run_json
from pages import ROOT
from patience import PATIENCE_S
from powerinfer import LLM
from tiny_models import TINY_MODELS, write_model

HAS_LM_EVAL = importlib.util.find_spec("lm_eval") is not None
needs_lm_eval = pytest.mark.needs("lm_eval")

QUERIES = ["the quick", "brown fox", "jumps over", "the lazy dog", "tells a", "long story"]
WORDS = [["old man", "young lady"], ["fox", "dog", "cat"]]
TEXT = "the quick brown fox jumps over the lazy dog while the old man tells a long story " * 40


def _rows(count: int = 24) -> list[dict[str, object]]:
    return [
        {"query": f"{QUERIES[i % 6]} {QUERIES[i % 5]}", "choices": WORDS[i % 2], "gold": i % 2}
        for i in range(count)
    ]


def _save(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    _save(folder / "piqa.jsonl", _rows())
    contexts = {"context_options": QUERIES[:2], "continuation": "fox", "gold": 1}
    _save(folder / "contexts.jsonl", [contexts] * 4)
    _save(folder / "next.jsonl", [{"context": each, "continuation": "fox"} for each in QUERIES])
    (folder / "text.txt").write_text(TEXT)
    return folder


@pytest.fixture(scope="module")
def report(bamboo: Path, folder: Path) -> dict[str, Any]:
    files = ",".join(str(folder / name) for name in ("contexts.jsonl", "next.jsonl"))
    return run_json(
        *("eval", "-m", bamboo, "--tasks", f"piqa,{files}", "--data", folder),
        *("--settings", "exact,default,lowbit:2,off", "-f", folder / "text.txt"),
    )


@needs_lm_eval
def test_json_has_every_task_and_setting(report: dict[str, Any]) -> None:
    assert list(report["tasks"]) == ["piqa", "contexts", "next"]
    for settings in report["tasks"].values():
        # The dense model comes first, wherever it is named.
        assert list(settings) == ["off", "exact", "default", "lowbit:2"]
        assert settings["off"]["difference"] is None
        for row in settings.values():
            assert 0 <= row["accuracy"] <= 1
            assert row["truncated"] == 0
    assert {name: rows["off"]["items"] for name, rows in report["tasks"].items()} == {
        "piqa": 24,
        "contexts": 4,
        "next": 6,
    }
    assert report["sparsity"] == {
        "off": "off",
        "exact": "exact",
        "default": "mlp",
        "lowbit:2": "lowbit:2",
    }
    piqa, others = report["tasks"]["piqa"], report["tasks"]["next"]
    assert piqa["off"]["normalized_accuracy"] is not None
    assert others["off"]["normalized_accuracy"] is None


@needs_lm_eval
def test_exact_answers_as_dense_does(report: dict[str, Any]) -> None:
    for settings in report["tasks"].values():
        dense, exact = settings["off"], settings["exact"]
        assert exact["equal_answers"] == 1
        assert exact["difference"] == exact["difference_standard_error"] == 0
        for key in ("accuracy", "standard_error", "normalized_accuracy"):
            assert exact[key] == dense[key]


@needs_lm_eval
def test_accuracy_is_that_of_the_likeliest_choices(report: dict[str, Any], bamboo: Path) -> None:
    """Scored by the Python API, item by item."""
    for setting, sparsity in (("off", "off"), ("default", None), ("lowbit:2", "lowbit:2")):
        right = []
        with LLM(bamboo, sparsity=sparsity) as llm:
            for row in _rows():
                query, choices = f"{row['query']}\nAnswer:", row["choices"]
                assert isinstance(choices, list)
                scores = llm.score([(query, f" {choice}") for choice in choices])
                likeliest = max(range(len(choices)), key=lambda i: scores[i].logprob)
                right.append(likeliest == row["gold"])
        assert report["tasks"]["piqa"][setting]["accuracy"] == sum(right) / len(right)


@needs_lm_eval
def test_perplexity_is_that_of_the_perplexity_command(
    report: dict[str, Any], bamboo: Path, folder: Path
) -> None:
    window = report["perplexity"]["off"]["tokens"]
    assert window > 0
    for setting, row in report["perplexity"].items():
        flags = () if setting == "default" else ("--sparsity", setting)
        # A tiny model's context is shorter than the usual window.
        with LLM(bamboo) as llm:
            length = min(512, llm.loaded.model.context_length)
        arguments = ("-m", bamboo, "-f", folder / "text.txt", "-c", str(length))
        expected = run_json("perplexity", *arguments, *flags)
        assert row["perplexity"] == pytest.approx(expected["perplexity"], rel=1e-12)
        assert row["standard_error"] == pytest.approx(expected["standard_error"], rel=1e-9)
        assert row["tokens"] == expected["tokens"]
    assert report["perplexity"]["off"]["perplexity_ratio"] is None
    assert report["perplexity"]["exact"]["perplexity_ratio"] == pytest.approx(1, abs=1e-5)


@needs_lm_eval
def test_tables(bamboo: Path, folder: Path) -> None:
    result = invoke(
        *("eval", "-m", bamboo, "--tasks", f"piqa,{folder}/next.jsonl", "--data", folder),
        *("--limit", "3", "-f", folder / "text.txt"),
    )
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == f"piqa: 3 items of {folder / 'piqa.jsonl'}"
    assert lines[1].split() == [
        *("setting", "accuracy", "+/-", "difference", "+/-", "equal", "answers"),
        *("per", "character", "+/-"),
    ]
    assert lines[2].split()[0] == "off"
    assert lines[3].startswith("  default: mlp ")
    assert f"next: 3 items of {folder / 'next.jsonl'}" in lines
    assert any(line.startswith("perplexity: ") for line in lines)
    assert "the difference" not in result.stdout
    assert "paired" in result.stderr


@needs_lm_eval
def test_a_model_that_cannot_skip_is_measured_once(folder: Path, tmp_path: Path) -> None:
    model = write_model(tmp_path / "silu.gguf", TINY_MODELS["llama"])
    report = run_json("eval", "-m", model, "--tasks", folder / "next.jsonl")
    rows = report["tasks"]["next"]
    assert report["sparsity"] == {"off": "off", "default": "off"}
    assert rows["default"]["equal_answers"] == 1
    assert rows["default"]["accuracy"] == rows["off"]["accuracy"]
    result = invoke("eval", "-m", model, "--tasks", folder / "next.jsonl", "--settings", "exact")
    assert_error(result, "exact")


@needs_lm_eval
def test_items_longer_than_the_context_lose_their_beginning(bamboo: Path, tmp_path: Path) -> None:
    path = _save(tmp_path / "long.jsonl", [{"context": TEXT[:400], "continuation": "fox"}])
    common = ("eval", "-m", bamboo, "--tasks", path, "-c", "32", "--settings", "off")
    assert run_json(*common)["tasks"]["long"]["off"]["truncated"] == 1
    result = invoke(*common)
    assert "1 request did not fit into the context" in result.stderr
    path = _save(tmp_path / "long.jsonl", [{"context": "a", "continuation": TEXT[:400]}])
    assert_error(invoke(*common), "tokens, the context holds 32", "larger context (-c)")


@needs_lm_eval
def test_a_text_that_is_too_short_is_refused_first(
    bamboo: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "short.txt").write_text("the quick")

    def refuse(*_: object) -> None:
        pytest.fail("a task was asked")

    monkeypatch.setattr("powerinfer.evaluation.evaluate.ask_all", refuse)
    arguments = ("--tasks", folder / "next.jsonl", "-f", tmp_path / "short.txt")
    assert_error(invoke("eval", "-m", bamboo, *arguments), "less than one window")


@needs_lm_eval
def test_results_come_one_by_one_without_progress_too(bamboo: Path, folder: Path) -> None:
    from powerinfer.evaluation.evaluate import EvalPlan, evaluate_settings
    from powerinfer.evaluation.task import find_tasks
    from powerinfer.options.options import EngineOptions

    tasks = find_tasks([str(folder / "next.jsonl")], None)
    plan = EvalPlan(tuple(tasks), ("exact",), TEXT.encode())
    results = evaluate_settings(bamboo, EngineOptions(), plan)
    assert next(results).setting == "off"
    (last,) = results
    assert (last.setting, last.tasks["next"].equal_answers) == ("exact", 1)
    assert last.text is not None


@needs_lm_eval
def test_ctrl_c_ends_it(bamboo: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from powerinfer.evaluation.engine_lm import EngineLM

    def interrupt(_lm: EngineLM, done: int, _total: int) -> None:
        if done >= 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(EngineLM, "_report", interrupt)
    result = invoke("eval", "-m", bamboo, "--tasks", folder / "next.jsonl")
    assert result.exit_code == 130
    assert result.stdout == ""
    assert "Traceback" not in result.output


def test_without_lm_eval_one_line_says_what_to_install(
    bamboo: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "lm_eval" else find(name)
    )
    for asked in (("--tasks", folder / "next.jsonl"), ("-f", folder / "next.jsonl")):
        result = invoke("eval", "-m", bamboo, *asked)
        assert_error(result, "eval needs lm-eval, which is not installed", "install the extra eval")


def test_a_broken_lm_eval_is_one_line(
    bamboo: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "lm_eval"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "lm_eval").mkdir()
    (tmp_path / "lm_eval" / "__init__.py").write_text("raise ImportError('no\\n datasets')")
    monkeypatch.syspath_prepend(str(tmp_path))
    result = invoke("eval", "-m", bamboo, "--tasks", folder / "next.jsonl")
    assert_error(result, "lm-eval, which cannot be imported: no datasets", "the extra eval")


@needs_lm_eval
def test_a_setting_that_does_not_fit_is_refused_before_anything_is_measured(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from powerinfer.evaluation import evaluate

    def fail(*_: object) -> None:
        raise AssertionError("it measures")

    monkeypatch.setattr(evaluate, "ask_all", fail)
    model = write_model(tmp_path / "silu.gguf", TINY_MODELS["llama"])
    flags = ("--tasks", folder / "next.jsonl", "--settings", "default,lowbit:3")
    assert_error(invoke("eval", "-m", model, *flags), "'lowbit:3' needs an activation of the ReLU")


def test_what_makes_no_sense_is_refused(bamboo: Path, folder: Path) -> None:
    tasks = ("--tasks", folder / "next.jsonl")
    assert_error(invoke("eval", "-m", bamboo), "nothing to measure", "--tasks", "-f")
    assert_error(invoke("eval", *tasks, "--limit", "0"), "--limit")
    assert_error(invoke("eval", *tasks, "--settings", "lowbit:9"), "lowbit")
    # Settings say which neurons run, and all of them run on the CPU.
    for flag in ("--sparsity", "--device"):
        assert_error(invoke("eval", *tasks, flag, "x"), flag)


_WITHOUT_NETWORK = textwrap.dedent("""
    import runpy, socket, sys

    def refuse(*_, **__):
        print("NETWORK", file=sys.stderr)
        raise OSError("no network here")

    for name in ("connect", "connect_ex", "sendto"):
        setattr(socket.socket, name, refuse)
    for name in ("getaddrinfo", "create_connection", "gethostbyname"):
        setattr(socket, name, refuse)
    sys.argv[:] = ["powerinfer", *{arguments!r}]
    try:
        runpy.run_module("powerinfer", run_name="__main__", alter_sys=True)
    finally:
        assert "torch" not in sys.modules
""")


@needs_lm_eval
@pytest.mark.slow
def test_nothing_asks_the_network_or_imports_torch(bamboo: Path, folder: Path) -> None:
    arguments = ["eval", "-m", str(bamboo), "--tasks", f"piqa,{folder}/next.jsonl"]
    arguments += ["--data", str(folder), "--limit", "2", "--json"]
    code = _WITHOUT_NETWORK.format(arguments=arguments)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    assert list(json.loads(done.stdout)["tasks"]) == ["piqa", "next"]
    # Bars of lm-eval would be seen here, where nobody looks at a terminal.
    assert done.stderr == ""


@needs_lm_eval
@pytest.mark.thorough
def test_every_sample_file_on_the_embedded_model(data_dir: Path) -> None:
    """50 items of each; sparse figures are those of the dense model where nothing is lost."""
    from powerinfer import _plugins

    names = ",".join(_plugins.keys("powerinfer.evaluation.tasks"))
    report = run_json(
        *("eval", "--tasks", names, "--data", data_dir / "eval"),
        *("--limit", "50", "--settings", "off,exact"),
    )
    assert len(report["tasks"]) == 11
    for settings in report["tasks"].values():
        assert settings["off"]["items"] == 50
        assert settings["exact"]["equal_answers"] == 1
        assert settings["exact"]["accuracy"] == settings["off"]["accuracy"]


@needs_lm_eval
@pytest.mark.slow
def test_the_example_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "models" / "eval.md").read_text(encoding="utf-8")
    rows = page.split("```json\n")[1].split("```")[0].splitlines()
    assert len(rows) == 3
    for number, row in enumerate(rows):
        (tmp_path / f"form{number}.jsonl").write_text(row)
    (tmp_path / "questions.jsonl").write_text(rows[0])
    monkeypatch.chdir(tmp_path)
    code = page.split("```python\n")[1].split("```")[0]
    exec(compile(code, "eval.md", "exec"), {})
    assert float(capsys.readouterr().out.splitlines()[-1]) in (0, 1)
    files = ",".join(f"./form{number}.jsonl" for number in range(3))
    report = run_json("eval", "--tasks", files, "--settings", "off")
    assert list(report["tasks"]) == ["form0", "form1", "form2"]


def test_the_page_names_every_key_and_task() -> None:
    from powerinfer import _plugins
    from powerinfer.evaluation.answers import TaskRow

    page = (ROOT / "docs" / "models" / "eval.md").read_text(encoding="utf-8")
    for key in (*(field.name for field in dataclasses.fields(TaskRow)), "perplexity_ratio"):
        assert f"`{key}`" in page
    for name in _plugins.keys("powerinfer.evaluation.tasks"):
        assert f"| `{name}` |" in page
