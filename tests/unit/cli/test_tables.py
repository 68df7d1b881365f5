"""Tables on a terminal of 80 columns: every cell is whole, no line is longer."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from command_line import invoke
from placement_cases import model_shape
from powerinfer._files import decimal_bytes
from powerinfer.bench.read_bandwidth import PLAIN_READ_SETTINGS, PlainReader
from powerinfer.calibration.recall import LayerRecall
from powerinfer.cli.report import machine
from powerinfer.cli.report.calibration import print_report
from powerinfer.cli.report.placement import print_budgets, print_layers, print_parts
from powerinfer.cli.report.sparsity import print_recall
from powerinfer.cli.report.tables import change, print_paragraph, print_table
from powerinfer.offload import devices
from powerinfer.ops.cpu.prefetch_settings import PlainReadSettings
from powerinfer.placement.plan import LayerPlacement, PlacementPlan
from powerinfer.placement.solvers import BudgetPoint
from powerinfer.predictors import LayerChoice
from powerinfer.predictors.calibration import (
    DEFAULT_DIAL,
    Calibration,
    CurvePoint,
    LayerCalibration,
)
from tiny_models import TINY_MODELS, write_model

NUM_LAYERS = 80
CASCADE = "sign+lowbit:2+lowbit:4"


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(devices, "has_driver", lambda: False)


def _assert_narrow(shown: str) -> None:
    # A path is as long as it is, and stands in one piece so that it can be copied.
    lines = [line for line in shown.splitlines() if not re.fullmatch(r" *(stored in )?\S+", line)]
    assert [line for line in lines if len(line) > 80] == []
    assert "…" not in shown


# The printer


def test_a_table_that_is_too_wide_becomes_several(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [[f"head {column:03}" for column in range(20)]]
    rows += [[f"{row} {column:06}" for column in range(20)] for row in range(3)]
    print_table(rows, indent=2)
    shown = capsys.readouterr().out
    _assert_narrow(shown)
    tables = [table.splitlines() for table in shown.split("\n\n")]
    assert len(tables) == 3
    # All begin with the first column, and together have every cell once.
    found = [[cell for table in tables for cell in _cells(table[row])[1:]] for row in range(4)]
    assert found == [row[1:] for row in rows]
    assert all(_cells(table[row])[0] == rows[row][0] for table in tables for row in range(4))


def _cells(line: str) -> list[str]:
    return re.split(r"  +", line.strip())


def test_a_table_that_fits_stays_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [["a" * 39, "b" * 39], ["1", "2"]]
    print_table(rows, left=(0,))
    assert capsys.readouterr().out.splitlines() == [
        "a" * 39 + "  " + "b" * 39,
        "1" + " " * 78 + "2",
    ]
    print_table([["a" * 90, "b"], ["1", "2"]])  # nothing can be done about a cell
    assert capsys.readouterr().out.splitlines()[0] == f"{'a' * 90}  b"
    # In a file or a pipe, a row is a line however long.
    monkeypatch.delenv("COLUMNS")
    print_table([["cell" * 5] * 20])
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_difference_has_a_sign_and_zero_a_plus() -> None:
    assert [change(share) for share in (-4e-5, 4e-5, -1e-4, 0.5, None)] == [
        *("+0.00 %", "+0.00 %", "-0.01 %", "+50.00 %", "-"),
    ]
    assert change(-0.004, 0) == "+0 %"


def test_sizes_of_small_files_are_told_in_megabytes() -> None:
    assert [decimal_bytes(count) for count in (0, 93.8e6, 999.9e6, 1e9, 13.5e9)] == [
        *("0.0 MB", "93.8 MB", "999.9 MB", "1.00 GB", "13.50 GB"),
    ]


def test_paragraphs_break_between_words(capsys: pytest.CaptureFixture[str]) -> None:
    path = "/a-long-path" * 9
    print_paragraph(f"{'word ' * 20}stored in {path} --max-ffn-error", indent=2, hanging=4)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "  word" + " word" * 14
    assert f"    {path}" in lines
    assert lines[-1] == "    --max-ffn-error"


# Tables of a model of 80 layers


def _point(number: int) -> CurvePoint:
    thresholds = (-0.00123 - number, 1234.5 + number, -1.23e-5)
    return CurvePoint(thresholds, 0.123, 0.9987, 0.456, 0.0099, 0.45)


def test_calibrations(capsys: pytest.CaptureFixture[str]) -> None:
    numbers = np.ones(4, np.float32)
    layers = tuple(
        LayerCalibration(
            np.arange(4, dtype=np.int64),
            numbers,
            numbers,
            {CASCADE: (_point(number),), "lowbit:2": ()},
            LayerChoice(CASCADE, _point(number).thresholds),
        )
        for number in range(NUM_LAYERS)
    )
    found = Calibration("0" * 64, "drelu", "some text", 4096, DEFAULT_DIAL, layers)
    print_report(found, range(NUM_LAYERS), Path("m.calibration.json"), [], [])
    shown = capsys.readouterr().out
    _assert_narrow(shown)
    rows = [line for line in shown.splitlines() if line.split()[:1] == ["79"]]
    assert CASCADE in rows[0]
    assert "-79, 1.31e+03, -1.23e-05" in rows[0]
    assert any("45.6 %" in row and "0.0099" in row for row in rows)


def test_recall(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Meter:
        has_experts = True
        layers = (LayerRecall(CASCADE, 7, 6, 5, 11, 0.001, 1.0),) * NUM_LAYERS

    monkeypatch.setattr("powerinfer.cli.report.sparsity.recall_meter", lambda _: Meter())
    print_recall(None)  # type: ignore[arg-type]
    shown = capsys.readouterr().err
    _assert_narrow(shown)
    assert "0.03162" in shown


@pytest.mark.parametrize("num_layers", [2, 8, NUM_LAYERS])
def test_placements(capsys: pytest.CaptureFixture[str], num_layers: int) -> None:
    problem = model_shape(num_layers, 8192, 28672, has_predictor=True, is_parallel=False)
    layers = tuple(
        LayerPlacement(True, True, np.arange(28672 - number, dtype=np.int32))
        for number in range(num_layers)
    )
    plan = PlacementPlan("", "latency", 1023 << 30, 28672, True, layers)
    print_layers(problem, plan)
    print_parts(problem, plan)
    shown = capsys.readouterr().out
    _assert_narrow(shown)
    (hot,) = (line for line in shown.splitlines() if line.startswith("  hot neurons"))
    assert "28672" in hot
    assert re.search(r"\(\d+\.\d %\) +\S+ \wiB$", hot)


# What the commands print


@pytest.fixture
def model(tmp_path: Path) -> Path:
    recipe = replace(TINY_MODELS["llama-relu"], num_layers=12)
    return write_model(tmp_path / "relu.gguf", recipe)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("the quick brown fox jumps over the lazy dog. " * 8)
    return path


Command = Callable[[Path, Path], list[str | Path]]


@pytest.mark.parametrize(
    "command",
    [
        lambda model, text: ["inspect"],
        lambda model, text: ["inspect", "--tensors"],
        lambda model, text: ["inspect", "--machine"],
        lambda model, text: ["plan", "--vram-budget", "1", "-o", text.with_suffix(".json")],
        lambda model, text: ["calibrate", "-m", model, "-f", text, "--kinds", f"sign,{CASCADE}"],
        lambda model, text: ["bench", "-m", model, "--prefill", "8", "--decode", "2"],
        lambda model, text: [
            *("bench", "--quality", "-m", model, "-f", text, "-c", "16", "--windows", "1"),
            *("--decode", "1", "--repeats", "2", "--settings", f"exact,default,{CASCADE}"),
        ],
        lambda model, text: [
            *("perplexity", "-m", model, "-f", text, "-c", "16"),
            *("--sparsity", CASCADE, "--measure-recall"),
        ],
    ],
    ids=["inspect", "tensors", "machine", "plan", "calibrate", "bench", "quality", "recall"],
)
def test_commands(
    model: Path, text: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_READ_BYTES", 1 << 20)
    result = invoke(*command(model, text))
    assert result.exit_code == 0, result.output
    _assert_narrow(result.output)


@pytest.mark.parametrize("settings", PLAIN_READ_SETTINGS, ids=str)
def test_bench_is_narrow_however_the_plain_read_reads(
    model: Path, monkeypatch: pytest.MonkeyPatch, settings: PlainReadSettings
) -> None:
    monkeypatch.setattr(PlainReader, "settings", property(lambda _: settings))
    result = invoke("bench", "-m", model, "--prefill", "8", "--decode", "0")
    assert result.exit_code == 0, result.output
    assert str(settings) in " ".join(result.output.split())
    _assert_narrow(result.output)


def test_what_chat_says_of_the_embedded_model_fits() -> None:
    shown = invoke("chat", stdin="").stderr
    assert "the bundled model tells stories" in shown
    assert max(map(len, shown.splitlines())) <= 80


def _budget(budget_bytes: int, num_hot: int, *, has_attention: bool) -> BudgetPoint:
    hot = np.arange(num_hot, dtype=np.int32)
    none = np.zeros(0, np.int32)
    layers = (LayerPlacement(True, False, hot), LayerPlacement(has_attention, False, none))
    plan = PlacementPlan("", "greedy", budget_bytes, 8, False, layers, 1.0)
    return BudgetPoint(budget_bytes, plan, 1.0, 0.5)


def test_a_ladder_explains_fewer_hot_neurons(capsys: pytest.CaptureFixture[str]) -> None:
    """Only where they made room for other parts."""
    few = [_budget(1000, 5, has_attention=False), _budget(2000, 2, has_attention=True)]
    print_budgets(few)
    assert "may hold fewer hot neurons: attention" in capsys.readouterr().out
    print_budgets([_budget(1000, 2, has_attention=False), _budget(2000, 5, has_attention=True)])
    assert "fewer" not in capsys.readouterr().out


def test_a_ladder_explains_slower_decoding(capsys: pytest.CaptureFixture[str]) -> None:
    small, large = _budget(1000, 2, has_attention=True), _budget(2000, 5, has_attention=True)
    print_budgets([small, replace(large, step_s=1.01)])
    assert "may decode a little slower if prompts gain" in capsys.readouterr().out
    print_budgets([small, large])
    assert "slower" not in capsys.readouterr().out
