"""Where plans are stored, which stored plans are used again, and which files are refused."""

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from placement_cases import model_shape, with_budget
from powerinfer.errors import PlacementError
from powerinfer.gguf import GGUFFile, model_identity, open_gguf
from powerinfer.offload.plan_files import (
    find_plan,
    read_plan,
    save_plan,
    write_plan,
)
from powerinfer.placement import gpu_index
from powerinfer.placement.plan import PLAN, LayerPlacement, PlacementPlan
from powerinfer.placement.problem import PlacementProblem
from powerinfer.placement.step_time import step_s
from powerinfer.sidecar import Sidecar
from powerinfer.store.default_model import default_model_path
from tiny_models import TINY_MODELS, write_model

pytestmark = pytest.mark.usefixtures("own_cache")

SOLVER = "latency"


@pytest.fixture
def file(tmp_path: Path) -> GGUFFile:
    return open_gguf(write_model(tmp_path / "m.gguf", TINY_MODELS["llama-relu"]))


@pytest.fixture
def problem(file: GGUFFile) -> PlacementProblem:
    return _problem(file)


def _problem(file: GGUFFile, *, has_predictor: bool = True) -> PlacementProblem:
    shape = model_shape(3, 512, 2048, has_predictor=has_predictor, is_parallel=False)
    sizes = replace(shape.sizes, overhead_bytes=1 << 20)
    identity = model_identity(file)
    return replace(shape, model_identity=identity, sizes=sizes, budget_bytes=sizes.full_bytes)


def _plan(problem: PlacementProblem, solver: str = SOLVER) -> PlacementPlan:
    """All that fits, neurons by their number."""
    sizes = problem.sizes
    first = sizes.layers[0]
    per_layer = sizes.placed_bytes(_of(problem, solver, 0)) - sizes.overhead_bytes
    left = problem.budget_bytes - sizes.overhead_bytes - per_layer
    count = min(sizes.num_neurons, left // (len(sizes.layers) * first.neuron_bytes))
    plan = _of(problem, solver, count)
    return replace(plan, predicted_s=step_s(problem, plan))


def _of(problem: PlacementProblem, solver: str, count: int) -> PlacementPlan:
    predicts = problem.sizes.layers[0].predictor_bytes > 0
    layer = LayerPlacement(True, predicts, np.arange(count, dtype=np.int32))
    layers = (layer,) * len(problem.sizes.layers)
    return PlacementPlan(
        problem.model_identity,
        solver,
        problem.budget_bytes,
        problem.sizes.num_neurons,
        True,
        layers,
    )


def _is(found: tuple[PlacementPlan, Path] | None, path: Path, plan: PlacementPlan) -> bool:
    return (
        found is not None
        and found[1] == path
        and found[0].predicted_s == plan.predicted_s
        and all(
            np.array_equal(one.hot, other.hot)
            for one, other in zip(found[0].layers, plan.layers, strict=True)
        )
    )


@pytest.mark.parametrize("share", [1.0, 0.9])
def test_a_plan_is_found_beside_its_model(
    file: GGUFFile, problem: PlacementProblem, share: float
) -> None:
    budget = int(share * problem.budget_bytes)
    problem = with_budget(problem, budget)
    assert find_plan(file, problem, SOLVER) is None
    plan = _plan(problem)
    path = save_plan(file, plan)
    assert path == PLAN.beside(file.path)
    assert path.name == "m.gguf.plan.json"
    assert _is(find_plan(file, problem, SOLVER), path, plan)


def test_where_the_folder_is_not_writable_it_is_in_the_cache(
    file: GGUFFile, problem: PlacementProblem, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan = _plan(problem)
    real = Sidecar.write

    def refused(self: Sidecar[PlacementPlan], path: Path, plan: PlacementPlan) -> Path:
        if path.parent == file.path.parent:
            raise PlacementError("read-only")
        return real(self, path, plan)

    monkeypatch.setattr(Sidecar, "write", refused)
    with pytest.raises(PlacementError, match="read-only"):
        save_plan(file, plan)
    monkeypatch.setattr(os, "access", lambda *_: False)
    path = save_plan(file, plan)
    assert (tmp_path / "cache") in path.parents
    assert problem.model_identity in path.name
    assert _is(find_plan(file, problem, SOLVER), path, plan)


def test_the_plan_of_the_packaged_model_is_in_the_cache(tmp_path: Path) -> None:
    packaged = open_gguf(default_model_path())
    problem = _problem(packaged)
    path = save_plan(packaged, _plan(problem))
    assert (tmp_path / "cache") in path.parents
    assert not PLAN.beside(packaged.path).exists()
    assert find_plan(packaged, problem, SOLVER) is not None


CHANGES: dict[str, Callable[[PlacementProblem], PlacementProblem]] = {
    "a larger budget": lambda p: with_budget(p, int(1.011 * p.budget_bytes)),
    "a smaller budget": lambda p: with_budget(p, int(0.989 * p.budget_bytes)),
    "a larger context": lambda p: replace(
        p,
        sizes=replace(
            p.sizes,
            layers=tuple(replace(ly, kv_bytes=ly.kv_bytes + (8 << 20)) for ly in p.sizes.layers),
        ),
    ),
    "a smaller context": lambda p: replace(
        p,
        sizes=replace(p.sizes, layers=tuple(replace(ly, kv_bytes=0) for ly in p.sizes.layers)),
    ),
    "another machine": lambda p: replace(
        p,
        cost=replace(p.cost, gpu=replace(p.cost.gpu, gather_bytes_per_s=1e11), handoff_s=1e-3),
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_plan_for_something_else_is_not_used(
    file: GGUFFile,
    problem: PlacementProblem,
    change: Callable[[PlacementProblem], PlacementProblem],
) -> None:
    problem = with_budget(problem, int(0.985 * problem.budget_bytes))
    save_plan(file, _plan(problem))
    assert find_plan(file, problem, SOLVER) is not None
    assert find_plan(file, change(problem), SOLVER) is None


def test_a_plan_in_several_runs_is_not_used(file: GGUFFile, problem: PlacementProblem) -> None:
    """Of a version before: each run of layers on the GPU costs a graph."""
    plan = _plan(problem)
    layers = list(plan.layers)
    layers[1] = LayerPlacement(False, False, np.empty(0, np.int32))
    taken = sum(problem.sizes.layers[1].part_bytes(plan.layers[1]).values())
    problem = with_budget(problem, problem.budget_bytes - taken)
    apart = replace(plan, layers=tuple(layers), budget_bytes=problem.budget_bytes)
    assert problem.sizes.placed_bytes(apart) <= problem.budget_bytes
    save_plan(file, replace(apart, predicted_s=step_s(problem, apart)))
    assert find_plan(file, problem, SOLVER) is None
    # The same layers, the one on the CPU in front.
    together = replace(apart, layers=(layers[1], layers[0], *layers[2:]))
    save_plan(file, replace(together, predicted_s=step_s(problem, together)))
    assert find_plan(file, problem, SOLVER) is not None


def test_a_slightly_larger_budget_and_another_solver(
    file: GGUFFile, problem: PlacementProblem
) -> None:
    save_plan(file, _plan(problem))
    assert find_plan(file, with_budget(problem, problem.budget_bytes + 1000), SOLVER) is not None
    assert find_plan(file, problem, "paper") is None
    unpredicted = replace(_plan(problem), predicted_s=None)
    save_plan(file, unpredicted)
    assert find_plan(file, problem, SOLVER) is None


def test_a_plan_that_wastes_memory_is_not_used(file: GGUFFile, problem: PlacementProblem) -> None:
    few = _of(problem, SOLVER, 200)
    budget = int(1.01 * problem.sizes.placed_bytes(few))
    tight = with_budget(problem, budget)
    plan = replace(few, budget_bytes=budget, predicted_s=step_s(tight, few))
    write_plan(PLAN.beside(file.path), plan)
    assert find_plan(file, tight, SOLVER) is not None
    wide = int(1.1 * budget)
    assert problem.sizes.full_bytes > wide
    write_plan(PLAN.beside(file.path), replace(plan, budget_bytes=wide))
    assert find_plan(file, with_budget(problem, wide), SOLVER) is None
    # Nothing that could be placed is left where the whole model is smaller than the budget.
    full = _of(problem, SOLVER, problem.sizes.num_neurons)
    huge = with_budget(problem, 100 * problem.budget_bytes)
    full = replace(full, budget_bytes=huge.budget_bytes, predicted_s=step_s(huge, full))
    write_plan(PLAN.beside(file.path), full)
    assert find_plan(file, huge, SOLVER) is not None


def test_an_index_of_ours_is_used_where_there_is_no_plan(
    file: GGUFFile, problem: PlacementProblem, caplog: pytest.LogCaptureFixture
) -> None:
    plan = _plan(problem)
    index = gpu_index.beside(file.path)
    gpu_index.write_gpu_index(index, plan, 1)
    found = find_plan(file, problem, SOLVER)
    assert found is not None
    assert found[1] == index
    assert not caplog.records
    assert len(found[0].layers[1].hot) == len(plan.layers[1].hot)
    assert found[0].has_output
    assert all(layer.has_predictor for layer in found[0].layers)
    assert find_plan(file, with_budget(problem, problem.budget_bytes // 2), SOLVER) is None
    path = save_plan(file, plan)
    assert _is(find_plan(file, problem, SOLVER), path, plan)


def test_a_foreign_index_is_used_only_where_it_is_named(
    file: GGUFFile,
    problem: PlacementProblem,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    index = gpu_index.beside(file.path)
    with monkeypatch.context() as patch:
        patch.setattr(gpu_index, "IDENTITY", "another.key")
        gpu_index.write_gpu_index(index, _plan(problem), 1)
    assert find_plan(file, problem, SOLVER) is None
    assert read_plan(index, problem).solver == gpu_index.SOLVER
    assert not caplog.records
    deep = replace(
        problem,
        sizes=replace(problem.sizes, layers=problem.sizes.layers * 4),
        stats=replace(problem.stats, frequency=np.tile(problem.stats.frequency, (4, 1))),
    )
    with pytest.raises(PlacementError, match="needs two for each of the model's 12 layers"):
        read_plan(index, deep)


@pytest.mark.parametrize("text", ["", "{}", "hello", "[" * 100_000])
def test_damaged_plans_are_solved_again(
    file: GGUFFile, problem: PlacementProblem, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = PLAN.beside(file.path)
    path.write_text(text)
    with pytest.raises(PlacementError, match=r"m\.gguf\.plan\.json"):
        read_plan(path, problem)
    with caplog.at_level(logging.WARNING):
        assert find_plan(file, problem, SOLVER) is None
    assert "m.gguf.plan.json" in caplog.text
    save_plan(file, _plan(problem))
    assert find_plan(file, problem, SOLVER) is not None


def test_plans_of_other_models(file: GGUFFile, problem: PlacementProblem, tmp_path: Path) -> None:
    path = tmp_path / "plan"
    write_plan(path, replace(_plan(problem), model_identity="0" * 64))
    with pytest.raises(PlacementError, match="made for another model"):
        read_plan(path, problem)
    plan = _plan(problem)
    write_plan(path, replace(plan, layers=plan.layers[:2]))
    with pytest.raises(PlacementError, match="2 layers of 2048 neurons"):
        read_plan(path, problem)
    write_plan(path, plan)
    with pytest.raises(PlacementError, match="made for other predictors: layer 0 has no"):
        read_plan(path, _problem(file, has_predictor=False))
    write_plan(path, _plan(_problem(file, has_predictor=False)))
    with pytest.raises(PlacementError, match="made for other predictors: layer 0 has predictor"):
        read_plan(path, problem)


def test_files_that_are_no_plans(file: GGUFFile, problem: PlacementProblem, tmp_path: Path) -> None:
    with pytest.raises(PlacementError, match="No such file"):
        read_plan(tmp_path / "none", problem)
    with pytest.raises(PlacementError, match="Is a directory"):
        read_plan(tmp_path, problem)
    with pytest.raises(PlacementError, match="is not a GPU index"):
        read_plan(file.path, problem)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PlacementError, match="not a regular file"):
        read_plan(tmp_path / "pipe", problem)
    with pytest.raises(PlacementError, match="cannot write"):
        write_plan(file.path / "below", _plan(problem))


def test_only_plans_are_replaced(file: GGUFFile, problem: PlacementProblem, tmp_path: Path) -> None:
    before = file.path.read_bytes()
    text = tmp_path / "notes.txt"
    text.write_text("{}")
    link = tmp_path / "link"
    link.symlink_to(file.path)
    os.mkfifo(tmp_path / "pipe")
    for path in (file.path, text, link, tmp_path / "pipe", tmp_path):
        with pytest.raises(PlacementError, match="is not a readable plan"):
            write_plan(path, _plan(problem))
    assert file.path.read_bytes() == before
    assert text.read_text() == "{}"
    path = write_plan(tmp_path / "new.json", _plan(problem, "paper"))
    assert read_plan(write_plan(path, _plan(problem)), problem).solver == SOLVER
