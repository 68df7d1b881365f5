"""Every run of layers on the GPU is recorded, whatever lies on the CPU beside it.

There is no graph here: a replay does the work again, and what Python does outside of replays is
counted.
"""

import importlib.util
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from placed_models import NEURONS, SMALL, load, make_plan, place  # noqa: E402
from powerinfer.errors import OutOfDeviceMemoryError  # noqa: E402
from powerinfer.models import Model  # noqa: E402
from powerinfer.ops.cpu.ops import NativeOps  # noqa: E402
from powerinfer.ops.gpu.memory import DeviceMemory  # noqa: E402
from powerinfer.ops.hybrid.counters import HybridCounters  # noqa: E402
from powerinfer.ops.hybrid.ops import HybridSettings  # noqa: E402
from powerinfer.values import FloatArray  # noqa: E402
from repeating_recorder import RepeatingRecorder, repeating  # noqa: E402
from tiny_models import TINY_MODELS, write_model  # noqa: E402
from tolerances import assert_close  # noqa: E402

# The first step runs eagerly, the second is recorded and compared, the third is replayed only.
TOKENS = (5, 17, 250)


@dataclass
class Placed:
    """A placed model and what its steps do.

    Attributes:
        layers: numbers of layers that Python called outside of replays.
        num_waits: times that anybody waited for the device outside of them.
    """

    model: Model
    recorder: RepeatingRecorder
    layers: list[int] = field(default_factory=list)
    num_waits: int = 0

    def decode(self) -> list[FloatArray]:
        """Logits of a few steps; what was noted is of the last one."""
        cache = self.model.new_cache(64)
        found = []
        for position, token in enumerate(TOKENS):
            self.layers.clear()
            self.num_waits = 0
            found.append(self.model.forward(cache.batch([(0, [token], position)], [False]), cache))
        return found


def _placed(
    model: Model,
    plan: Any,
    patch: pytest.MonkeyPatch,
    *failures: BaseException,
    settings: HybridSettings = SMALL,
) -> Placed:
    """The model on both devices, with records, watched."""
    with repeating(patch, *failures) as made:
        placed = place(model, plan, settings)
    (recorder,) = made
    found = Placed(placed, recorder)
    run_layer, to_host = placed.architecture.run_layer, DeviceMemory.to_host

    def noted(model: Model, number: int, *arguments: Any, **options: Any) -> Any:
        if not recorder.is_replaying:
            found.layers.append(number)
        return run_layer(model, number, *arguments, **options)

    def waited(memory: DeviceMemory, values: Any) -> Any:
        found.num_waits += not recorder.is_replaying
        return to_host(memory, values)

    patch.setattr(DeviceMemory, "to_host", waited)
    for name in ("begin_run", "note_call"):
        patch.setattr(
            HybridCounters, name, _unless_replaying(getattr(HybridCounters, name), recorder)
        )
    found.model = replace(placed, architecture=replace(placed.architecture, run_layer=noted))
    return found


def _unless_replaying(method: Any, recorder: RepeatingRecorder) -> Any:
    """What Python notes while it queues a run, it does not note in a replay."""

    def called(*arguments: Any, **options: Any) -> None:
        if not recorder.is_replaying:
            method(*arguments, **options)

    return called


def _load(folder: Path, name: str, num_layers: int, kind: str | None = None) -> Model:
    recipe = replace(TINY_MODELS[name], intermediate_size=NEURONS, num_layers=num_layers)
    return load(write_model(folder / "model.gguf", recipe), NativeOps(1), kind)


def _counts(model: Model) -> list[int]:
    counters = model.ops.counters
    return [counters.active, counters.predicted, counters.total]


# A layer of each state stands before, between and behind those of the CPU in some case that CI
# runs, and one of the families has no gate.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "states", "has_output", "num_records"),
    [
        pytest.param("bamboo", "CSC", False, 1, marks=pytest.mark.thorough),
        ("llama-relu", "CP", True, 1),
        ("llama-powerinfer", "CAC", False, 1),
        pytest.param("opt-powerinfer", "AS", True, 1, marks=pytest.mark.thorough),
        ("falcon-powerinfer", "SA", False, 1),
        ("llama-relu", "SCP", False, 2),
        pytest.param("bamboo", "SC", True, 2, marks=pytest.mark.thorough),
    ],
)
def test_python_calls_the_layers_of_the_cpu_only(
    name: str,
    states: str,
    has_output: bool,
    num_records: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = _load(tmp_path, name, len(states))
    plan = make_plan(states, 1, has_output=has_output)
    recorded = _placed(model, plan, monkeypatch)
    eager = place(model, plan)
    before = _counts(model)
    got = recorded.decode()
    counted = [after - one for after, one in zip(_counts(model), before, strict=True)]
    assert recorded.recorder.num_records == num_records
    # The first of them is compared with the eager run.
    assert recorded.recorder.num_replays == num_records * (len(TOKENS) - 1)
    assert recorded.layers == [number for number, state in enumerate(states) if state == "C"]
    # What the device counted comes with its results.
    assert recorded.num_waits == 0
    assert not caplog.records
    before = _counts(model)
    expected = Placed(model, recorded.recorder).decode()
    assert counted == [after - one for after, one in zip(_counts(model), before, strict=True)]
    assert_close(np.concatenate(got), np.concatenate(expected), "hybrid")
    np.testing.assert_array_equal(got, Placed(eager, recorded.recorder).decode())


def _decode(model: Model, groups: list[list[int]]) -> FloatArray:
    """Logits of some tokens of each text, whose texts share the steps of their group."""
    cache = model.new_cache(64 * sum(map(len, groups)))
    return np.stack(
        [
            np.concatenate(
                [
                    model.forward(
                        cache.batch(
                            [(text, [token + text], position) for text in group],
                            [False] * len(group),
                        ),
                        cache,
                    )
                    for group in groups
                ]
            )
            for position, token in enumerate(TOKENS)
        ]
    )


@pytest.mark.parametrize("states", ["CSC", pytest.param("SAF", marks=pytest.mark.slow)])
def test_many_texts_are_decoded_in_steps_that_are_recorded(
    states: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _load(tmp_path, "bamboo", len(states))
    plan = make_plan(states, 1, has_output=states[-1] != "C")
    placed = _placed(model, plan, monkeypatch, settings=replace(SMALL, max_texts=5))
    before = _counts(model)
    got = _decode(placed.model, [[0, 1, 2, 3, 4]])
    counted = [after - one for after, one in zip(_counts(model), before, strict=True)]
    # Of two tokens and of one. The first step has two steps of two: one is eager, one is recorded.
    assert placed.recorder.num_records == 2
    assert placed.recorder.num_replays == 5 + 2
    # Layers on the CPU take all texts at once.
    on_cpu = [number for number, state in enumerate(states) if state == "C"]
    assert [placed.layers.count(number) for number in on_cpu] == [len(TOKENS)] * len(on_cpu)
    before = _counts(model)
    np.testing.assert_array_equal(got, _decode(placed.model, [[0, 1], [2, 3], [4]]))
    assert counted == [after - one for after, one in zip(_counts(model), before, strict=True)]
    assert_close(got, _decode(model, [[0, 1, 2, 3, 4]]), "hybrid")


def test_more_texts_are_computed_as_a_prompt_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _load(tmp_path, "bamboo", 1)
    placed = _placed(model, make_plan("S", 1), monkeypatch, settings=replace(SMALL, max_texts=4))
    got = _decode(placed.model, [[0, 1, 2, 3, 4]])
    assert placed.recorder.num_records == placed.recorder.num_replays == 0
    assert_close(got, _decode(model, [[0, 1, 2, 3, 4]]), "hybrid")


@pytest.mark.slow
@pytest.mark.measured
def test_predictors_in_python_and_observers_are_asked_in_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _load(tmp_path, "bamboo", 2, "oracle")
    recorded = _placed(model, make_plan("SC", 1, has_output=False), monkeypatch)
    recorded.decode()
    assert recorded.layers == [0, 1]
    plain = _placed(_load(tmp_path, "bamboo", 2), make_plan("SC", 1), monkeypatch)
    cache = plain.model.new_cache(64)
    stages: list[Any] = []
    for position, token in enumerate(TOKENS):
        stages.clear()
        plain.model.forward(
            cache.batch([(0, [token], position)], [False]),
            cache,
            observe=lambda stage, number, _: stages.append((stage, number)),
        )
        assert {number for _, number in stages} == {0, 1}
    assert plain.recorder.num_records == recorded.recorder.num_records == 0


def test_an_observer_that_stops_in_the_first_run_ends_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from powerinfer.models.blocks import Stage, StepControl

    placed = _placed(_load(tmp_path, "llama-relu", 3), make_plan("CPC", 1), monkeypatch)
    cache = placed.model.new_cache(64)
    logits = placed.model.forward(
        cache.batch([(0, [5], 0)], [False]),
        cache,
        observe=lambda stage, *_: StepControl.STOP if stage is Stage.FFN else None,
    )
    assert logits.shape == (0, placed.model.config.vocab_size)
    assert placed.layers == [0]


@pytest.mark.slow
def test_prompts_pass_the_same_runs(tmp_path: Path) -> None:
    model = _load(tmp_path, "llama-powerinfer", 3)
    # The output head is on the device, behind layers on the CPU too: it gets the wanted rows only.
    for states in ("ACS", "CAA", "SAC", "CCC"):
        found = []
        for one in (model, place(model, make_plan(states, 2), SMALL)):
            cache = one.new_cache(64)
            last = np.array([4], np.int32)
            batch = cache.batch([(0, [5, 17, 250, 33, 9], 0)], [True])
            found.append(one.forward(batch, cache, logits_for=last))
        assert_close(found[1], found[0], "hybrid")


@pytest.mark.slow
def test_steps_that_want_other_rows_leave_the_counts_of_replays_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last block of such a step is called for fewer tokens; it is not recorded."""
    model = _load(tmp_path, "bamboo", 1)
    placed = _placed(model, make_plan("F", 1), monkeypatch)
    cache = placed.model.new_cache(64)

    def step(position: int, wanted: list[int] | None) -> int:
        batch = cache.batch([(0, [5, 17], position)], [False])
        before = model.ops.counters.total
        rows = None if wanted is None else np.array(wanted, np.int32)
        placed.model.forward(batch, cache, logits_for=rows)
        return model.ops.counters.total - before

    counted = [step(2 * number, None) for number in range(3)]
    assert step(6, [1]) < counted[-1]
    num_replays = placed.recorder.num_replays
    counted.append(step(8, None))
    assert placed.recorder.num_replays == num_replays + 1
    assert counted == [2 * NEURONS] * 4


@pytest.mark.slow
def test_memory_that_runs_out_for_a_record_is_raised_on_trial_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = _load(tmp_path, "llama-relu", 2)
    no_memory = [torch.cuda.OutOfMemoryError("CUDA out of memory") for _ in range(2)]
    placed = _placed(model, make_plan("SC", 1), monkeypatch, *no_memory)
    ops: Any = placed.model.ops
    with ops.trial(), pytest.raises(OutOfDeviceMemoryError):
        placed.decode()
    assert not caplog.records
    found = np.concatenate(placed.decode())
    assert_close(found, np.concatenate(Placed(model, placed.recorder).decode()), "hybrid")
    (warning,) = caplog.records
    assert "steps of 1 tokens are not recorded" in warning.message
