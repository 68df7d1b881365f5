"""Prompts of layers on the CPU, which the GPU computes with weights that are sent to it."""

import logging
from collections.abc import Callable
from copy import copy
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from torch_device import skip_module_without

skip_module_without("torch", "triton")

import torch

from placed_models import SMALL, load, make_plan, place, tiny_file
from powerinfer.errors import NumericsError, OutOfDeviceMemoryError
from powerinfer.models import Model
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.gpu.uploads import Upload
from powerinfer.ops.hybrid.streamed import StreamedWeights
from powerinfer.ops.hybrid.upload import Uploads
from powerinfer.ops.protocol import FFNCounters, KVType
from powerinfer.values import FloatArray
from tiny_models import TINY_MODELS, write_model
from tolerances import assert_close

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STREAMED = replace(SMALL, stream_crossover=4)
BEYOND_F16 = "a weight is beyond the largest f16, which the GPU would get"
PROMPT = np.arange(9, dtype=np.int32)
MODELS = (
    ("llama", None, "q8_0"),
    ("bamboo", "mlp", "f16"),
    *(
        pytest.param(*case, marks=pytest.mark.thorough)
        for case in (
            ("llama-drelu-transposed", None, "f16"),
            ("falcon-40b-relu", None, "f16"),
            ("falcon-powerinfer", "mlp", "f16"),
            ("gemma3", None, "f16"),
            ("qwen2-drelu", None, "f16"),
            ("opt", None, "f32"),
            ("bamboo", "oracle", "f16"),
        )
    ),
)


@pytest.fixture
def loaded(tmp_path: Path) -> Callable[..., Model]:
    def make(name: str = "llama", kind: str | None = None, format_name: str = "f16") -> Model:
        return load(tiny_file(tmp_path, name, format_name), NativeOps(2), kind)

    return make


def placed_on(model: Model, states: str = "CC") -> Model:
    plan = make_plan(states, has_output=False, num_neurons=model.config.num_neurons)
    return place(model, plan, STREAMED, DEVICE)


def text(model: Model, length: int = 20, kv_type: KVType = KVType.F16) -> FloatArray:
    """Logits of two prompts in a step, of the rest of the first, and of a token after each."""
    cache = model.new_cache(256, kv_type=kv_type)
    first = np.arange(length, dtype=np.int32)
    steps: list[tuple[list[Any], bool]] = [
        ([(0, first, 0), (1, PROMPT, 0)], True),
        ([(0, PROMPT, length)], True),
        ([(0, PROMPT[:1], length + 9), (1, PROMPT[:1], 9)], False),
    ]
    logits = []
    for parts, is_prompt in steps:
        logits.append(model.forward(cache.batch(parts, [is_prompt] * len(parts)), cache))
    return np.concatenate(logits)


@pytest.mark.parametrize(("name", "kind", "format_name"), MODELS)
def test_logits_are_those_of_the_cpu(
    loaded: Callable[..., Model], name: str, kind: str | None, format_name: str
) -> None:
    model = loaded(name, kind, format_name)
    placed = placed_on(model)
    with mock.patch.object(
        StreamedWeights, "linear", autospec=True, side_effect=StreamedWeights.linear
    ) as streamed:
        # More than a block of keys.
        got = text(placed, 70)
    # Two products of attention in each of two layers and two steps.
    assert streamed.call_count == 8
    assert_close(got, text(model, 70), "hybrid")


@pytest.mark.parametrize(
    ("name", "kind", "states", "num_streamed"),
    [
        # Without a predictor no block is handed over; this file's down is not stored by neurons.
        ("llama", None, "AS", 2),
        ("llama", None, "FS", 1),
        ("bamboo", "mlp", "AF", 1),
        ("bamboo", "mlp", "SP", 0),
    ],
)
def test_blocks_of_layers_on_the_gpu(
    loaded: Callable[..., Model], name: str, kind: str | None, states: str, num_streamed: int
) -> None:
    """Their matrices are sent if the CPU has the block, or cannot send neurons alone."""
    model = loaded(name, kind)
    with mock.patch.object(
        StreamedWeights, "handed", autospec=True, side_effect=StreamedWeights.handed
    ) as handed:
        got = text(placed_on(model, states))
    # Two steps of prompts.
    assert handed.call_count == 2 * num_streamed
    assert_close(got, text(model), "hybrid")


def test_keys_of_eight_bits_are_those_of_the_cpu(tmp_path: Path) -> None:
    recipe = replace(TINY_MODELS["llama"], head_dim=32, num_heads=2, num_kv_heads=1)
    model = load(write_model(tmp_path / "wide.gguf", recipe), NativeOps(2))
    got, expected = (text(one, kv_type=KVType.Q8_0) for one in (placed_on(model), model))
    assert_close(got, expected, "hybrid")


def test_bits_are_the_same_again_and_after_any_other_order(loaded: Callable[..., Model]) -> None:
    """Chunks are sent early by the order of the last prompt."""
    placed = placed_on(loaded(), "CF")
    ops: Any = placed.ops
    first = text(placed)
    streamed = ops.blocks.streamed(4)
    matrices = list(streamed._followers)
    assert len(matrices) > 2
    streamed._followers = dict(zip(matrices, matrices[::-1], strict=True))
    np.testing.assert_array_equal(text(placed), first)
    np.testing.assert_array_equal(text(placed), first)


@pytest.mark.parametrize(
    ("states", "error", "cause"),
    [
        ("CC", OutOfDeviceMemoryError("no room for a chunk"), "no room for a chunk"),
        ("AA", OutOfDeviceMemoryError("no room for a chunk"), "no room for a chunk"),
        ("CC", NumericsError("a number; keep it in f32"), BEYOND_F16),
    ],
)
def test_the_cpu_goes_on_if_a_chunk_cannot_be_sent(
    loaded: Callable[..., Model],
    caplog: pytest.LogCaptureFixture,
    states: str,
    error: Exception,
    cause: str,
) -> None:
    model = loaded()
    placed, calls = placed_on(model, states), 0
    rows = Uploads.rows

    def failing(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 6:
            raise error
        rows(*arguments)

    with mock.patch.object(Uploads, "rows", failing):
        got = text(placed)
    if states == "CC":
        assert calls == 6
        np.testing.assert_array_equal(got, text(model))
    assert_close(got, text(model), "hybrid")
    assert [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING] == [
        f"the CPU computes prompts of its layers, which is slower: {cause}"
    ]


@pytest.mark.parametrize("states", ["CC", pytest.param("AA", marks=pytest.mark.thorough)])
def test_memory_that_runs_out_on_trial_is_an_error(
    loaded: Callable[..., Model], caplog: pytest.LogCaptureFixture, states: str
) -> None:
    """A smaller plan is made then; the CPU does not take over for good."""
    placed = placed_on(loaded(), states)
    ops: Any = placed.ops
    failing = mock.patch.object(Uploads, "rows", side_effect=OutOfDeviceMemoryError("no room"))
    with failing, ops.trial(), pytest.raises(OutOfDeviceMemoryError, match="no room"):
        text(placed)
    assert not caplog.records
    assert ops.blocks.streamed(4) is not None
    np.testing.assert_array_equal(text(placed), text(placed_on(loaded(), states)))


@pytest.mark.parametrize("states", ["CC", pytest.param("AA", marks=pytest.mark.thorough)])
def test_a_step_after_ctrl_c_is_right(loaded: Callable[..., Model], states: str) -> None:
    model = loaded()
    placed = placed_on(model, states)
    expected = text(placed)
    join, calls = Upload.join, 0

    def interrupted(upload: Upload) -> None:
        nonlocal calls
        calls += 1
        if calls == 6:
            raise KeyboardInterrupt
        join(upload)

    with mock.patch.object(Upload, "join", interrupted), pytest.raises(KeyboardInterrupt):
        text(placed)
    np.testing.assert_array_equal(text(placed), expected)


def counted(model: Model) -> FFNCounters:
    """Counts of a text."""
    before = copy(model.ops.counters)
    text(model)
    now = model.ops.counters
    numbers = {one.name: getattr(now, one.name) - getattr(before, one.name) for one in fields(now)}
    return FFNCounters(**numbers)


@pytest.mark.parametrize(("name", "kind"), [("llama-relu", None), ("bamboo", "mlp")])
def test_counts_are_those_of_the_cpu(
    loaded: Callable[..., Model], name: str, kind: str | None
) -> None:
    model = loaded(name, kind, "f32")
    expected, got = counted(model), counted(placed_on(model))
    assert got.total == expected.total
    assert got.predictor_bytes == expected.predictor_bytes
    np.testing.assert_allclose(got.active, expected.active, rtol=0.01)
    np.testing.assert_allclose(got.predicted, expected.predicted, rtol=0.01)
    # Rows that no token needs are sent too.
    np.testing.assert_allclose(got.bytes_read, expected.bytes_read, rtol=0.1)


def test_layers_that_are_repeated_count_once(loaded: Callable[..., Model]) -> None:
    model = loaded("bamboo", "mlp")
    placed, rows, calls = placed_on(model), Uploads.rows, 0

    def failing(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        # In the second layer.
        if calls == 14:
            raise OutOfDeviceMemoryError("no room")
        rows(*arguments)

    with mock.patch.object(Uploads, "rows", failing):
        assert counted(placed) == counted(model)


def test_few_tokens_and_mixtures_of_experts_stay_on_the_cpu(
    loaded: Callable[..., Model],
) -> None:
    for name, length in (("llama", 3), ("mixtral", 9)):
        model = loaded(name)
        placed = placed_on(model)
        logits = []
        for tried in (model, placed):
            cache = tried.new_cache(64)
            logits.append(tried.forward(cache.batch([(0, PROMPT[:length], 0)], [True]), cache))
        np.testing.assert_array_equal(logits[0], logits[1])
