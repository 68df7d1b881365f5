"""Placed models whose weights arrive beside the steps, at any time: numbers, failures, ends."""

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")
# Not imported here: how Triton runs is chosen by our own import of it.
if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from fake_uploads import FakeGPU, Machine, PatientUploader, replace_everywhere, running_machine
from placed_models import SMALL, load, make_plan, place, tiny_file
from powerinfer.errors import OutOfDeviceMemoryError
from powerinfer.kvcache import KVCache
from powerinfer.models import Model
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.gpu import formats
from powerinfer.ops.gpu.ffn import HotNeurons, add_rows, hot_ffn, masked_ffn
from powerinfer.ops.gpu.ops import TorchGPU
from powerinfer.ops.gpu.uploads import Uploader
from powerinfer.ops.hybrid.decode import SplitFFN
from powerinfer.ops.hybrid.migration import OnlineMode, OnlineSettings
from powerinfer.ops.hybrid.upload import Uploads
from powerinfer.values import FloatArray
from tolerances import assert_close

MOVING = replace(
    SMALL,
    chunk_bytes=1,
    online=OnlineSettings(mode=OnlineMode.ON, interval=1, max_moves=6, decay=0.5, margin=0.01),
)
PROMPT = (5, 17, 250, 33)


@pytest.fixture(scope="module")
def cpu_model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(tiny_file(tmp_path_factory.mktemp("models"), "bamboo"), NativeOps(1))


# Another seed orders the same work otherwise.
@pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.thorough)], ids="seed {}".format)
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """A device with late uploads, on which slots are watched."""
    # Several chunks for a layer of few neurons.
    monkeypatch.setattr(formats, "_CHUNK_ALIGNMENT", 16)
    with running_machine(monkeypatch, request.param) as made:
        replace_everywhere(monkeypatch, TorchGPU, FakeGPU)
        replace_everywhere(monkeypatch, Uploader, PatientUploader)
        _watch_slots(monkeypatch, made)
        yield made


def _watch_slots(patch: pytest.MonkeyPatch, machine: Machine) -> None:
    write = Uploads.neurons
    kept: list[HotNeurons] = []

    def names(hot: HotNeurons, slots: Sequence[int]) -> list[tuple[int, int]]:
        kept.append(hot)
        # The chunks of all layers lie in the same memory.
        return [(hot.up.values.data_ptr(), int(slot)) for slot in slots]

    def watched_write(self: Uploads, ffn: Any, hot: HotNeurons, ids: Any, slots: Any) -> None:
        machine.write(*names(hot, slots))
        write(self, ffn, hot, ids, slots)
        machine.write(*names(hot, slots))

    def watched_few(x: Any, hot: HotNeurons, *arguments: Any, **options: Any) -> Any:
        machine.read(*names(hot, np.flatnonzero(hot.neuron_of_slot.numpy() >= 0).tolist()))
        return hot_ffn(x, hot, *arguments, **options)

    def watched_many(x: Any, hot: HotNeurons, *arguments: Any, **options: Any) -> Any:
        machine.read(*names(hot, np.flatnonzero(hot.neuron_of_slot.numpy() >= 0).tolist()))
        return masked_ffn(x, hot, *arguments, **options)

    rows, linear = Uploads.rows, FakeGPU.linear

    def watched_rows(self: Uploads, matrix: Any, ids: Any, target: Any, slots: Any) -> None:
        machine.write(target.values.data_ptr())
        rows(self, matrix, ids, target, slots)
        machine.write(target.values.data_ptr())

    def watched_products(self: FakeGPU, x: Any, layers: Any) -> Any:
        machine.read(*(layer.matrix.values.data_ptr() for layer in layers))
        return linear(self, x, layers)

    def watched_add(y: Any, values: Any, down: Any) -> None:
        machine.read(down.values.data_ptr())
        add_rows(y, values, down)

    patch.setattr(Uploads, "rows", watched_rows)
    patch.setattr(FakeGPU, "linear", watched_products)
    patch.setattr(Uploads, "neurons", watched_write)
    replace_everywhere(patch, add_rows, watched_add)
    replace_everywhere(patch, hot_ffn, watched_few)
    replace_everywhere(patch, masked_ffn, watched_many)


def _step(model: Model, cache: KVCache, ids: Sequence[int], position: int) -> FloatArray:
    return model.forward(
        cache.batch([(0, np.array(ids, np.int32), position)], [len(ids) > 1]), cache
    )


def _text(model: Model, machine: Machine | None = None, num_tokens: int = 10) -> list[FloatArray]:
    """A prompt, some tokens, a prompt again, some tokens: logits of every step."""
    cache, position, logits = model.new_cache(64), 0, []
    for ids in (PROMPT, *([11 * n % 288] for n in range(num_tokens)), PROMPT, [7], [9]):
        logits.append(_step(model, cache, ids, position))
        position += len(ids)
        if machine is not None:
            machine.step()
            _check_tables(model)
    return logits


def _check_tables(model: Model) -> None:
    for layer in model.weights.layers:
        block: Any = layer.ffn.native
        if not isinstance(block, SplitFFN):
            continue
        hot, table = block.hot, block.slots
        np.testing.assert_array_equal(hot.neuron_of_slot.numpy(), table.neuron_of_slot)
        np.testing.assert_array_equal(hot.slot_of_neuron.numpy(), table.slot_of_neuron)


def _online(model: Model) -> Any:
    ops: Any = model.ops
    return ops.blocks.online


@pytest.mark.thorough
def test_neurons_move_between_prompts_and_steps(machine: Machine, cpu_model: Model) -> None:
    placed = place(cpu_model, make_plan("SS", 4), MOVING)
    assert isinstance(placed.ops.gpu, FakeGPU)  # type: ignore[attr-defined]
    got, expected = _text(placed, machine), _text(cpu_model)
    for one, other in zip(got, expected, strict=True):
        assert_close(one, other, "hybrid")
    assert _online(placed).num_moved > 0
    assert _online(placed).is_moving
    # Rounds, and chunks of two layers in two prompts.
    assert machine.num_pieces > 2 * 2 * 2
    # What may be written beside the steps is nobody else's until it has been, closed model or not.
    block: Any = placed.weights.layers[0].ffn.native
    uploader: Any = placed.ops.blocks._placed.uploaders[0]  # type: ignore[attr-defined]
    assert block.hot.up.values.untyped_storage().data_ptr() in uploader._stream.kept


@pytest.mark.slow
@pytest.mark.parametrize("states", ("SP", "CC"))
def test_late_chunks_of_prompts_change_no_bit(
    machine: Machine, cpu_model: Model, states: str
) -> None:
    still = replace(MOVING, online=SMALL.online, stream_crossover=len(PROMPT))
    plan = make_plan(states, 8)
    late = _text(place(cpu_model, plan, still), machine, num_tokens=0)
    assert machine.num_pieces > 8
    with pytest.MonkeyPatch.context() as patch:
        replace_everywhere(patch, PatientUploader, Uploader)
        at_once = _text(place(cpu_model, plan, still), num_tokens=0)
    for one, other in zip(late, at_once, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.measured
def test_a_chunk_that_fails_fails_its_prompt_alone(machine: Machine, cpu_model: Model) -> None:
    placed = place(cpu_model, make_plan("SS", 4), MOVING)
    cache = placed.new_cache(64)
    write, calls = Uploads.neurons, 0

    def failing(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise OutOfDeviceMemoryError("full")
        write(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Uploads, "neurons", failing)
        with pytest.raises(OutOfDeviceMemoryError, match="full"):
            _step(placed, cache, PROMPT, 0)
    got, expected = _text(placed, machine, 2), _text(cpu_model, None, 2)
    assert_close(np.concatenate(got), np.concatenate(expected), "hybrid")


def test_a_model_released_within_a_round_leaves_nothing_under_way(
    machine: Machine, cpu_model: Model
) -> None:
    placed = place(cpu_model, make_plan("SS", 4), MOVING)
    ops: Any = placed.ops
    cache = placed.new_cache(64)
    machine.most_late = 0
    _step(placed, cache, [11], 0)
    # Scores are there; the work that they are for begins in some hundred thousand steps.
    machine.most_late = 1 << 20
    _step(placed, cache, [22], 1)
    assert _online(placed)._round is not None
    assert not machine.num_pieces
    ops.release()
    finished = machine.num_pieces
    machine.num_steps = 1 << 30
    machine.step()
    assert machine.num_pieces == finished
