"""Hidden states: what the output head gets, on every architecture and backend."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from backends import BACKENDS, using
from native_cases import given_rows
from powerinfer.gguf import open_gguf
from powerinfer.models import Model, load_model
from powerinfer.models.blocks import scale_logits
from powerinfer.ops.backend import Activations, Backend
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.values import FloatArray
from tiny_models import TINY_MODELS, write_model
from tolerances import assert_close

TOKEN_IDS = [1, 7, 262, 9, 280, 40, 5]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("models")
    for name, recipe in TINY_MODELS.items():
        write_model(folder / f"{name}.gguf", recipe)
    return folder


def load(folder: Path, name: str, ops: Backend) -> Model:
    """With what loses nothing: rounding may turn a predictor's score from one side to the other."""
    model = load_model(open_gguf(folder / f"{name}.gguf"), ops)
    if model.sparsity in ("exact", "off"):
        return model
    return load_model(open_gguf(folder / f"{name}.gguf"), ops, sparsity="exact")


def states_of(model: Model, wanted: list[int] | None = None) -> FloatArray:
    cache = model.new_cache(64)
    rows = None if wanted is None else np.array(wanted, np.int32)
    return model.hidden_states(cache.batch([(0, TOKEN_IDS, 0)], [True]), cache, states_for=rows)


def head(model: Model, states: Activations) -> FloatArray:
    is_prompt = given_rows(len(states))
    return model.ops.to_host(model.ops.linear(states, (model.weights.output,), is_prompt)[0])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", sorted(TINY_MODELS))
def test_logits_are_the_output_head_of_the_states(folder: Path, name: str, backend: str) -> None:
    with using(backend) as ops:
        model = load(folder, name, ops)
        states = states_of(model)
        cache = model.new_cache(64)
        logits = model.forward(cache.batch([(0, TOKEN_IDS, 0)], [True]), cache)
        expected = scale_logits(model.config.scales, head(model, states))
        np.testing.assert_array_equal(logits, expected)
    assert states.shape == (len(TOKEN_IDS), TINY_MODELS[name].hidden_size)


@pytest.mark.parametrize("backend", BACKENDS[1:])
@pytest.mark.parametrize("name", sorted(TINY_MODELS))
def test_states_are_those_of_the_reference(folder: Path, name: str, backend: str) -> None:
    with using("reference") as ops:
        expected = states_of(load(folder, name, ops))
    with using(backend) as ops:
        assert_close(states_of(load(folder, name, ops)), expected, "native float")


@pytest.mark.parametrize("name", sorted(TINY_MODELS))
def test_states_of_some_tokens_are_rows_of_all(folder: Path, name: str) -> None:
    with using("reference") as ops:
        model = load(folder, name, ops)
        every = states_of(model)
        assert_close(states_of(model, [2, 6]), every[[2, 6]], "same backend, other batch")
        assert states_of(model, []).shape == (0, every.shape[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama-relu", "falcon-40b-relu", "opt"])
def test_states_are_the_same_with_a_gpu_beside_the_cpu(tmp_path: Path, name: str) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    from placed_models import load, make_plan, place, tiny_file

    model = load(tiny_file(tmp_path, name), NativeOps(1))
    placed = place(model, make_plan("SA"))
    expected = states_of(model)
    assert_close(states_of(placed), expected, "hybrid")
    # One token alone takes the way of decoding, whose steps are recorded where they can be.
    cache, cpu_cache = placed.new_cache(64), model.new_cache(64)
    for position, token_id in enumerate(TOKEN_IDS[:3]):
        got = placed.hidden_states(cache.batch([(0, [token_id], position)], [False]), cache)
        alone = model.hidden_states(
            cpu_cache.batch([(0, [token_id], position)], [False]), cpu_cache
        )
        assert_close(got, alone, "hybrid")
