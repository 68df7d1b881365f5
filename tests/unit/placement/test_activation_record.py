"""`activation.json`: exact frequencies from a folder of counts, and what does not fit it."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch

from command_line import run_json
from powerinfer.errors import PlacementError
from powerinfer.gguf import model_identity, open_gguf
from powerinfer.models import load_model, uniform, with_predictors
from powerinfer.offload.statistics import activation_statistics
from powerinfer.ops.reference.ops import ReferenceOps
from powerinfer.placement.activation_folder import read_activation_folder, read_profile
from powerinfer.placement.activation_record import (
    ACTIVATION,
    ActivationRecord,
    Counted,
    record_path,
)
from powerinfer.placement.problem import ActivationStats
from powerinfer.tokenizer import Tokenizer
from tiny_models import TINY_MODELS, write_model

NUM_TOKENS = 300
COUNTS = np.random.default_rng(1).integers(0, NUM_TOKENS + 1, (2, 48))
RECORD = ActivationRecord(
    Counted("an identity", "relu", "a text", 32, None),
    ("a.txt", "b.txt.zst"),
    NUM_TOKENS,
    48,
    1,
    tuple(COUNTS.sum(axis=1).tolist()),
)


def _write(folder: Path, record: ActivationRecord = RECORD) -> Path:
    folder.mkdir(exist_ok=True)
    for number, counts in enumerate(COUNTS):
        torch.save(torch.from_numpy(counts), folder / f"activation_{number}.pt")
    ACTIVATION.write(record_path(folder), record)
    return folder


def _read(folder: Path, **others: Any) -> ActivationStats:
    return read_activation_folder(folder, num_layers=2, num_neurons=48, **others)


@pytest.mark.parametrize(
    "record",
    [
        RECORD,
        replace(RECORD, counted=replace(RECORD.counted, limit=400), num_experts=4),
        replace(RECORD, texts=("ü \u0000.txt",)),
    ],
)
def test_records_come_back(tmp_path: Path, record: ActivationRecord) -> None:
    path = ACTIVATION.write(tmp_path / "activation.json", record)
    assert ACTIVATION.read(path) == record
    fields = json.loads(path.read_text())
    assert (fields["layers"], fields["neurons"], fields["tokens"]) == (2, 48, NUM_TOKENS)


def test_frequencies_are_exact(tmp_path: Path) -> None:
    folder = _write(tmp_path / "activation")
    stats = _read(folder)
    np.testing.assert_array_equal(stats.frequency, (COUNTS / NUM_TOKENS).astype(np.float32))
    assert stats.num_tokens == NUM_TOKENS
    assert stats.source == f"{folder} (counted on a.txt, b.txt.zst)"
    profile = read_profile(folder, num_layers=2, num_neurons=48)
    assert profile is not None
    assert profile.counts.dtype == np.int64
    np.testing.assert_array_equal(profile.counts, COUNTS)
    record_path(folder).unlink()
    assert read_profile(folder, num_layers=2, num_neurons=48) is None
    assert _read(folder).num_tokens == 0


def test_a_folder_serves_the_other_files_of_a_model(tmp_path: Path) -> None:
    folder = _write(tmp_path / "activation")
    assert "model file" not in _read(folder, identity="an identity").source
    assert "with another model file" in _read(folder, identity="of the quantized file").source


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fired": (1, 2)}, r"activation_0\.pt: counts contradict activation\.json"),
        ({"num_tokens": 250}, r"activation_0\.pt: counts contradict"),
        ({"num_neurons": 47}, r"of 2 layers of 47 neurons, this one has 2 of 48"),
        ({"fired": (1, 2, 3)}, r"of 3 layers of 48 neurons"),
    ],
)
def test_counts_of_something_else(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    folder = _write(tmp_path / "activation", replace(RECORD, **change))
    with pytest.raises(PlacementError, match=message):
        _read(folder)


def test_counts_that_are_not_whole(tmp_path: Path) -> None:
    folder = _write(tmp_path / "activation")
    moved = torch.from_numpy(COUNTS[1]).double()
    moved[0] += 0.5
    moved[1] -= 0.5
    torch.save(moved, folder / "activation_1.pt")
    with pytest.raises(PlacementError, match=r"activation_1\.pt: counts contradict"):
        _read(folder)


def test_counts_of_another_activation(tmp_path: Path) -> None:
    folder = _write(tmp_path / "activation")
    assert _read(folder, activation="relu").num_tokens == NUM_TOKENS
    with pytest.raises(PlacementError, match="with activation relu, the model runs drelu"):
        _read(folder, activation="drelu")


@pytest.mark.parametrize(
    "damage",
    [
        {"version": 2},
        {"tokens": 0},
        {"tokens": 1.5},
        {"tokens": 2**70},
        {"window": 301},
        {"limit": "all"},
        {"layers": 3},
        {"neurons": 0},
        {"experts": 49},
        {"fired": []},
        {"fired": [1, -1]},
        {"fired": [1, 300 * 48 + 1]},
        {"texts": "a.txt"},
        {"texts": [1]},
        {"model": None},
        {"more": 1},
        None,
    ],
)
def test_damage_is_one_line(tmp_path: Path, damage: dict[str, object] | None) -> None:
    folder = _write(tmp_path / "activation")
    path = record_path(folder)
    whole = path.read_text()
    path.write_text(whole[:-9] if damage is None else json.dumps(json.loads(whole) | damage))
    with pytest.raises(PlacementError, match=r"activation\.json: the activation profile cannot be"):
        _read(folder)


def test_a_placement_takes_exact_frequencies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = open_gguf(write_model(tmp_path / "m.gguf", TINY_MODELS["llama-relu"]))
    counted = replace(RECORD.counted, model_identity=model_identity(file))
    folder = _write(tmp_path / "activation", replace(RECORD, counted=counted))
    model = load_model(file, ReferenceOps())
    model = with_predictors(model, uniform("exact", 2), name="exact")
    stats = activation_statistics(model, file, Tokenizer.from_gguf(file))
    np.testing.assert_array_equal(stats.frequency, (COUNTS / NUM_TOKENS).astype(np.float32))
    assert stats.source == f"{folder} (counted on a.txt, b.txt.zst)"
    # One that cannot be used is named, and something else taken.
    record_path(folder).write_text("{}")
    with caplog.at_level(logging.WARNING):
        stats = activation_statistics(model, file, Tokenizer.from_gguf(file))
    assert "brief profile" in stats.source
    assert "activation.json: the activation profile cannot be used" in caplog.text


def test_plan_names_where_frequencies_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = write_model(tmp_path / "m.gguf", TINY_MODELS["llama-relu"])
    folder = _write(tmp_path / "activation")
    report = run_json("plan", "-m", path, "--vram-budget", "8", "--device", "cpu")
    source = f"{folder} (counted on a.txt, b.txt.zst with another model file)"
    assert (report["frequencies"], report["tokens"]) == (source, NUM_TOKENS)
