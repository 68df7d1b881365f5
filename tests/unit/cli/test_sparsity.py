"""The options of sparsity: what they choose, what is said about it, what is refused."""

import json
from pathlib import Path

import pytest

from command_line import assert_error, invoke, run_json
from powerinfer import LLM
from powerinfer.errors import PromptError
from powerinfer.options.options import engine_options
from powerinfer.predictors import kind_names
from tiny_models import TINY_MODELS, write_model

RUN = ("-p", "hello", "-n", "4", "--temp", "0", "--ignore-eos", "--kernels", "reference")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ReLU model without predictors."""
    return write_model(tmp_path_factory.mktemp("models") / "relu.gguf", TINY_MODELS["llama-relu"])


@pytest.mark.parametrize("command", ["run", "chat", "perplexity", "bench"])
def test_help_lists_every_kind_and_dial(command: str) -> None:
    shown = " ".join(invoke(command, "--help").stdout.split())
    for name in (*kind_names(), "off", "auto", "sign+lowbit:2"):
        assert name in shown
    for option in ("--max-ffn-error", "--recall", "--measure-recall"):
        assert option in shown


@pytest.mark.parametrize(
    ("flags", "messages"),
    [
        (["--sparsity", "exakt"], ["sparsity 'exakt'", "Did you mean 'exact'", "auto", "off"]),
        (["--sparsity", "lowbit:5"], ["lowbit:5", "lowbit:2, lowbit:3, lowbit:4"]),
        (["--sparsity", "exact+sign"], ["cannot be part of a cascade"]),
        (["--sparsity", "sign+sign+sign+sign"], ["at most 3 parts"]),
        (["--sparsity", "sign+"], ["sparsity 'sign+'", "joined by '+'"]),
        (["--sparsity", ""], ["sparsity ''"]),
        (["--max-ffn-error", "0"], ["--max-ffn-error must be above 0"]),
        (["--max-ffn-error", "nan"], ["--max-ffn-error must be above 0"]),
        (["--max-ffn-error", "1.5"], ["at most 1"]),
        (["--max-ffn-error", "much"], ["'much' is not a valid number"]),
        (["--recall", "-1"], ["--recall must be above 0"]),
        (["--sparsity", "exact", "--recall", "0.9"], ["sparsity exact misses no neuron"]),
        (["--recall", "0.9", "--max-ffn-error", "0.1"], ["--max-ffn-error or --recall, not both"]),
    ],
    ids=lambda value: "".join(value)[:24],
)
def test_bad_values(bamboo: Path, flags: list[str], messages: list[str]) -> None:
    for command in ("run", "bench"):
        prompt = ("-p", "a") if command == "run" else ()
        assert_error(invoke(command, "-m", bamboo, *prompt, *flags), *messages)


def test_bench_refuses_what_only_quality_reads(plain: Path) -> None:
    for flags in (["--errors", "0.1"], ["--settings", "off"], ["-f", "text.txt"]):
        assert_error(invoke("bench", "-m", plain, *flags), "give --quality too")
    result = invoke("bench", "-m", plain, "--quality", "--settings", "off,magic")
    assert_error(result, "sparsity 'magic'")
    assert result.stderr.count("\n") == 1


def test_a_dial_needs_neurons_to_skip(tmp_path: Path) -> None:
    silu = write_model(tmp_path / "silu.gguf", TINY_MODELS["llama"])
    for dial in (["--max-ffn-error", "0.1"], ["--recall", "0.9"]):
        assert_error(invoke("run", "-m", silu, "-p", "a", *dial), "ReLU family", "silu")
    for kind in ("exact", " EXACT", "off", "oracle"):
        with pytest.raises(PromptError, match="misses no neuron"):
            LLM(silu, sparsity=kind, recall=0.9)


@pytest.mark.parametrize("name", ["measure_recall", "mmap", "context_shift", "reuse_prefix"])
def test_flags_of_the_api_are_true_or_false(name: str) -> None:
    for value in ("yes", 1, None):
        with pytest.raises(PromptError, match=f"{name} must be True or False, got {value!r}"):
            engine_options(**{name: value})  # type: ignore[arg-type]


def test_kinds_that_a_file_cannot_serve(
    tmp_path: Path, plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(*_: object, **__: object) -> None:
        raise AssertionError("it was measured first")

    monkeypatch.setattr("powerinfer.calibration.sparsity.brief_calibration", measured)
    for dial in ([], ["--max-ffn-error", "0.1"]):
        result = invoke("run", "-m", plain, "-p", "a", "--sparsity", "mlp", *dial)
        assert_error(result, "blk.0.fc1.weight")
    silu = write_model(tmp_path / "silu.gguf", TINY_MODELS["llama"])
    assert_error(invoke("run", "-m", silu, "-p", "a", "--sparsity", "sign"), "ReLU family")


@pytest.mark.parametrize(
    ("sparsity", "said"),
    [
        ("exact", "exact: neurons that do not fire are skipped, without loss"),
        ("off", "off: every neuron is computed"),
        ("mlp", "mlp: the file's own predictors and threshold"),
        ("LOWBIT:3", "lowbit:3: default thresholds, not calibrated"),
    ],
)
def test_what_runs_is_said_in_one_line(bamboo: Path, sparsity: str, said: str) -> None:
    result = invoke("run", "-m", bamboo, *RUN, "--sparsity", sparsity)
    start = result.stderr.splitlines()[0]
    assert start.startswith("bamboo.gguf: bamboo, 2 layers, drelu FFN, sparsity ")
    assert said in start
    assert ("; predicted " in result.stderr) == (sparsity not in ("exact", "off"))


def test_a_powerinfer_file_runs_its_predictors(bamboo: Path, plain: Path) -> None:
    report = run_json("run", "-m", bamboo, *RUN)
    assert report["sparsity"] == "mlp"
    assert report["layer_kinds"] == ["mlp", "mlp"]
    assert 0 < report["active_share"] <= report["predicted_share"] < 1
    assert report["recall"] is report["precision"] is report["ffn_error"] is None
    assert run_json("run", "-m", plain, *RUN)["sparsity"] == "exact"


def test_recall_is_measured_without_being_counted(bamboo: Path) -> None:
    common = ("run", "-m", bamboo, *RUN)
    report, plain_report = run_json(*common, "--measure-recall"), run_json(*common)
    for key in ("token_ids", "bytes_per_token", "active_share", "predicted_share"):
        assert report[key] == plain_report[key]
    for key in ("recall", "precision", "ffn_error"):
        assert len(report[key]) == 2
        assert all(0 < value < 1 for value in report[key])
    shown = invoke(*common, "--measure-recall").stderr
    assert "speeds mean nothing" in shown.splitlines()[0]
    assert "FFN error: norm of the FFN output's error" in shown
    rows = [line.split() for line in shown.splitlines() if line.split()[1:2] == ["mlp"]]
    assert [row[0] for row in rows] == ["0", "1"]
    assert float(rows[0][-1]) == pytest.approx(report["ffn_error"][0], abs=1e-5)


@pytest.mark.parametrize("sparsity", ["exact", "off"])
def test_nothing_is_missed_without_a_predictor(bamboo: Path, sparsity: str) -> None:
    report = run_json("run", "-m", bamboo, *RUN, "--sparsity", sparsity, "--measure-recall")
    assert report["recall"] == [1.0, 1.0]
    assert report["ffn_error"] == [0.0, 0.0]
    assert report["predicted_share"] is None


def test_perplexity_bench_and_chat_take_the_same_options(tmp_path: Path, bamboo: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog " * 2)
    flags = ("-m", bamboo, "--kernels", "reference", "--sparsity", "sign", "--measure-recall")
    report = run_json("perplexity", *flags, "-f", text, "-c", "16")
    assert report["sparsity"] == "sign"
    assert 0 < report["active_share"] <= report["predicted_share"] <= 1
    assert len(report["recall"]) == 2
    shown = invoke("perplexity", *flags, "-f", text, "-c", "16")
    assert "active neurons" in shown.stderr
    assert "recall" in shown.stderr
    bench = run_json("bench", *flags, "--prefill", "4", "--decode", "2", "--repeats", "1")
    assert bench["layer_kinds"] == ["sign", "sign"]
    assert 0 < bench["predicted_share"] <= 1
    assert len(bench["ffn_error"]) == 2
    chat = invoke("chat", *flags, "-n", "2", stdin="hello\n")
    assert chat.exit_code == 0
    assert "precision" in chat.stderr


def test_json_knows_no_nan(bamboo: Path) -> None:
    result = invoke("run", "-m", bamboo, *RUN, "-n", "0", "--measure-recall", "--json")
    assert json.loads(result.stdout)["predicted_share"] is None
