"""The examples for researchers run as they stand on their pages, and name what there is."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from command_line import run_json
from powerinfer import FFNObservation
from powerinfer.predictors import outside

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
_PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
_FIRST_CELL = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def _examples(page: str) -> list[str]:
    return _PYTHON.findall((DOCS / page).read_text(encoding="utf-8"))


def _run(code: str) -> None:
    exec(compile(code, "<example>", "exec"), {"__name__": "__main__"})


def test_the_example_of_observing(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = _examples("observing.md")
    assert len([line for line in example.splitlines() if line]) <= 10
    _run(example)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [f"layer {n}" for n in range(6)]
    shares = [float(line.split()[2].rstrip("%")) for line in lines]
    assert all(1 < share < 50 for share in shares)


def test_the_page_names_every_field_of_an_observation() -> None:
    named = _FIRST_CELL.findall((DOCS / "observing.md").read_text(encoding="utf-8"))
    wanted = {field.name for field in fields(FFNObservation)} | {"num_tokens"}
    assert sorted(named) == sorted(wanted)


def test_the_example_of_a_kind(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(outside, "_registered", {})
    (example,) = _examples("sparsity.md")
    assert len([line for line in example.splitlines() if line]) <= 15
    _run(example)
    assert len(capsys.readouterr().out.split()) > 10
    text = tmp_path / "text.txt"
    text.write_text("Once there was a girl who had a small red ball. She played with it. " * 20)
    report = run_json("calibrate", "-f", text, "--tokens", "256", "--kinds", "eight,sign+eight")
    assert [kind["kind"] for kind in report["kinds"]] == ["eight", "sign+eight"]
    ran = run_json("run", "-p", "Once", "-n", "8", "--sparsity", "eight")
    assert ran["layer_kinds"] == ["eight"] * 6
    assert 0.03 < ran["active_share"] <= ran["predicted_share"] < 0.6


def test_the_examples_of_an_export(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Once there was a girl who had a small red ball. She played with it. " * 20)
    measuring = ("calibrate", "-f", text, "--tokens", "256", "--kinds", "lowbit:2")
    for ending in ("npz", "csv"):
        run_json(*measuring, "--export", f"measured.{ending}")
    for example in _examples("calibration-file.md"):
        _run(example)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("layer 0: ")
    assert lines[1].startswith("lowbit:2 at a density of 0.")
    assert lines[2].startswith("layer 0: lowbit:2 finds ")
    assert len(lines) <= 8
