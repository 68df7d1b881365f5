"""`powerinfer plan`, on this machine as it is: tables, files, plots, and what it refuses."""

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import assert_error, invoke, run_json
from placement_cases import SOLVERS, smallest
from powerinfer.calibration.files import is_packaged
from powerinfer.gguf import keys, model_identity, open_gguf, write_gguf
from powerinfer.kvcache.state_slots import num_slots_for
from powerinfer.models.model_file import ModelFile
from powerinfer.offload import device_speeds
from powerinfer.offload import problem as placement_problem
from powerinfer.offload.model_sizes import model_sizes
from powerinfer.ops.cpu import speed as native_speed
from powerinfer.placement.cost_model import DeviceSpeed
from powerinfer.placement.gpu_index import read_gpu_index, write_gpu_index
from powerinfer.placement.plan import PLAN
from powerinfer.placement.problem import ModelSizes
from powerinfer.store import threads
from powerinfer.store.default_model import find_model
from tiny_models import TINY_MODELS, write_model

pytestmark = pytest.mark.usefixtures("without_gpu")


@pytest.fixture(scope="module")
def bamboo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of our own: plans are written beside it."""
    return write_model(tmp_path_factory.mktemp("models") / "bamboo.gguf", TINY_MODELS["bamboo"])


@pytest.fixture
def no_overhead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Budgets of tiny models are tiny: what using a GPU takes must not count."""

    def sizes(*arguments: Any) -> ModelSizes:
        return replace(model_sizes(*arguments), overhead_bytes=0)

    monkeypatch.setattr(placement_problem, "model_sizes", sizes)


def test_the_model_in_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A small CPU, however much else it does now: faster ones keep so small a model.
    slow = DeviceSpeed(2e10, 1e10, 5e-6)
    monkeypatch.setattr(device_speeds, "_cpu", lambda *_: slow)
    result = invoke("plan", "--vram-budget", "2", "-o", tmp_path / "one.plan.json")
    assert result.exit_code == 0, result.output
    shown = result.stdout
    for part in ("attention", "predictor", "hot neurons", "covered", "predicted", "budget"):
        assert part in shown
    for part in ("KV cache", "output head", "of 2.00 GiB", "predicted decode speed", "(assumed)"):
        assert part in shown
    assert f"stored in {tmp_path / 'one.plan.json'}" in shown
    plan = PLAN.from_json((tmp_path / "one.plan.json").read_bytes(), "test")
    assert plan.budget_bytes == 2 << 30
    assert plan.model_identity == model_identity(open_gguf(find_model(None)))
    # All of it fits, and the assumed GPU is faster.
    assert plan.has_output
    assert all(len(layer.hot) == plan.num_neurons for layer in plan.layers)


def test_a_plan_of_the_package_lies_in_the_cache(cache_folder: Path) -> None:
    report = run_json("plan", "--vram-budget", "0.64")
    plan, index = (Path(path) for path in report["paths"])
    assert is_packaged(find_model(None))
    assert plan.parent == index.parent == cache_folder / "powerinfer" / "plans"
    assert index.name == f"{report['model']}.generated.gpuidx"


@pytest.mark.usefixtures("no_overhead")
@pytest.mark.parametrize("solver", SOLVERS)
def test_budgets_are_kept_and_more_predicts_faster(
    bamboo: Path, solver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = DeviceSpeed(1e8, 1e8, 1e-5)
    monkeypatch.setattr(device_speeds, "_cpu", lambda *_: slow)
    rates, shares = [], []
    for kilobytes in (40, 80, 120, 400):
        budget = f"{kilobytes}KB"
        report = run_json("plan", "-m", bamboo, "--vram-budget", budget, "--solver", solver)
        assert report["gpu_bytes"] <= report["budget_bytes"] == kilobytes << 10
        assert report["solver"] == solver
        parts = ("attention", "kv", "predictor", "neuron", "output", "overhead")
        assert report["gpu_bytes"] == sum(report[f"{part}_bytes"] for part in parts)
        assert 0 <= report["gpu_share"] <= 1
        rates.append(report["predicted_tokens_per_s"])
        shares.append(report["gpu_share"])
    ladder = [point["predicted_tokens_per_s"] for point in report["budgets"]]
    # The others place what they cover, whatever that costs here.
    if solver == "latency":
        # Prompts count as much as decoding, which gives way a little where they gain more.
        for rising in (rates, ladder):
            best = np.maximum.accumulate(rising)
            assert (np.array(rising) >= 0.9 * best).all()
            assert rising[-1] == best[-1] > rising[0]
    if solver == "greedy":
        assert shares == sorted(shares)
        assert shares[-1] == pytest.approx(1)
    budgets = [point["budget_bytes"] for point in report["budgets"]]
    assert budgets == sorted(budgets)
    assert budgets[0] == 0
    assert report["budget_bytes"] in budgets


@pytest.mark.usefixtures("no_overhead")
def test_what_is_written_is_read_and_explained(bamboo: Path, tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    shutil.copy(bamboo, model)
    options = ("-m", model, "--vram-budget", "0.12MB", "--solver", "greedy")
    made = run_json("plan", *options, "--write-gpu-index")
    plan, index = (Path(path) for path in made["paths"])
    assert plan == tmp_path / "m.gguf.plan.json"
    assert index == tmp_path / "m.gguf.generated.gpuidx"
    assert 0 < made["gpu_share"] < 1
    explained = run_json("plan", *options, "--gpu-index", plan)
    assert explained["layers"] == made["layers"]
    assert explained["source"] == f"named: {plan}"
    assert explained["paths"] == []
    found = read_gpu_index(index, smallest(2, made["num_neurons"], made["model"]))
    hot = [layer.hot for layer in found.layers]
    assert [len(ids) for ids in hot] == [layer["hot_neurons"] for layer in made["layers"]]
    # An index says nothing of attention: all of it is on the GPU.
    shown = run_json("plan", "-m", model, "--vram-budget", "1MB", "--gpu-index", index)
    assert all(layer["has_attention"] for layer in shown["layers"])
    assert [layer["hot_neurons"] for layer in shown["layers"]] == [len(ids) for ids in hot]


@pytest.mark.usefixtures("no_overhead")
def test_named_plans_that_do_not_fit(bamboo: Path, tmp_path: Path) -> None:
    plan = tmp_path / "all.json"
    run_json("plan", "-m", bamboo, "--vram-budget", "10MB", "--solver", "greedy", "-o", plan)
    small = invoke("plan", "-m", bamboo, "--vram-budget", "0.05MB", "--gpu-index", plan)
    assert_error(small, "all.json: this plan takes", "larger --vram-budget")
    other = write_model(tmp_path / "relu.gguf", TINY_MODELS["llama-relu"])
    result = invoke("plan", "-m", other, "--vram-budget", "10MB", "--gpu-index", plan)
    assert_error(result, "made for another model", "run `powerinfer plan` for this one")
    # Named files are the user's, and with --gpu-index there is nothing to reset.
    assert "remove it" not in result.stderr
    assert "--reset-gpu-index" not in result.stderr
    missing = invoke("plan", "-m", bamboo, "--vram-budget", "1", "--gpu-index", tmp_path / "no")
    assert_error(missing, "no: cannot be read")
    without = ("--sparsity", "exact", "--gpu-index", plan)
    assert_error(invoke("plan", "-m", bamboo, "--vram-budget", "10MB", *without), "predictor")


def test_the_cpu_has_the_threads_that_it_will_have_beside_a_gpu(
    bamboo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "physical_cores", lambda: 8)
    speed = DeviceSpeed(1e10, 5e9, 2e-6)
    monkeypatch.setattr(native_speed, "measure_native_speed", lambda *_: speed)
    options = ("-m", bamboo, "--vram-budget", "1", "-o", tmp_path / "plan.json")
    assert ", 6 threads, " in run_json("plan", *options)["cpu"]
    assert ", 3 threads, " in run_json("plan", *options, "-t", "3")["cpu"]


def test_a_foreign_index_is_never_overwritten(bamboo: Path, tmp_path: Path) -> None:
    (tmp_path / "a.generated.gpuidx").write_bytes(b"PWRIfile of somebody else")
    options = ("-m", bamboo, "--vram-budget", "1", "-o", tmp_path / "a.plan.json")
    assert_error(invoke("plan", *options, "--write-gpu-index"), "not overwritten")
    assert (tmp_path / "a.generated.gpuidx").read_bytes() == b"PWRIfile of somebody else"
    assert not (tmp_path / "a.plan.json").exists()
    # Unasked, it is left alone and the plan written.
    shown = invoke("plan", *options)
    assert shown.exit_code == 0
    assert "not overwritten" in shown.stderr
    assert (tmp_path / "a.generated.gpuidx").read_bytes() == b"PWRIfile of somebody else"
    assert (tmp_path / "a.plan.json").exists()


def test_an_index_is_written_by_default(bamboo: Path, tmp_path: Path) -> None:
    options = ("-m", bamboo, "--vram-budget", "1", "-o", tmp_path / "a.plan.json")
    run_json("plan", *options, "--no-write-gpu-index")
    assert not (tmp_path / "a.generated.gpuidx").exists()
    run_json("plan", *options)
    assert (tmp_path / "a.generated.gpuidx").exists()


def test_files_that_are_no_plans_are_refused_before_solving(bamboo: Path, tmp_path: Path) -> None:
    before = bamboo.read_bytes()
    os.mkfifo(tmp_path / "pipe")
    options = ("plan", "-m", bamboo, "--vram-budget", "1", "-o")
    for target in (bamboo, tmp_path, tmp_path / "pipe"):
        result = invoke(*options, target)
        assert_error(
            result,
            f"{target}: already exists and is not a readable plan",
            "name another file with -o",
        )
        assert "remove" not in result.stderr
    assert bamboo.read_bytes() == before
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize(
    ("options", "messages"),
    [
        ([], ["no GPU here", "--vram-budget 8"]),
        (["--vram-budget", "50%"], ["no GPU here", "as an amount"]),
        (["--vram-budget", "lots"], ["such as 8, 8G or 8GiB"]),
        (["--vram-budget", "1", "--solver", "best"], ["solver 'best'", "greedy, latency, paper"]),
        (["--vram-budget", "1", "--gpu-index", "a", "-o", "b"], ["writes nothing", "leave -o"]),
        (["--vram-budget", "1", "-o", "/proc/none/plan.json"], ["cannot write there"]),
        (["--vram-budget", "1", "--kernels", "reference"], ["CPU's kernels", "leave"]),
        (["--vram-budget", "1", "--measure-recall"], ["plan runs none"]),
        (["--vram-budget", "1", "-c", "0"], ["0 is not in the range"]),
    ],
    ids=lambda value: " ".join(value)[-24:] or "nothing",
)
def test_mistakes(options: list[str], messages: list[str]) -> None:
    assert_error(invoke("plan", *options), *messages)


def test_the_papers_solver_without_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "powerinfer.placement.solvers.paper", raising=False)
    monkeypatch.setitem(sys.modules, "scipy", None)
    message = "solver paper needs scipy, which is not installed; install the extra cuda: scripts"
    assert_error(invoke("plan", "--vram-budget", "1", "--solver", "paper"), message)


def test_the_context_counts(tmp_path: Path) -> None:
    output = ("-o", tmp_path / "plan.json")
    small, large = (
        run_json("plan", "--vram-budget", "2", "-c", context, *output) for context in ("64", "512")
    )
    assert large["kv_bytes"] == 8 * small["kv_bytes"] > 0
    halved = run_json("plan", "--vram-budget", "2", "-c", "512", "--kv-type", "q8_0", *output)
    assert halved["kv_bytes"] * 32 == large["kv_bytes"] * 17


@pytest.mark.slow
@pytest.mark.measured
def test_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    options = ("--vram-budget", "0.63", "-o", tmp_path / "plan.json", "--plot", tmp_path / "plots")
    drawn = [Path(path) for path in run_json("plan", *options)["plots"]]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn[::2])
    assert len(drawn) == 6
    for path in drawn[1::2]:
        said = path.read_text()
        facts = (find_model(None).name, "GPU: ", "CPU: ", "frequencies: ", "solver latency")
        assert all(fact in said for fact in facts)


def test_a_budget_for_nothing_is_said(tmp_path: Path) -> None:
    result = invoke("plan", "--vram-budget", "10MiB", "-o", tmp_path / "plan.json")
    assert result.exit_code == 0, result.output
    assert "nothing is on the GPU" in result.stdout


@pytest.mark.slow
def test_speeds_are_measured_once(cache_folder: Path, tmp_path: Path) -> None:
    output = ("-o", tmp_path / "plan.json")
    first = run_json("plan", "--vram-budget", "1", *output)
    (stored,) = (
        path
        for path in (cache_folder / "powerinfer" / "speeds").glob("cpu-*.json")
        if json.loads(path.read_text())["of"] == f"{first['cpu']}, f16 weights"
    )
    content = json.loads(stored.read_text())
    content["speeds"]["read_bytes_per_s"] *= 1000
    content["speeds"]["gather_bytes_per_s"] *= 1000
    stored.write_text(json.dumps(content))
    second = run_json("plan", "--vram-budget", "1", *output)
    assert second["budgets"][0] != first["budgets"][0]
    # A damaged file is measured again and replaced.
    for damage in ("{", "[]", json.dumps({**content, "speeds": {"read_bytes_per_s": "x"}})):
        stored.write_text(damage)
        run_json("plan", "--vram-budget", "1", *output)
        assert json.loads(stored.read_text())["speeds"]["launch_s"] > 0


def test_an_index_of_many_layers_by_powerinfer_is_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = write_model(tmp_path / "deep.gguf", replace(TINY_MODELS["llama-relu"], num_layers=11))
    made = tmp_path / "deep.plan.json"
    options = ("-m", model, "--vram-budget", "2")
    run_json("plan", *options, "-o", made)
    plan = PLAN.from_json(made.read_bytes(), "test")
    index = tmp_path / "theirs.gpuidx"
    write_gpu_index(index, plan, 1)
    ours = run_json("plan", *options, "--gpu-index", index)
    assert not caplog.records
    assert [layer["hot_neurons"] for layer in ours["layers"]] == [
        len(layer.hot) for layer in plan.layers
    ]
    _remove_our_keys(index)
    run_json("plan", *options, "--gpu-index", index)
    assert "statistics of other layers" in caplog.text


def _remove_our_keys(path: Path) -> None:
    """What PowerInfer's own tool would have written."""
    file = open_gguf(path)
    kept: dict[str, Any] = {
        keys.ARCHITECTURE: file.get_str(keys.ARCHITECTURE),
        "generic.gpu_index.block_count": np.uint32(11),
        "split.vram_capacity": np.uint64(file.get_int("split.vram_capacity")),
    }
    tensors = [(t.name, t.shape, t.format, np.array(t.data)) for t in file.tensors.values()]
    write_gguf(path, kept, tensors, magic="PWRI")


@pytest.mark.parametrize("name", ["lfm2", "lfm2moe", "qwen35", "qwen35moe"])
def test_models_with_state_stay_on_the_cpu(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_model(tmp_path / "tiny.gguf", TINY_MODELS[name])
    report = run_json("plan", "-m", path, "-c", "32")
    assert "stay on the CPU for now" in report["note"]
    config = ModelFile.open(path).config
    row = 2 * len(config.attention_layers) * config.num_kv_heads * config.head_dim * 2
    assert report["kv_bytes_per_position"] == row
    assert report["kv_bytes_in_all"] == 32 * row
    assert report["state_bytes_per_text"] == config.state_bytes > 0
    assert report["state_bytes_in_all"] == num_slots_for(8, 0) * config.state_bytes
    assert report["gpu_bytes"] == 0 < report["weight_bytes"] < path.stat().st_size
    monkeypatch.setenv("COLUMNS", "100")
    for budget in ([], ["--vram-budget", "8", "--device", "cpu"]):
        shown = invoke("plan", "-m", path, *budget)
        assert shown.exit_code == 0, shown.output
        assert shown.stdout.splitlines()[-1] == report["note"]
        for part in (
            "weights",
            "KV cache",
            "tokens of",
            "states",
            "per text, room for 18",
            "total",
        ):
            assert part in shown.stdout
    assert list(tmp_path.iterdir()) == [path]
    written = invoke("plan", "-m", path, "--vram-budget", "8", "-o", tmp_path / "a.plan.json")
    assert_error(written, "run on the CPU alone for now; nothing can be placed on a GPU")
