"""`powerinfer train-predictors`: what it writes, what it reports, and going on after any end."""

import json
import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import predictor_folders
from command_line import invoke, run_json
from converted_cases import save_without_torch
from patience import PATIENCE_S
from powerinfer import LLM
from powerinfer.convert import planning
from powerinfer.convert.convert import convert
from powerinfer.gguf import open_gguf
from predictor_folders import sparse_case
from predictor_runs import (
    LAYERS,
    MODEL,
    arguments,
    contents,
    few_steps,
    program,
    write_inputs,
)

torch = pytest.importorskip("torch", reason="torch is not installed")

from powerinfer.calibration import window_pass  # noqa: E402
from powerinfer.calibration.firing import FiringLayer, unpack, watch_firing  # noqa: E402
from powerinfer.train.predictors import collecting, run  # noqa: E402
from powerinfer.train.predictors.fitting import fit_layer  # noqa: E402
from powerinfer.train.predictors.folder import FolderState, PredictorFolder  # noqa: E402
from powerinfer.train.predictors.measuring import measure_predictors  # noqa: E402


@pytest.fixture(autouse=True)
def _few_steps() -> Iterator[None]:
    with few_steps():
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model, its text and what one run without any stop made."""
    folder = tmp_path_factory.mktemp("trained")
    write_inputs(folder)
    threads = torch.get_num_threads()
    with few_steps():
        report = run_json(*arguments(folder), "--pack", folder / "packed.gguf")
    torch.set_num_threads(threads)
    (folder / "report.json").write_text(json.dumps(report))
    return folder


def _report(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def _again(trained: Path, folder: Path) -> Path:
    """The same model and text in another folder."""
    for name in ("model.gguf", "text.txt"):
        shutil.copy(trained / name, folder / name)
    return folder


def test_the_folder_is_what_converters_read(trained: Path) -> None:
    out, report = trained / "out", _report(trained)
    assert set(contents(out)) == {
        *(f"model_{n}.pt" for n in range(LAYERS)),
        "config.json",
        "predictors.json",
    }
    assert json.loads((out / "config.json").read_text()) == {"sparse_threshold": -1.0}
    stored = json.loads((out / "predictors.json").read_text())
    assert stored == {key: report[key] for key in stored}
    assert stored["finished"] is True
    assert stored["text"]["names"] == ["text.txt"]
    for number, layer in enumerate(stored["layers"]):
        state = torch.load(out / f"model_{number}.pt", weights_only=True)
        assert {name: tensor.dtype for name, tensor in state.items()} == {
            "fc1.weight": torch.float16,
            "fc2.weight": torch.float16,
        }
        assert state["fc1.weight"].shape == (layer["rank"], MODEL.hidden_size)
        assert state["fc2.weight"].shape == (MODEL.intermediate_size, layer["rank"])
        assert set(layer) == {"active", "rank", "recall", "precision", "density", "ffn_error"}
    ranks = [layer["rank"] for layer in stored["layers"]]
    cost = sum(ranks) * (MODEL.hidden_size + MODEL.intermediate_size)
    assert all(rank % 32 == 0 for rank in ranks)
    assert 0 < report["share"] <= 0.9
    with LLM(trained / "model.gguf") as llm:
        sizes = [tensor.num_elements for tensor in llm.loaded.file.tensors.values()]
    assert report["share"] == pytest.approx(cost / sum(sizes))


def _held_out(trained: Path, llm: LLM) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Windows of the last part of the text: bytes behind a BOS."""
    report, tokenizer = _report(trained), llm.loaded.tokenizer
    ids = tokenizer.encode((trained / "text.txt").read_text(), add_bos=False)
    window = report["text"]["window"]
    texts = window - tokenizer.add_bos
    count = report["tokens"] // window
    rows = [ids[n * texts : (n + 1) * texts] for n in range(count)]
    if tokenizer.add_bos and tokenizer.bos_id is not None:
        rows = [[tokenizer.bos_id, *row] for row in rows]
    held_out = np.array(rows, np.int32)[-(report["held_out_tokens"] // window) :]
    assert held_out.size == report["held_out_tokens"]
    return held_out


def test_the_packed_file_does_what_the_report_claims(trained: Path) -> None:
    with LLM(trained / "packed.gguf", device="cpu", threads=1) as llm:
        model = llm.loaded.model
        assert model.sparsity == "mlp"
        found = measure_predictors(model, _held_out(trained, llm), lambda _done, _total: None)
    for layer, claimed in zip(found, _report(trained)["layers"], strict=True):
        assert layer.rank == claimed["rank"]
        for name in ("active", "recall", "precision", "density"):
            assert getattr(layer, name) == pytest.approx(claimed[name], abs=2e-3), name
        assert layer.ffn_error == pytest.approx(claimed["ffn_error"], rel=0.05, abs=1e-3)


def test_the_first_layer_passes_what_numpy_says(trained: Path) -> None:
    """Its inputs depend on no predictor."""
    state = torch.load(trained / "out" / "model_0.pt", weights_only=True)
    fc1, fc2 = (state[f"{name}.weight"].numpy().astype(np.float64) for name in ("fc1", "fc2"))
    seen: list[tuple[Any, Any]] = []

    def see(layer: FiringLayer) -> None:
        fires = unpack(layer.fired, MODEL.intermediate_size).astype(bool)
        seen.append((fires, layer.raw.astype(np.float64)))

    with LLM(trained / "model.gguf", sparsity="exact", device="cpu", threads=1) as llm:
        windows = _held_out(trained, llm)
        watch_firing(llm.loaded.model, windows, see, num_layers=1)
    ((fires, raw),) = seen
    passes = np.maximum(raw @ fc1.T, 0) @ fc2.T >= -1.0
    claimed = _report(trained)["layers"][0]
    assert (passes & fires).sum() / fires.sum() == pytest.approx(claimed["recall"], abs=2e-3)
    assert passes.mean() == pytest.approx(claimed["density"], abs=2e-3)
    assert fires.mean() == pytest.approx(claimed["active"], abs=1e-6)


def test_checkpoints_are_converted_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "read_tokenizer", lambda _folder, _num_rows: {})
    monkeypatch.setattr(planning, "check_tokenizer", lambda _folder, _metadata: None)
    checkpoint = save_without_torch(tmp_path / "hf", sparse_case("llama-relu"))
    folder = PredictorFolder(tmp_path / "out", {"model": {}})
    random_ = np.random.default_rng(1)
    for number in range(predictor_folders.LAYERS):
        fc1 = random_.standard_normal((32, predictor_folders.HIDDEN)).astype(np.float16)
        fc2 = random_.standard_normal((predictor_folders.NEURONS, 32)).astype(np.float16)
        folder.write_layer(number, fc1, fc2)
    folder.write_report(FolderState())
    convert(checkpoint, tmp_path / "m.gguf", predictors=folder.path)
    file = open_gguf(tmp_path / "m.gguf")
    assert (file.magic, file.get_float("powerinfer.sparse_threshold")) == ("PWRI", -1.0)
    for number in range(predictor_folders.LAYERS):
        for name, matrix in zip(("fc1", "fc2"), folder.read_layer(number), strict=True):
            stored = file.tensors[f"blk.{number}.{name}.weight"]
            np.testing.assert_array_equal(stored.decode(), matrix.astype(np.float32))


def test_a_finished_folder_is_reported_again(trained: Path) -> None:
    before = contents(trained / "out")
    result = invoke(*arguments(trained))
    assert result.exit_code == 0, result.output
    assert "written to" in result.stdout
    assert contents(trained / "out") == before


def _kill_after(command: list[str], seconds: float) -> bool:
    """Run a command and kill it unless it ended before; whether it did."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            _, stderr = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate(timeout=PATIENCE_S)
            return False
    assert process.returncode == 0, stderr.decode()
    return True


@pytest.mark.thorough
def test_kills_at_random_moments_change_nothing(trained: Path, tmp_path: Path) -> None:
    _again(trained, tmp_path)
    command = program(*arguments(tmp_path))
    chance = random.Random(5)
    moments = [chance.uniform(1.0, 4.0) for _ in range(4)]
    if not any(_kill_after(command, seconds) for seconds in moments):
        assert _kill_after(command, 2 * PATIENCE_S)
    assert contents(tmp_path / "out") == contents(trained / "out")


class _Dies(BaseException):
    """Ends a run in the middle, as nothing else does."""


def test_a_run_that_ends_before_any_of_its_files_goes_on(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies when it wants to rename one of the next files, of which each batch makes one."""
    _again(trained, tmp_path)
    monkeypatch.setattr(collecting, "_SAVE_S", 0.0)
    monkeypatch.setattr(window_pass, "_BATCH_TOKENS", 1024)
    replace, chance, count = Path.replace, random.Random(3), 0

    def die_or_replace(path: Path, target: Path) -> Path:
        nonlocal count
        count += 1
        if count == allowed:
            raise _Dies
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", die_or_replace)
    runs, is_done = 0, False
    while not is_done:
        runs, count, allowed = runs + 1, 0, chance.randint(1, 8)
        with suppress(_Dies):
            run_json(*arguments(tmp_path))
            is_done = True
    assert runs > 4
    monkeypatch.undo()
    assert contents(tmp_path / "out") == contents(trained / "out")


def test_the_cache_stays_within_its_size(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As large as one layer needs, it is filled once for each; the predictors are the same."""
    _again(trained, tmp_path)
    sizes, passes = [0], []
    cache = tmp_path / "elsewhere"

    def measure() -> None:
        sizes.append(sum(path.stat().st_size for path in cache.iterdir()))

    def watched(*given: Any, **options: Any) -> None:
        measure()
        passes.append(options["num_layers"])
        watch_firing(*given, **options)

    def fitted(*given: Any, **options: Any) -> Any:
        def progress(step: Any) -> None:
            measure()
            options["progress"](step)

        return fit_layer(*given, **{**options, "progress": progress})

    monkeypatch.setattr(collecting, "watch_firing", watched)
    monkeypatch.setattr(run, "fit_layer", fitted)
    limit = "1000KiB"
    result = invoke(*arguments(tmp_path), "--cache", cache, "--cache-size", limit)
    assert result.exit_code == 0, result.output
    assert sorted(set(passes)) == [1, 2, 3]
    assert 0 < max(sizes) <= 1000 << 10
    assert not cache.exists()
    assert contents(tmp_path / "out") == contents(trained / "out")


def test_ctrl_c_leaves_what_is_done(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _again(trained, tmp_path)

    def interrupted(data: Any, *given: Any, **options: Any) -> Any:
        if data.number == 1:
            raise KeyboardInterrupt
        return fit_layer(data, *given, **options)

    monkeypatch.setattr(run, "fit_layer", interrupted)
    result = invoke(*arguments(tmp_path))
    assert result.exit_code == 130
    assert "the same command resumes from here" in result.stderr
    state = json.loads((tmp_path / "out" / "predictors.json").read_text())
    assert (state["finished"], len(state["layers"])) == (False, 1)
    monkeypatch.undo()
    assert invoke(*arguments(tmp_path)).exit_code == 0
    assert contents(tmp_path / "out") == contents(trained / "out")


def test_other_files_in_the_cache_stay(trained: Path, tmp_path: Path) -> None:
    _again(trained, tmp_path)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "mine.txt").write_text("x")
    result = invoke(*arguments(tmp_path), "--cache", tmp_path / "cache")
    assert result.exit_code == 0, result.output
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["mine.txt"]
