"""Tasks of reasoning-gym, with a package that stands in for it."""

import sys
from collections.abc import Mapping
from types import ModuleType

import pytest

from powerinfer.errors import TaskError, UnsupportedError
from powerinfer.orchestra.evaluation.reasoning_gym_tasks import reasoning_gym_tasks


class _Sums:
    def __init__(self, seed: int, size: int) -> None:
        self._seed, self._size = seed, size

    def __getitem__(self, index: int) -> dict[str, object]:
        assert index < self._size
        return {"question": f"{self._seed} + {index}?", "answer": str(self._seed + index)}

    def score_answer(self, answer: str, entry: Mapping[str, object]) -> float:
        if answer == "odd":
            raise ValueError("what is this?")
        return 1.0 if answer == entry["answer"] else 0.5


class _Running(_Sums):
    def score_answer(self, answer: str, entry: Mapping[str, object]) -> float:
        return float(eval(answer) == entry["answer"])


class _Broken(_Sums):
    def __getitem__(self, index: int) -> dict[str, object]:
        raise RuntimeError("no luck\nat all")


@pytest.fixture(autouse=True)
def gym(monkeypatch: pytest.MonkeyPatch) -> None:
    sets = {"sums": _Sums, "more_sums": _Sums, "running": _Running, "broken": _Broken}
    package, factory = ModuleType("reasoning_gym"), ModuleType("reasoning_gym.factory")

    def create(name: str, *, seed: int, size: int) -> object:
        assert size > 0, "size must be positive"
        assert seed >= 0, "no\nnegative seeds"
        return sets[name](seed, size)

    vars(package)["create_dataset"] = create
    vars(factory)["DATASETS"] = sets
    monkeypatch.setitem(sys.modules, "reasoning_gym", package)
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", factory)


def test_data_sets_take_turns_and_judge_their_answers() -> None:
    tasks = reasoning_gym_tasks(["sums", "more_sums"], 3, seed=5)
    assert [task.id for task in tasks] == ["sums-5-0", "more_sums-5-0", "sums-5-1"]
    assert [task.kind for task in tasks] == ["sums", "more_sums", "sums"]
    assert tasks[2].question == "5 + 1?"
    assert tasks[2].is_right(" 6\n")
    assert not tasks[2].is_right("6 or 7")
    assert not tasks[2].is_right("odd")


def test_fewer_tasks_than_data_sets() -> None:
    assert len(reasoning_gym_tasks(["sums", "more_sums"], 1, seed=5)) == 1


@pytest.mark.parametrize(
    ("names", "seed", "problem"),
    [
        ([], 0, "name a data set"),
        (["sum"], 0, "'sum' is not supported. Did you mean 'sums'?"),
        (["running"], 0, "reasoning-gym:running is not supported: to judge"),
        (["broken"], 0, "reasoning-gym:broken: task 0 failed: RuntimeError no luck at all"),
        (["sums"], -1, "reasoning-gym:sums cannot be made: AssertionError no negative"),
    ],
)
def test_faults_are_told_in_one_line(names: list[str], seed: int, problem: str) -> None:
    with pytest.raises(TaskError) as caught:
        reasoning_gym_tasks(names, 2, seed)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(UnsupportedError, match="install the extra orchestra"):
        reasoning_gym_tasks(["sums"], 1, seed=0)
