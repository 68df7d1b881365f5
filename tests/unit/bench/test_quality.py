"""`bench --quality`: rows agree with what the other commands measure for the same setting."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from command_line import assert_error, invoke, run_json
from powerinfer import LLM
from powerinfer.bench.quality import Decoded, DecodeTimer, Reference, measure_quality
from powerinfer.bench.quality_row import QualityPlan, QualityRow
from powerinfer.errors import PromptError
from powerinfer.gguf import open_gguf
from powerinfer.options.options import EngineOptions
from tiny_models import TINY_MODELS, write_model

TEXT = b"the quick brown fox jumps over the lazy dog while the old man tells a long story " * 4
PLAN = QualityPlan(window=16, num_windows=2, decode_steps=3, repeats=2)
OPTIONS = EngineOptions(kernels="reference")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_bytes(TEXT)
    return path


def _rows(model: Path, plan: QualityPlan, text: bytes = TEXT) -> list[QualityRow]:
    return [each.row for each in measure_quality(model, OPTIONS, plan, text)]


@pytest.fixture(scope="module")
def rows(bamboo: Path) -> dict[str, QualityRow]:
    """Every setting there is by default."""
    return {row.setting: row for row in _rows(bamboo, PLAN)}


def test_rows_are_all_that_the_file_can_serve(rows: dict[str, QualityRow]) -> None:
    names = list(rows)
    assert names[:3] == ["off", "exact", "default"]
    assert rows["default"].sparsity == "mlp"
    for name in ("mlp", "mlp:q8_0", "lowbit:2", "lowbit:3", "lowbit:4", "sign", "oracle"):
        assert name in names
        assert rows[name].sparsity == name
        assert rows[name].layer_kinds == (name, name)


def test_what_loses_nothing_equals_dense(rows: dict[str, QualityRow]) -> None:
    for name in ("off", "exact", "oracle"):
        row = rows[name]
        assert row.perplexity_ratio == pytest.approx(1, abs=1e-5)
        assert row.agreement == 1
        assert row.worst_recall == 1
        assert row.worst_ffn_error is not None
        assert row.worst_ffn_error < 1e-6
    assert rows["off"].active_share == 1
    assert rows["exact"].active_share == rows["oracle"].predicted_share
    assert rows["off"].predicted_share is rows["exact"].predicted_share is None


def _likeliest(bamboo: Path, sparsity: str) -> npt.NDArray[np.int64]:
    """The token a model prefers after each token of the second halves of the windows."""
    found = []
    with LLM(bamboo, kernels="reference", sparsity=sparsity) as llm:
        tokenizer = llm.loaded.tokenizer
        token_ids = tokenizer.encode(TEXT)
        for number in range(PLAN.num_windows):
            window = token_ids[number * PLAN.window : (number + 1) * PLAN.window]
            if tokenizer.add_bos and tokenizer.bos_id is not None:
                window[0] = tokenizer.bos_id
            sequence = llm.new_sequence()
            logits = np.concatenate([sequence.extend([token]).reshape(1, -1) for token in window])
            found.append(logits[PLAN.window // 2 : -1].argmax(axis=1))
    return np.concatenate(found)


def test_agreement_is_how_often_both_prefer_the_same_token(
    rows: dict[str, QualityRow], bamboo: Path
) -> None:
    """Found token by token, without windows or batches."""
    dense = _likeliest(bamboo, "off")
    for name in ("mlp", "sign"):
        assert rows[name].agreement == np.mean(_likeliest(bamboo, name) == dense)
    assert rows["mlp"].agreement < 1


def test_sparser_settings_read_less(rows: dict[str, QualityRow], bamboo: Path) -> None:
    dense = rows["off"]
    matrices = sum(
        tensor.num_bytes
        for tensor in open_gguf(bamboo).tensors.values()
        if tensor.name.startswith("blk.") and len(tensor.shape) == 2 and ".fc" not in tensor.name
    )
    assert dense.bytes_per_token > matrices
    assert rows["oracle"].bytes_per_token < rows["exact"].bytes_per_token < dense.bytes_per_token
    for row in rows.values():
        assert len(row.decode_s) == len(row.dense_decode_s) == PLAN.repeats
        slowest, fastest = max(row.decode_s), min(row.decode_s)
        assert min(row.dense_decode_s) / slowest <= row.speedup
        assert row.speedup <= max(row.dense_decode_s) / fastest
        assert row.speedup_range[0] <= row.speedup <= row.speedup_range[1]


def test_a_machine_that_grows_slower_changes_no_figure(
    bamboo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step takes a little longer than the one before, and dense ones twice as long."""
    count = 0

    def decode(timer: DecodeTimer, llm: LLM) -> Decoded:
        nonlocal count
        count += 1
        seconds = 1 + 0.1 * count
        return Decoded(2 * seconds if llm is timer._dense else seconds, 1.0, 0.0)

    monkeypatch.setattr(DecodeTimer, "decode", decode)
    plan = QualityPlan(("exact",), window=16, num_windows=1, decode_steps=1, repeats=3)
    dense, sparse = _rows(bamboo, plan)
    assert sparse.speedup == pytest.approx(2)
    assert sparse.speedup_range == pytest.approx((2, 2))
    # The reference is exactly as fast as itself, however its speed varied.
    assert dense.speedup == 1
    assert dense.speedup_range == (1, 1)
    assert dense.decode_s == dense.dense_decode_s
    assert 1 / dense.decode_tokens_per_s == pytest.approx(2 * 1.3)
    assert sparse.decode_tokens_per_s == pytest.approx(2 * dense.decode_tokens_per_s)
    assert sparse.gb_per_s == pytest.approx(2 * dense.gb_per_s)
    assert len(set(dense.decode_s)) == 3
    # Two runs of each setting that do not count, and one dense one more.
    assert count == 4 + 2 + 7


def test_what_a_predictor_loses_is_seen(rows: dict[str, QualityRow]) -> None:
    row = rows["mlp"]
    assert (row.worst_ffn_error or 0) > 0.01
    assert (row.worst_recall or 0) < 1
    assert row.perplexity_ratio != 1


def test_perplexity_and_recall_are_those_of_the_perplexity_command(
    bamboo: Path, tmp_path: Path
) -> None:
    """On a text that is as long as the windows, to which the other command has no limit."""
    short = tmp_path / "short.txt"
    short.write_bytes(TEXT[:60])
    flags = ("-m", bamboo, "--kernels", "reference", "-f", short, "-c", "16")
    report = run_json("perplexity", *flags, "--sparsity", "mlp", "--measure-recall")
    plan = QualityPlan(
        ("mlp",), window=16, num_windows=report["windows"], decode_steps=1, repeats=1
    )
    row = _rows(bamboo, plan, short.read_bytes())[1]
    assert row.perplexity == report["perplexity"]
    assert row.standard_error == report["standard_error"]
    assert list(row.recall) == report["recall"]
    assert list(row.ffn_error) == report["ffn_error"]
    assert row.active_share == report["active_share"]
    assert row.predicted_share == report["predicted_share"]


def test_predictors_bytes_are_those_of_their_matrices(
    rows: dict[str, QualityRow], bamboo: Path
) -> None:
    """fc1 and fc2 are read whole for every token; what predicts nothing reads nothing."""
    tensors = open_gguf(bamboo).tensors.values()
    mlp = sum(tensor.num_bytes for tensor in tensors if ".fc" in tensor.name)
    assert mlp > 0
    assert rows["mlp"].predictor_bytes_per_token == mlp
    assert rows["oracle"].predictor_bytes_per_token == 0
    assert rows["off"].predictor_bytes_per_token is None
    assert rows["exact"].predictor_bytes_per_token is None
    for row in rows.values():
        if row.predictor_bytes_per_token:
            assert row.predictor_bytes_per_token < row.bytes_per_token
    cascade, alone = rows["sign+lowbit:2"], rows["sign"]
    assert (cascade.predictor_bytes_per_token or 0) > (alone.predictor_bytes_per_token or 0) > 0


def test_a_default_threshold_is_that_of_the_kind_whatever_was_calibrated(
    bamboo: Path, tmp_path: Path, text: Path
) -> None:
    """Beside a calibration that lets anything pass."""
    model = tmp_path / "model.gguf"
    model.write_bytes(bamboo.read_bytes())
    plan = replace(PLAN, settings=("mlp", "lowbit:2"), errors=(None, 0.5))
    before = {row.setting: row for row in _rows(model, replace(plan, errors=()))}
    run_json("calibrate", "-m", model, "-f", text, "--tokens", "64", "--max-ffn-error", "1")
    after = {row.setting: row for row in _rows(model, plan)}
    dialled = ["mlp @ default", "mlp @ 0.5", "lowbit:2 @ default", "lowbit:2 @ 0.5"]
    assert list(after) == ["off", *dialled]
    for name in ("mlp", "lowbit:2"):
        assert after[f"{name} @ default"].perplexity == before[name].perplexity
        assert after[f"{name} @ default"].recall == before[name].recall
        assert after[f"{name} @ 0.5"].recall != before[name].recall


def test_settings_measured_before_are_left_out_and_change_nothing(bamboo: Path) -> None:
    plan = replace(PLAN, settings=("exact", "sign"))
    off, exact, sign = measure_quality(bamboo, OPTIONS, plan, TEXT)
    assert (off.loaded.model.sparsity, sign.loaded.model.sparsity) == ("off", "sign")
    (again,) = measure_quality(
        bamboo,
        OPTIONS,
        plan,
        TEXT,
        reference=Reference(off.row, off.top_ids),
        done={exact.row.setting},
    )
    assert again.row.setting == "sign"
    for name in ("perplexity", "perplexity_ratio", "agreement", "recall", "bytes_per_token"):
        assert getattr(again.row, name) == getattr(sign.row, name)


def test_progress_counts_the_windows_of_every_row(bamboo: Path) -> None:
    told: list[tuple[str, int, int]] = []
    plan = QualityPlan(("sign",), window=16, num_windows=2, decode_steps=1, repeats=1)
    list(measure_quality(bamboo, OPTIONS, plan, TEXT, lambda *args: told.append(args)))
    assert told == [("off", 1, 2), ("off", 2, 2), ("sign", 1, 2), ("sign", 2, 2)]


def test_a_model_without_sparsity_has_one_row(tmp_path: Path) -> None:
    silu = write_model(tmp_path / "silu.gguf", TINY_MODELS["llama"])
    assert [row.setting for row in _rows(silu, PLAN)] == ["off"]


def test_a_short_text_is_refused(bamboo: Path) -> None:
    with pytest.raises(PromptError, match="measuring quality needs 35"):
        list(measure_quality(bamboo, OPTIONS, PLAN, b"the"))


def test_the_command_prints_one_table(bamboo: Path, text: Path) -> None:
    sizes = ("-c", "16", "--windows", "1", "--decode", "1", "--repeats", "1")
    common = ("bench", "--quality", "-m", bamboo, "--kernels", "reference", "-f", text, *sizes)
    report = run_json(*common, "--settings", "exact,sign", "--errors", "Default, 0.5")
    names = [row["setting"] for row in report["rows"]]
    assert names == ["off", "exact", "sign @ default", "sign @ 0.5"]
    report = run_json(*common, "--settings", "exact, LOWBIT:3")
    assert [row["setting"] for row in report["rows"]] == ["off", "exact", "lowbit:3"]
    assert {"cpu", "commit"} <= set(report["machine"])
    result = invoke(*common, "--settings", "exact,default")
    assert result.exit_code == 0
    long = invoke(*common, "--settings", "sign+lowbit:2,sign+lowbit:2+lowbit:4")
    assert "…" not in long.stdout + result.stdout
    lines = result.stdout.splitlines()
    for name in (
        "tokens/s",
        "speedup",
        "bytes/token",
        "predictor",
        "GB/s",
        "active",
        "density",
        "recall",
        "perplexity",
        "agreement",
    ):
        assert name in lines[0]
    assert [line.split("  ")[0] for line in lines[1:4]] == ["off", "exact", "default: mlp"]
    # One repeat does not tell how far they spread.
    start = lines[0].index("range")
    assert [line[start - 6 : start + 5].split()[-1] for line in lines[1:4]] == ["-", "-", "-"]
    assert "tokens/s is the dense model's times the speedup" in " ".join(result.stderr.split())


def test_bad_flags(tmp_path: Path, bamboo: Path, text: Path) -> None:
    common = ("bench", "--quality", "-m", bamboo)
    assert_error(invoke(*common, "-f", tmp_path / "none.txt"), "none.txt")
    assert_error(invoke(*common, "-f", text, "--settings", "exact,exakt"), "Did you mean 'exact'")
    assert_error(invoke(*common, "-f", text, "--errors", "0.1,none"), "not a list of errors")
    for wrong in ("0", "2"):
        result = invoke(*common, "-f", text, "--errors", wrong)
        assert_error(result, f"'{wrong}' is not a list of errors above 0 and at most 1, such as")
    assert_error(invoke(*common, "-f", text, "--decode", "0"), "give --decode 1 or more, got 0")
    assert_error(invoke(*common, "-f", text, "--sparsity", "sign"), "leave --sparsity out")
    assert_error(invoke(*common, "-f", text, "--recall", "0.9"), "leave --recall out")
    assert_error(invoke(*common, "-f", text, "--measure-recall"), "leave --measure-recall out")
    assert_error(invoke(*common, "-f", text, "-c", "8000"), "the text has", "needs 8000")
