"""Decode steps that are recorded and run again in one native call: with the same bits."""

import gc
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from native_cases import make_linear
from patience import PATIENCE_S
from powerinfer.gguf import open_gguf
from powerinfer.kvcache import KVCache
from powerinfer.models import Model, load_model
from powerinfer.ops.cpu.machine import machine_info
from powerinfer.ops.cpu.ops import MAX_RECORDED_TOKENS, NativeOps
from powerinfer.ops.protocol import FFNCounters, LayerProgram
from powerinfer.values import Batch, FloatArray, IntArray
from tiny_models import TINY_MODELS, wide, write_model

CONTEXT = 128
Load = Callable[..., tuple[Model, NativeOps]]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Loads a tiny model: recipe, sparsity, kernels."""

    def load(
        recipe: str = "llama",
        sparsity: str | None = None,
        kernels: str | None = None,
        format_name: str = "q8_0",
        *,
        joins: bool = False,
    ) -> tuple[Model, NativeOps]:
        path = write_model(tmp_path / "model.gguf", wide(TINY_MODELS[recipe], format_name))
        ops = NativeOps(2, kernels, joins=joins)
        model = load_model(open_gguf(path), ops, context_length=CONTEXT, sparsity=sparsity)
        return model, ops

    return load


def _step(model: Model, cache: KVCache, token_ids: list[int], position: int) -> FloatArray:
    """One generated token of each sequence."""
    parts = [(number, [token], position) for number, token in enumerate(token_ids)]
    return model.forward(cache.batch(parts, [False] * len(parts)), cache)


def _tokens(step: int, count: int) -> list[int]:
    return [(7 * step + 13 * number) % 250 + 3 for number in range(count)]


def _cache(model: Model, num_sequences: int) -> KVCache:
    return model.new_cache(num_sequences * CONTEXT, num_slots=2 * num_sequences)


def _texts(model: Model, num_sequences: int, cache: KVCache | None = None) -> list[FloatArray]:
    """Logits of steps that cross from one block of the cache into the next."""
    kept = _cache(model, num_sequences) if cache is None else cache
    return [_step(model, kept, _tokens(step, num_sequences), step) for step in range(70)]


def _never_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("powerinfer.ops.cpu.ops.MAX_RECORDED_TOKENS", 0)


@pytest.mark.each_value
@pytest.mark.parametrize("recipe", sorted(TINY_MODELS))
@pytest.mark.parametrize("num_sequences", [1, 3, MAX_RECORDED_TOKENS])
def test_recorded_steps_have_the_same_bits(
    load: Load, monkeypatch: pytest.MonkeyPatch, recipe: str, num_sequences: int
) -> None:
    model, ops = load(recipe)
    cache = _cache(model, num_sequences)
    recorded = _texts(model, num_sequences, cache)
    assert len(ops._records) == 1
    _never_recording(monkeypatch)
    for left, right in zip(recorded, _texts(model, num_sequences), strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.each_value
@pytest.mark.parametrize("kernels", machine_info().available_kernels)
@pytest.mark.parametrize("recipe", ["mixtral", "mixtral-single", "qwen3moe-relu"])
def test_experts_may_first_be_chosen_in_a_recorded_step(
    load: Load, monkeypatch: pytest.MonkeyPatch, kernels: str, recipe: str
) -> None:
    """Their matrices are repacked then."""
    recorded = _texts(load(recipe, None, kernels, "q4_0")[0], 1)
    _never_recording(monkeypatch)
    plain, ops = load(recipe, None, kernels, "q4_0")
    for left, right in zip(recorded, _texts(plain, 1), strict=True):
        np.testing.assert_array_equal(left, right)
    assert 0 < ops.counters.active <= ops.counters.predicted < ops.counters.total


@pytest.mark.each_value
@pytest.mark.parametrize("kernels", machine_info().available_kernels)
@pytest.mark.parametrize("sparsity", ["off", "exact", "mlp", "lowbit:2", "sign"])
def test_predictors_and_counts_are_those_of_the_step(
    load: Load, monkeypatch: pytest.MonkeyPatch, kernels: str, sparsity: str
) -> None:
    model, ops = load("llama-powerinfer", sparsity, kernels)
    recorded, counted = _texts(model, 2), ops.counters
    ops.counters = FFNCounters()
    _never_recording(monkeypatch)
    for left, right in zip(recorded, _texts(model, 2), strict=True):
        np.testing.assert_array_equal(left, right)
    assert counted == ops.counters
    assert counted.total > 0


def test_models_on_one_team_record_steps_of_their_own(load: Load) -> None:
    alone = _texts(load()[0], 2)
    models = [load(joins=True) for _ in range(2)]
    caches = [_cache(model, 2) for model, _ in models]
    for step, logits in enumerate(alone):
        for (model, _), cache in zip(models, caches, strict=True):
            np.testing.assert_array_equal(logits, _step(model, cache, _tokens(step, 2), step))
    assert [len(ops._records) for _, ops in models] == [1, 1]


def test_a_result_is_the_caller_s(load: Load) -> None:
    model, _ = load()
    cache = model.new_cache()
    steps = [_step(model, cache, [5 + step], step) for step in range(4)]
    again = model.new_cache()
    for step, logits in enumerate(steps):
        np.testing.assert_array_equal(logits, _step(model, again, [5 + step], step))


def test_records_go_with_their_cache(load: Load) -> None:
    model, ops = load()
    caches = [model.new_cache() for _ in range(2)]
    for cache in caches:
        _step(model, cache, [5], 0)
    assert len(ops._records) == 2
    del cache
    caches.pop()
    gc.collect()
    assert len(ops._records) == 1


def test_many_tokens_are_not_recorded(load: Load) -> None:
    model, ops = load()
    count = MAX_RECORDED_TOKENS + 1
    cache = model.new_cache(count * CONTEXT)
    for step in range(2):
        _step(model, cache, _tokens(step, count), step)
    assert len(ops._records) == 0


def test_records_of_many_tokens_make_room_for_each_other(load: Load) -> None:
    model, ops = load()
    cache = model.new_cache(MAX_RECORDED_TOKENS * CONTEXT)
    for count in (1, 2, MAX_RECORDED_TOKENS - 4):
        _step(model, cache, _tokens(0, count), 0)
    assert len(ops._records) == 3
    _step(model, cache, _tokens(1, 1), 1)
    # The record of 2 tokens was used least recently.
    _step(model, cache, _tokens(0, 3), 0)
    assert [count for _, count in ops._records._records] == [MAX_RECORDED_TOKENS - 4, 1, 3]


def test_a_step_that_fails_leaves_no_record(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ops = load()
    cache = model.new_cache()
    with monkeypatch.context() as patch:
        patch.setattr(NativeOps, "ffn", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            _step(model, cache, [5], 0)
    assert len(ops._records) == 0
    first = _step(model, cache, [5], 0)
    np.testing.assert_array_equal(first, _step(model, cache, [5], 0))


def _interrupted(*_: object, **__: object) -> FloatArray:
    raise KeyboardInterrupt


def test_a_recorded_step_checks_its_batch(load: Load) -> None:
    model, _ = load()
    cache = model.new_cache()
    wanted = [_step(model, cache, [5 + step], step) for step in range(3)]
    batch = cache.batch([(0, [9], 3)], [False])
    far = Batch(batch.token_ids, batch.positions + 1000, batch.sequences, batch.block_tables)
    with pytest.raises(IndexError):
        model.forward(far, cache)
    nowhere = Batch(
        batch.token_ids, batch.positions, batch.sequences, np.full_like(batch.block_tables, 99)
    )
    with pytest.raises(IndexError):
        model.forward(nowhere, cache)
    np.testing.assert_array_equal(_step(model, cache, [7], 2), wanted[2])


def test_what_python_decides_by_is_never_run_again(load: Load) -> None:
    """A predictor from outside may look at the numbers of a step: each step asks it."""
    _, ops = load()
    x = np.ones((1, 4), np.float32)
    seen = []

    def layers(x: FloatArray, batch: Batch, first: int, last: int) -> FloatArray:
        seen.append(ops.embed(table, batch.token_ids))
        ops.add(x, x)
        return x

    table = make_linear(ops, "f32", (8, 32), seed=1).matrix
    program = LayerProgram(1, layers, lambda x: x, key=ops)
    for step in range(3):
        batch = _one_token(step)
        np.testing.assert_array_equal(ops.step(x.copy(), batch, program), 2 * x)
    assert len(seen) == 3


def test_numbers_that_python_sees_are_never_run_again(load: Load) -> None:
    _, ops = load()

    def layers(x: FloatArray, batch: Batch, first: int, last: int) -> FloatArray:
        taken = ops.take_rows(x, np.zeros(1, np.int32))
        ops.add(x, ops.to_host(taken) * np.float32(batch.token_ids[0]))
        return x

    program = LayerProgram(1, layers, lambda x: x, key=ops)
    x = np.ones((1, 4), np.float32)
    for step in range(3):
        np.testing.assert_array_equal(ops.step(x.copy(), _one_token(step), program), (1 + step) * x)


def test_copies_of_rows_are_made_again(load: Load) -> None:
    _, ops = load()

    def layers(x: FloatArray, batch: Batch, first: int, last: int) -> FloatArray:
        before = ops.take_rows(x, np.zeros(1, np.int32))
        ops.add(x, x)
        ops.add(x, before)
        return x

    program = LayerProgram(1, layers, lambda x: x, key=ops)
    for step in range(1, 4):
        x = np.full((1, 4), step, np.float32)
        np.testing.assert_array_equal(ops.step(x.copy(), _one_token(step), program), 3 * x)
    with pytest.raises(IndexError):
        ops.take_rows(x, np.ones(1, np.int32))


def test_calls_of_other_threads_are_not_recorded(load: Load) -> None:
    _, ops = load()
    other = np.zeros((1, 4), np.float32)

    def layers(x: FloatArray, batch: Batch, first: int, last: int) -> FloatArray:
        ops.add(x, x)
        thread = threading.Thread(target=partial(ops.add, other, np.ones_like(other)))
        thread.start()
        thread.join(PATIENCE_S)
        return x

    program = LayerProgram(1, layers, lambda x: x, key=ops)
    x = np.ones((1, 4), np.float32)
    for step in range(3):
        np.testing.assert_array_equal(ops.step(x.copy(), _one_token(step), program), 2 * x)
    np.testing.assert_array_equal(other, np.ones_like(other))


def _one_token(token: int) -> Batch:
    zero: IntArray = np.zeros(1, np.int32)
    return Batch(zero + token, zero, zero, zero[None])
