"""The error of one layer's FFN with a predictor, worked out once more in f64."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

from powerinfer import LLM
from powerinfer.calibration.firing import FiringLayer, unpack, watch_firing
from powerinfer.train.predictors.measuring import OutputError
from predictor_runs import write_inputs


def test_the_error_is_that_of_the_missed_neurons(tmp_path: Path) -> None:
    write_inputs(tmp_path)
    rng = np.random.default_rng(5)
    windows = rng.integers(0, 250, (3, 16)).astype(np.int32)
    seen: list[FiringLayer] = []

    def see(layer: FiringLayer) -> None:
        copies = (layer.x.copy(), layer.raw.copy(), layer.fired.copy())
        seen.append(FiringLayer(layer.number, *copies))

    path = tmp_path / "model.gguf"
    with LLM(path, sparsity="exact", device="cpu", threads=1) as llm:
        model = llm.loaded
        number, config = 1, model.model.config
        watch_firing(model.model, windows, see, num_layers=2)
        measure = OutputError(model.model, windows, number)
        fc1 = rng.standard_normal((32, config.hidden_size)).astype(np.float16)
        fc2 = rng.standard_normal((config.num_neurons, 32)).astype(np.float16)
        found, nothing_missed = measure(fc1, fc2), measure(fc1, 0 * fc2)
        weights = {
            name: model.file.tensor(f"blk.{number}.ffn_{name}.weight").decode().astype(np.float64)
            for name in ("gate", "up", "down")
        }
    layer = seen[number]
    raw, x = layer.raw.astype(np.float64), layer.x.astype(np.float64)
    passes = np.maximum(raw @ fc1.astype(np.float64).T, 0) @ fc2.astype(np.float64).T >= -1
    values = np.maximum(x @ weights["gate"].T, 0) * (x @ weights["up"].T)
    assert ((values != 0) == unpack(layer.fired, config.num_neurons)).mean() > 0.999
    whole, missed = values @ weights["down"].T, (values * ~passes) @ weights["down"].T
    assert found == pytest.approx(np.linalg.norm(missed) / np.linalg.norm(whole), rel=0.01)
    assert 0.1 < found < 1
    assert nothing_missed == 0
