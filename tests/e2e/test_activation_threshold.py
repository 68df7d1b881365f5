"""`--activation-threshold` on the command line: calibrated, run, and the curve by one command."""

from pathlib import Path

import pytest

from command_line import assert_error, invoke, run_json
from tiny_models import TINY_MODELS, write_model

TEXT = "the old fox saw a red hen run over the hill and sat down to think of his supper. " * 9


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text(TEXT)
    return write_model(tmp_path / "m.gguf", TINY_MODELS["llama"])


def test_calibrate_then_run_and_score(model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    result = invoke("calibrate", "-m", model, "-f", text, "--zeros", "0.4")
    assert result.exit_code == 0, result.output
    assert "chosen for zeros 0.4" in result.stdout
    report = run_json("calibrate", "-m", model, "-f", text, "--zeros", "0.4")
    assert report["zeros"] == 0.4
    assert {layer["kind"] for layer in report["layers"]} == {"threshold"}
    kinds = ("--kinds", "threshold")
    report = run_json("calibrate", "-m", model, "-f", text, *kinds, "--max-ffn-error", "0.9")
    assert report["max_ffn_error"] == 0.9
    assert {layer["kind"] for layer in report["layers"]} == {"threshold"}
    auto = ("--activation-threshold", "auto")
    run = run_json("run", "-m", model, "-p", "the fox", "-n", "4", "--temp", "0", *auto)
    assert run["sparsity"] == "threshold:auto"
    assert run["layer_kinds"] == ["threshold"] * 2
    assert run["active_share"] < 0.9
    assert "lossy: neurons with |silu|" in invoke("run", "-m", model, "-p", "a", *auto).stderr
    scored = ("perplexity", "-m", model, "-f", text, "-c", "16")
    dense, cut = run_json(*scored), run_json(*scored, *auto)
    assert dense["perplexity"] != cut["perplexity"]
    none = run_json(*scored, "--activation-threshold", "0")
    assert none["perplexity"] == dense["perplexity"]


def test_one_command_prints_the_curve(model: Path, tmp_path: Path) -> None:
    names = "threshold:0.01,threshold:0.3,threshold:auto"
    report = run_json(
        *("bench", "--quality", "-m", model, "-f", tmp_path / "text.txt", "-c", "32"),
        *("--decode", "2", "--repeats", "1", "--settings", names, "--errors", "0.1,0.9"),
    )
    rows = {row["setting"]: row for row in report["rows"]}
    assert list(rows) == [
        *("off", "threshold:0.01", "threshold:0.3", "threshold:auto"),
        *("threshold:auto @ 0.1", "threshold:auto @ 0.9"),
    ]
    assert rows["threshold:0.01"]["active_share"] > rows["threshold:0.3"]["active_share"]
    assert rows["off"]["active_share"] == 1
    worst = [max(rows[name]["ffn_error"]) for name in list(rows)[1:3]]
    assert worst[0] < worst[1]


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (("--activation-threshold", "big"), ["--activation-threshold", "auto, or a number"]),
        (("--activation-threshold", "-1"), ["auto, or a number from 0"]),
        (("--activation-threshold", "0.1", "--sparsity", "exact"), ["leave it or --sparsity out"]),
        (("--activation-threshold", "0.1", "--device", "cuda"), ["on the CPU alone"]),
        (("--max-ffn-error", "0.1"), ["need an activation of the ReLU family"]),
    ],
)
def test_bad_input_is_one_line(
    model: Path, arguments: tuple[str, ...], messages: list[str]
) -> None:
    assert_error(invoke("run", "-m", model, "-p", "a", *arguments), *messages)


def test_settings_that_make_no_sense(model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    bench = ("bench", "--quality", "-m", model, "-f", text, "-c", "32")
    assert_error(invoke(*bench, "--settings", "threshold:x"), "threshold must be auto, or a number")
    assert_error(invoke(*bench, "--activation-threshold", "0"), "leave --activation-threshold out")
    relu = write_model(tmp_path / "relu.gguf", TINY_MODELS["llama-relu"])
    bench = ("bench", "--quality", "-m", relu, "-f", text, "-c", "32")
    assert_error(invoke(*bench, "--settings", "threshold:0.1"), "silu and gelu", "runs relu")
    assert_error(invoke("calibrate", "-m", relu, "--zeros", "0.5"), "silu and gelu", "--zeros")
    assert_error(invoke("calibrate", "-m", relu, "--kinds", "threshold"), "silu", "--kinds")
    assert_error(invoke("calibrate", "-m", model), "nothing to calibrate", "--zeros finds")
    wrong = ("--zeros", "0.5", "--kinds", "sign")
    assert_error(invoke("calibrate", "-m", model, *wrong), "ReLU family")
    both = ("--zeros", "0.5", "--max-ffn-error", "0.1")
    assert_error(invoke("calibrate", "-m", model, *both), "--max-ffn-error or --zeros, not both")


def test_profiles_of_silu_are_refused(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    assert_error(invoke("profile", "-m", model, "-f", tmp_path / "text.txt"), "with --activation")
