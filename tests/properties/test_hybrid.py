"""Where weights lie must not matter: any plan gives the logits of the CPU, or of the reference."""

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="torch is not installed")
# Not imported here: how Triton runs is chosen by our own import of it.
if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from placed_models import NEURONS, SMALL, load, make_plan, place, run, tiny_file
from placement_cases import needs_scipy
from powerinfer.calibration.firing import FiringLayer, watch_firing
from powerinfer.errors import UnsupportedError
from powerinfer.models import Model
from powerinfer.offload.model_sizes import SizeAssumptions, model_sizes
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.hybrid.build import SharedBuffers
from powerinfer.ops.hybrid.decode import SplitFFN
from powerinfer.ops.hybrid.handles import SlotTable
from powerinfer.ops.hybrid.migration import OnlineMode, OnlineSettings, choose_moves
from powerinfer.ops.hybrid.ops import HybridSettings
from powerinfer.ops.protocol import KVType
from powerinfer.ops.reference.ops import ReferenceOps
from powerinfer.placement.cost_model import CostModel, DeviceSpeed
from powerinfer.placement.problem import ActivationStats, PlacementProblem
from powerinfer.placement.solvers import get_solver
from powerinfer.values import FloatArray
from tolerances import assert_close

pytestmark = pytest.mark.slow

# Kernels are interpreted, which takes seconds for a model of two layers. A quick profile draws few
# plans, the others as many as they say; what chooses plans otherwise, or compares more loosely, a
# tenth.
_USUAL = settings().max_examples
few_examples = settings(max_examples=max(2, _USUAL // 10))

PLAIN = [
    ("llama", None),
    ("llama-relu", None),
    ("llama-relu", "off"),
    ("llama-relu2", None),
    ("llama-drelu-transposed", None),
    ("qwen2-drelu", None),
    ("opt", None),
    ("nemotron-biases", None),
    ("falcon-40b-relu", None),
    ("arcee-transposed", "off"),
    ("qwen3-drelu", None),
    ("gemma3", None),
]
PREDICTED = [
    ("bamboo", "mlp"),
    ("bamboo", "oracle"),
    ("opt-powerinfer", "mlp"),
    ("falcon-powerinfer", "mlp"),
    ("falcon-40b-powerinfer", "oracle"),
    ("llama-powerinfer", "mlp"),
]
states = st.text("CAPSF", min_size=2, max_size=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def _model(folder: Path, name: str, format_name: str = "f32", kind: str | None = None) -> Model:
    return load(tiny_file(folder, name, format_name), NativeOps(1), kind)


def _same(got: list[FloatArray], expected: list[FloatArray], tolerance: str) -> None:
    assert_close(np.concatenate(got), np.concatenate(expected), tolerance)


# One recorder for all examples of the test is what is wanted.
@settings(
    max_examples=_USUAL if _USUAL > 15 else 5,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    case=st.sampled_from(PLAIN + PREDICTED),
    states=states,
    seed=st.integers(0, 99),
    format_name=st.sampled_from(["f32", "f16"]),
    has_output=st.booleans(),
)
@example(case=PREDICTED[0], states="SF", seed=1, format_name="f32", has_output=True)
@example(case=("qwen3-drelu", None), states="SF", seed=1, format_name="f32", has_output=True)
@example(case=("gemma3", None), states="FC", seed=1, format_name="f32", has_output=True)
@example(case=("nemotron-biases", None), states="SP", seed=2, format_name="f16", has_output=False)
@example(case=("falcon-powerinfer", "mlp"), states="SC", seed=3, format_name="f32", has_output=True)
def test_any_plan_gives_the_logits_of_the_cpu(
    folder: Path,
    record_property: Callable[[str, object], None],
    case: tuple[str, str | None],
    states: str,
    seed: int,
    format_name: str,
    *,
    has_output: bool,
) -> None:
    name, kind = case
    where = "output there" if has_output else "output here"
    record_property("drawn", f"{name} {kind or 'default'} {format_name} {states} {seed} {where}")
    model = _model(folder, name, format_name, kind)
    # Prompts of layers on the CPU are its own, or the device's.
    settings = replace(SMALL, stream_crossover=3 if seed % 2 else 64)
    placed = place(model, make_plan(states, seed, has_output=has_output), settings)
    _same(run(placed), run(model), "hybrid")


@needs_scipy
@few_examples
@given(
    name=st.sampled_from(["bamboo", "llama-relu", "falcon-powerinfer"]),
    solver=st.sampled_from(["latency", "paper", "greedy"]),
    share=st.floats(0, 1.1),
    seed=st.integers(0, 99),
)
@example(name="bamboo", solver="latency", share=0.7, seed=0)
@example(name="llama-relu", solver="paper", share=0.9, seed=0)
@pytest.mark.thorough
def test_plans_of_solvers_give_the_logits_of_the_cpu(
    folder: Path, name: str, solver: str, share: float, seed: int
) -> None:
    model = _model(folder, name)
    sizes = model_sizes(model, SizeAssumptions(KVType.F16, seq_len=4, batch_size=8))
    sizes = replace(sizes, overhead_bytes=0)
    shape = (len(sizes.layers), sizes.num_neurons)
    frequency = np.random.default_rng(seed).random(shape, np.float32) ** 3
    cost = CostModel(DeviceSpeed(1e9, 1e9, 0.0), DeviceSpeed(1e6, 1e6, 0.0), 0.0, 1e9)
    budget = int(share * sizes.full_bytes)
    stats = ActivationStats(frequency, "random", 1)
    plan = get_solver(solver).solve(PlacementProblem("", sizes, stats, cost, budget))
    # The GPU is faster at everything, so all goes there that fits.
    assert (sizes.placed_bytes(plan) == sizes.full_bytes) == (share >= 1)
    _same(run(place(model, plan)), run(model), "hybrid")


@few_examples
@given(
    case=st.sampled_from([*PLAIN, ("bamboo", "mlp")]),
    states=st.text("APSF", min_size=2, max_size=2),
    seed=st.integers(0, 99),
    format_name=st.sampled_from(["q8_0", "q4_0"]),
)
@example(case=("llama-relu", None), states="SP", seed=0, format_name="q4_0")
@example(case=("llama-drelu-transposed", None), states="FF", seed=0, format_name="q8_0")
def test_quantized_weights_give_the_logits_of_the_reference(
    folder: Path, case: tuple[str, str | None], states: str, seed: int, format_name: str
) -> None:
    """The CPU's share errs by quantized activations; with all on the device nothing does."""
    name, kind = case
    if format_name == "q4_0" and kind == "mlp":
        kind = "exact"
    path = tiny_file(folder, name, format_name)
    expected = run(load(path, ReferenceOps(), kind))
    model = load(path, NativeOps(1), kind)
    is_all_on_gpu = set(states) == {"F"}
    tolerance = "hybrid" if is_all_on_gpu else "native quantized"
    _same(run(place(model, make_plan(states, seed))), expected, tolerance)


# The last has both as stages, and tests/gpu/test_predict.py runs each alone.
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("lowbit:2", marks=pytest.mark.thorough),
        pytest.param("sign", marks=pytest.mark.thorough),
        "sign+lowbit:2",
    ],
)
def test_scored_kinds_give_the_logits_of_the_reference(folder: Path, kind: str) -> None:
    """On the device scores are as precise as the reference's, so the same neurons pass."""
    path = tiny_file(folder, "llama-drelu-transposed")
    expected = run(load(path, ReferenceOps(), kind))
    placed = place(load(path, NativeOps(1), kind), make_plan("SS", 5))
    _same(run(placed), expected, "hybrid")


# Without a predictor: tests/gpu/test_hybrid_experts.py, the cold neurons of a prompt.
@pytest.mark.parametrize(
    "name", ["opt-powerinfer", pytest.param("llama-relu", marks=pytest.mark.thorough)]
)
def test_cold_neurons_of_a_prompt_may_be_sent_or_left(folder: Path, name: str) -> None:
    model = _model(folder, name)
    plan = make_plan("SS", 7)
    calls: list[int] = []
    on_cpu = NativeOps.ffn_active

    def counted(self: NativeOps, *arguments: Any) -> Any:
        calls.append(len(arguments[0]))
        return on_cpu(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NativeOps, "ffn_active", counted)
        sent = run(place(model, plan))
        few = run(place(model, plan, _with(max_tokens=8)))
        assert not calls
        left = run(place(model, plan, _with(prefill_crossover=100)))
    # The prompt of four tokens, in both layers.
    assert calls == [4, 4]
    _same(left, sent, "hybrid")
    _same(few, sent, "hybrid")


def test_chunks_of_cold_neurons_add_up(folder: Path) -> None:
    """Buffers smaller than a layer: several chunks, in turn in two buffers."""
    from powerinfer.ops.gpu import formats

    for name in ("bamboo", "nemotron-biases"):
        model = _model(folder, name)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(formats, "_CHUNK_ALIGNMENT", 32 if name != "bamboo" else 8)
            placed = place(model, make_plan("SP", 8), _with(chunk_bytes=1))
            _same(run(placed), run(model), "hybrid")


def test_sequences_that_share_steps_do_not_meet(folder: Path) -> None:
    model = _model(folder, "bamboo")
    settings = _with(max_tokens=8)
    placed = place(model, make_plan("SF", 2), settings)
    together = run(placed, (0, 3))
    for place_in_batch, number in enumerate((0, 3)):
        alone = run(placed, (number,))
        rows = [step.reshape(2, -1, step.shape[-1])[place_in_batch] for step in together]
        _same(rows, alone, "hybrid")


def test_results_are_the_same_bits_every_time(folder: Path) -> None:
    model = _model(folder, "llama-relu", "f16")
    placed = place(model, make_plan("SP", 3))
    for first, second in zip(run(placed), run(placed), strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.measured
def test_firing_is_known_of_blocks_on_the_cpu(folder: Path) -> None:
    model = _model(folder, "bamboo", kind="exact")
    windows = np.random.default_rng(1).integers(3, 250, (2, 9)).astype(np.int32)
    expected: list[FiringLayer] = []
    watch_firing(model, windows, expected.append)
    placed = place(model, make_plan("CS", 1))
    seen: list[FiringLayer] = []
    with pytest.raises(UnsupportedError, match="on the CPU alone"):
        watch_firing(placed, windows, seen.append)
    assert [layer.number for layer in seen] == [0]
    np.testing.assert_array_equal(seen[0].fired, expected[0].fired)


def test_moves_change_nothing_but_rounding(folder: Path) -> None:
    model = _model(folder, "bamboo")
    online = OnlineSettings(
        mode=OnlineMode.ON, interval=2, max_moves=6, decay=0.5, margin=0.01, trial_steps=2
    )
    plan = make_plan("SS", 4)
    moving = place(model, plan, _with(online=online))
    still = place(model, plan)
    got, expected = (_long_run(model) for model in (moving, still))
    assert_close(got, expected, "hybrid")
    ops: Any = moving.ops
    assert ops.blocks.online.num_moved > 0
    for layer, placement in zip(moving.weights.layers, plan.layers, strict=True):
        block: object = layer.ffn.native
        assert isinstance(block, SplitFFN)
        table = block.slots
        assert len(table.hot) == len(placement.hot)
        np.testing.assert_array_equal(block.hot.neuron_of_slot.numpy(), table.neuron_of_slot)
        np.testing.assert_array_equal(block.hot.slot_of_neuron.numpy(), table.slot_of_neuron)
        slots = table.slot_of_neuron[table.hot]
        np.testing.assert_array_equal(table.neuron_of_slot[slots], table.hot)


@given(seed=st.integers(0, 2**32 - 1), most=st.integers(1, 9))
def test_moves_load_neurons_that_fire_more(seed: int, most: int) -> None:
    random = np.random.default_rng(seed)
    num_hot = int(random.integers(0, NEURONS))
    hot = np.sort(random.choice(NEURONS, num_hot, replace=False)).astype(np.int32)
    table = SlotTable(hot, NEURONS, min(NEURONS, num_hot + int(random.integers(0, 6))))
    scores = random.random(NEURONS).astype(np.float32)
    settings = OnlineSettings(max_moves=most)
    num_free = len(table.free)
    moves = choose_moves(table, scores, settings)
    count = len(moves.loaded)
    assert len(moves.evicted) == len(moves.slots) == count <= min(most, num_free)
    assert (scores[moves.loaded] > scores[moves.evicted] + settings.margin).all()
    assert (table.slot_of_neuron[moves.loaded] < 0).all()
    assert (table.neuron_of_slot[moves.slots] < 0).all()
    table.replace(moves)
    assert len(table.hot) == num_hot
    assert len(table.free) == num_free
    assert set(moves.loaded) <= set(table.hot)
    assert not set(moves.evicted) & set(table.hot)
    again = choose_moves(table, scores, settings)
    assert len(again.loaded) == 0 or count == min(most, num_free, num_hot, NEURONS - num_hot)


def _long_run(model: Model) -> FloatArray:
    cache = model.new_cache(64)
    steps = [
        model.forward(cache.batch([(0, [11 * position % 288], position)], [False]), cache)
        for position in range(9)
    ]
    return np.concatenate(steps)


def test_the_cpu_counts_what_the_device_does(folder: Path) -> None:
    """Neurons that ran, were predicted and there were, whatever lies where."""
    for name, kind in (("bamboo", "mlp"), ("llama-relu", "exact"), ("llama", "off")):
        model = _model(folder, name, kind=kind)
        counters = model.ops.counters
        found = []
        for tried in (model, place(model, make_plan("SF", 6))):
            before = counters.active, counters.predicted, counters.total
            run(tried)
            after = counters.active, counters.predicted, counters.total
            found.append([b - a for a, b in zip(before, after, strict=True)])
        assert found[0] == found[1], (name, kind)


def test_side_by_side_blocks_are_handed_over_before_attention(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The input of the CPU's half is complete when attention begins, and stays as it is."""
    made: list[SharedBuffers] = []
    allocate = SharedBuffers.allocate

    def kept(*arguments: Any, **sizes: Any) -> SharedBuffers:
        made.append(allocate(*arguments, **sizes))
        return made[-1]

    monkeypatch.setattr(SharedBuffers, "allocate", kept)
    model = _model(folder, "falcon-powerinfer")
    placed = place(model, make_plan("SS", 9))
    (buffers,) = made
    ops: Any = placed.ops
    attention = ops.gpu.attention
    inputs: list[FloatArray] = []

    def attend(*arguments: Any, **options: Any) -> Any:
        inputs.append(buffers.x[0].numpy().copy())
        return attention(*arguments, **options)

    monkeypatch.setattr(ops.gpu, "attention", attend)
    buffers.x.zero_()
    got, expected = (
        one.forward((cache := one.new_cache(64)).batch([(0, [5], 0)], [False]), cache)
        for one in (placed, model)
    )
    assert_close(got, expected, "hybrid")
    first, second = inputs
    assert first.any()
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(second, buffers.x[0].numpy())


def _with(**changes: Any) -> HybridSettings:
    return replace(SMALL, **changes)
