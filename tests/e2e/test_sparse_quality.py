"""What sparsity does to the embedded model, on text that it was not calibrated on.

Calibrations go to a cache folder of the test's own.
"""

import functools
import importlib.resources
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from powerinfer.bench.quality import measure_quality
from powerinfer.bench.quality_row import QualityPlan, QualityRow
from powerinfer.calibration.calibrate import calibrate
from powerinfer.calibration.files import save_calibration
from powerinfer.calibration.text import cut_windows
from powerinfer.gguf import model_identity
from powerinfer.loading import loader
from powerinfer.options.options import EngineOptions
from powerinfer.predictors.calibration import DEFAULT_DIAL

PLAN = QualityPlan(window=256, num_windows=8, decode_steps=1, repeats=1)
DIAL = 0.01
# The dial holds on other text of the same sort, but for the odd token that weighs much.
OTHER_TEXT = 1.1
Measured = Callable[[str], QualityRow]
KINDS = ("lowbit:2", "lowbit:3", "lowbit:4", "sign", "sign+lowbit:2")


@pytest.fixture(scope="module")
def stories() -> bytes:
    """Stories that no calibration sees: the samples in the model's card."""
    card = importlib.resources.files("powerinfer").joinpath("data/default/MODEL_CARD.md")
    text = card.read_text(encoding="utf-8")
    lines = [line.removeprefix("> ") for line in text.splitlines() if line.startswith("> ")]
    assert len(lines) > 20
    return "\n".join(lines).encode()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


def _measure(plan: QualityPlan, text: bytes) -> dict[str, QualityRow]:
    return {
        each.row.setting: each.row
        for each in measure_quality(None, EngineOptions(threads=2), plan, text)
    }


@pytest.fixture(scope="module")
def uncalibrated(cache: Path, stories: bytes) -> dict[str, QualityRow]:
    """With the brief calibration that `auto` makes."""
    return _measure(replace(PLAN, settings=("exact", "auto", "lowbit:2")), stories)


@pytest.fixture(scope="module")
def calibrated(uncalibrated: object, data_dir: Path) -> Iterator[Measured]:
    """Calibrated on training stories, as `powerinfer calibrate` stores it; on other stories."""
    options = EngineOptions(sparsity="exact", threads=2)
    loaded = loader.load(loader.open_model(None, options), options, None)
    token_ids = loaded.tokenizer.encode(_stories(data_dir, "train"), add_bos=False)
    bos_id = loaded.tokenizer.bos_id
    text = cut_windows("train", token_ids, num_tokens=1024, context_length=512, bos_id=bos_id)
    identity = model_identity(loaded.file)
    calibration = calibrate(loaded.model, text, identity=identity, dial=DEFAULT_DIAL)
    stored = save_calibration(loaded.file, calibration)

    @functools.cache
    def measured(setting: str) -> QualityRow:
        plan = replace(PLAN, settings=(setting,), errors=(DIAL,))
        rows = _measure(plan, _stories(data_dir, "valid"))
        return rows["default" if setting == "default" else f"{setting} @ {DIAL:g}"]

    try:
        yield measured
    finally:
        stored.unlink()


def _stories(data: Path, part: str) -> bytes:
    import zstandard

    packed = data / "text" / f"tinystories.{part}.txt.zst"
    with packed.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as reader:
        return reader.read(100_000)


@pytest.mark.slow
def test_exact_equals_dense_to_four_digits(uncalibrated: dict[str, QualityRow]) -> None:
    dense, exact = uncalibrated["off"], uncalibrated["exact"]
    assert f"{exact.perplexity:.4f}" == f"{dense.perplexity:.4f}"
    assert exact.agreement > 0.999
    assert exact.active_share is not None
    assert 0.05 < exact.active_share < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["auto", "lowbit:2"])
def test_uncalibrated_settings_stay_near_dense(
    uncalibrated: dict[str, QualityRow], setting: str
) -> None:
    row = uncalibrated[setting]
    assert row.perplexity_ratio == pytest.approx(1, abs=0.005)
    assert row.agreement > 0.97


@pytest.mark.thorough
def test_a_calibration_runs_by_default_and_stays_near_dense(
    calibrated: Measured, uncalibrated: dict[str, QualityRow]
) -> None:
    row = calibrated("default")
    assert row.sparsity == "calibrated"
    assert any(kind != "exact" for kind in row.layer_kinds)
    assert row.perplexity_ratio == pytest.approx(1, abs=0.005)
    assert row.bytes_per_token < uncalibrated["exact"].bytes_per_token


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind == "lowbit:2" else pytest.mark.thorough)
        for kind in KINDS
    ],
)
def test_the_dial_is_respected_on_other_text(calibrated: Measured, kind: str) -> None:
    """Every layer's FFN error, within `OTHER_TEXT` of the dial; and the dial is spent."""
    row = calibrated(kind)
    assert row.layer_kinds == (kind,) * 6
    assert row.worst_ffn_error is not None
    assert DIAL / 4 < row.worst_ffn_error < OTHER_TEXT * DIAL
    assert row.perplexity_ratio == pytest.approx(1, abs=0.005)
    assert row.predicted_share is not None
    assert row.active_share is not None
    assert row.active_share <= row.predicted_share


@pytest.mark.thorough
def test_more_bits_need_fewer_neurons(calibrated: Measured) -> None:
    densities = [
        calibrated(kind).predicted_share for kind in ("sign", "lowbit:2", "lowbit:3", "lowbit:4")
    ]
    assert densities == sorted(densities, key=lambda share: -(share or 0))
