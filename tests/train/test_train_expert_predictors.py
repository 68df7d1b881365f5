"""`train-predictors` where FFNs are a layer of their own, and inside experts: to the end."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch

from command_line import assert_error, invoke, run_json
from powerinfer import LLM
from powerinfer.gguf import open_gguf
from powerinfer.train.predictors import run
from powerinfer.train.predictors.fitting import fit_layer
from powerinfer.values import FloatArray
from predictor_runs import arguments, contents, few_steps, write_inputs
from tiny_models import TINY_MODELS

MODELS = {
    name: replace(TINY_MODELS[name], context_length=64)
    for name in ("nemotron_h", "nemotron_h_moe", "nemotron_h_moe-latent")
} | {"drelu": replace(TINY_MODELS["mixtral-drelu-transposed"], context_length=64)}
NUMBERS = {"nemotron_h": [2, 4], "drelu": [0, 1]}
STEPS = 80
every_model = pytest.mark.parametrize("name", MODELS)


@pytest.fixture(autouse=True)
def _few_steps() -> Iterator[None]:
    with few_steps(STEPS):
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each model with its text, and what one run without any stop made."""
    top = tmp_path_factory.mktemp("trained")
    threads = torch.get_num_threads()
    for name, recipe in MODELS.items():
        (top / name).mkdir()
        write_inputs(top / name, recipe)
        with few_steps(STEPS):
            report = run_json(*arguments(top / name), "--pack", top / name / "packed.gguf")
        (top / name / "report.json").write_text(json.dumps(report))
    torch.set_num_threads(threads)
    return top


def _report(trained: Path, name: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((trained / name / "report.json").read_text())
    return report


@every_model
def test_each_layer_with_neurons_has_a_predictor_that_looks(trained: Path, name: str) -> None:
    report, recipe = _report(trained, name), MODELS[name]
    numbers = NUMBERS.get(name, [1, 3])
    assert report["layer_numbers"] == numbers
    files = {path.name for path in (trained / name / "out").glob("*.pt")}
    assert files == {f"model_{number}.pt" for number in numbers}
    for number, layer in zip(numbers, report["layers"], strict=True):
        state = torch.load(trained / name / "out" / f"model_{number}.pt", weights_only=True)
        width = recipe.latent_size or recipe.hidden_size
        neurons = max(1, recipe.num_experts) * recipe.intermediate_size
        assert state["fc1.weight"].shape == (layer["rank"], width)
        assert state["fc2.weight"].shape == (neurons, layer["rank"])
        # One that does not look at the token finds as large a share as it lets pass.
        assert layer["recall"] > layer["density"] + 0.2
        assert layer["ffn_error"] < 0.2


@every_model
def test_the_packed_file_runs_its_predictors(trained: Path, name: str) -> None:
    path, numbers = trained / name / "packed.gguf", NUMBERS.get(name, [1, 3])
    report, num_experts = _report(trained, name), MODELS[name].num_experts
    summary = run_json("inspect", path)
    assert summary["ffn"]["predictor_layers"] == len(numbers)
    ranks = [layer["rank"] for layer in report["layers"]]
    assert summary["ffn"]["predictor_ranks"] == [min(ranks), max(ranks)]
    end = "_exps" if num_experts else ""
    tensors = open_gguf(path).tensors
    for number in numbers:
        assert f"blk.{number}.ffn_down{end}_t.weight" in tensors
        assert f"blk.{number}.fc1.weight" in tensors
        assert tensors[f"blk.{number}.fc2{end}.weight"].shape[0] in (num_experts, 48)
    given = ("-m", path, "-p", "the dog saw", "-n", "6", "--temp", "0", "--ignore-eos")
    assert run_json("run", *given)["sparsity"] == "exact"
    found = run_json("run", *given, "--sparsity", "mlp", "--measure-recall")
    assert [n for n, each in enumerate(found["recall"]) if each is not None] == numbers
    assert all(found["recall"][number] > 0.5 for number in numbers)
    assert 0.1 < found["predicted_share"] < 0.95


def test_predictors_of_other_layers_are_refused(trained: Path, tmp_path: Path) -> None:
    folder, model = trained / "nemotron_h" / "out", trained / "nemotron_h_moe" / "model.gguf"
    result = invoke("pack", model, "--predictors", folder, "-o", tmp_path / "packed.gguf")
    assert_error(result, "the model has 2 to predict, 1, 3: model_1.pt is missing")


@every_model
def test_the_packed_file_does_what_the_report_claims(trained: Path, name: str) -> None:
    """In all of the text, of which the held-out part is a tenth."""
    text, packed = trained / name / "text.txt", trained / name / "packed.gguf"
    exact, mlp = (
        run_json("perplexity", "-m", packed, "-f", text, "--sparsity", kind, "-c", "64")
        for kind in ("exact", "mlp")
    )
    assert mlp["perplexity"] == pytest.approx(exact["perplexity"], rel=0.02)
    layers = _report(trained, name)["layers"]
    density = sum(layer["density"] for layer in layers) / len(layers)
    assert mlp["predicted_share"] == pytest.approx(density, abs=0.06)


@pytest.mark.parametrize("name", ["nemotron_h", "nemotron_h_moe"])
def test_a_calibration_compares_it_with_other_kinds(
    trained: Path, name: str, tmp_path: Path
) -> None:
    path = shutil.copy(trained / name / "packed.gguf", tmp_path / "m.gguf")
    text = trained / name / "text.txt"
    kinds = ("--kinds", "mlp,mlp:q8_0,lowbit:3,sign")
    found = run_json("calibrate", "-m", path, "-f", text, *kinds, "--max-ffn-error", "0.1")
    stored = json.loads((tmp_path / "m.gguf.calibration.json").read_text())
    assert len(found["layers"]) == len(stored["layers"]) == 2
    for layer in stored["layers"]:
        assert {"mlp", "mlp:q8_0", "lowbit:3", "sign"} <= set(layer["curves"])


@pytest.mark.parametrize("name", ["nemotron_h_moe", "nemotron_h_moe-latent", "drelu"])
def test_bits_depend_on_the_text_alone(trained: Path, name: str) -> None:
    """Not on threads, on other texts, or on how its prompt is cut."""
    texts = [[1, 40, 70, 90, 100, 261], [1, 33, 80, 35]]

    def logits(threads: int, chosen: list[int], cut: int | None = None) -> list[FloatArray]:
        with LLM(
            trained / name / "packed.gguf", sparsity="mlp", device="cpu", threads=threads
        ) as llm:
            model = llm.loaded.model
            cache = model.new_cache(256, num_slots=8)
            found: list[list[FloatArray]] = [[] for _ in chosen]
            for part in (slice(0, cut), slice(cut, None) if cut else slice(0, 0)):
                pieces = [(n, texts[number][part], part.start) for n, number in enumerate(chosen)]
                if not pieces[0][1]:
                    continue
                rows = np.array(model.forward(cache.batch(pieces, [True] * len(pieces)), cache))
                ends = np.cumsum([len(ids) for _, ids, _ in pieces])
                for own, piece in zip(found, np.split(rows, ends[:-1]), strict=True):
                    own.append(piece)
            return [np.concatenate(own) for own in found]

    first, second = logits(2, [0, 1])
    for others, expected in (
        (logits(1, [0]), first),
        (logits(2, [1]), second),
        (logits(2, [0], cut=4), first),
    ):
        np.testing.assert_array_equal(others[0], expected)


def test_a_stopped_run_goes_on_to_the_same_bytes(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a cache for one layer at a time."""
    for file in ("model.gguf", "text.txt"):
        shutil.copy(trained / "nemotron_h_moe" / file, tmp_path / file)

    def interrupted(data: Any, *given: Any, **options: Any) -> Any:
        if data.number == 3:
            raise KeyboardInterrupt
        return fit_layer(data, *given, **options)

    monkeypatch.setattr(run, "fit_layer", interrupted)
    words = (*arguments(tmp_path), "--cache-size", "1420KiB")
    result = invoke(*words)
    assert result.exit_code == 130, result.output
    left = {path.name for path in (tmp_path / "out" / "cache").glob("layer_*")}
    assert left == {"layer_3.inputs", "layer_3.fired", "layer_3.experts"}
    monkeypatch.undo()
    with few_steps(STEPS):
        assert invoke(*words).exit_code == 0
    assert contents(tmp_path / "out") == contents(trained / "nemotron_h_moe" / "out")
