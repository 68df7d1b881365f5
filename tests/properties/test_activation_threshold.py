"""Thresholds on silu and gelu: one function in prompts, decoding, batches and experts."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends import BACKENDS, NATIVE, using
from powerinfer.gguf import GGUFFile, open_gguf
from powerinfer.models import Model, load_model
from powerinfer.models.sparsity import with_thresholds
from powerinfer.ops.backend import Backend, as_backend
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.reference.ffn import activate
from powerinfer.values import FloatArray
from tiny_models import TINY_MODELS, TinyModel, write_model
from tolerances import assert_close

# Gated and not, silu and gelu, down by columns and by rows, experts merged, single and shared.
MODELS: dict[str, TinyModel] = {
    **{name: TINY_MODELS[name] for name in ("llama", "falcon", "gemma3", "qwen3moe")},
    **{name: TINY_MODELS[name] for name in ("granitemoe-shared", "mixtral-single")},
    "llama-rows": replace(TINY_MODELS["llama"], is_down_transposed=True),
    "falcon-rows": replace(TINY_MODELS["falcon"], is_down_transposed=True),
    "qwen3moe-rows": replace(TINY_MODELS["qwen3moe"], is_down_transposed=True),
}
LAYERS = 2
Files = Callable[[str], GGUFFile]

backends = pytest.mark.parametrize("backend", BACKENDS)
kinds = pytest.mark.parametrize("is_prompt", [True, False], ids=["prompt", "decode"])
few_examples = settings(max_examples=max(5, settings().max_examples // 3))
names = st.sampled_from(sorted(MODELS))
tokens = st.lists(st.integers(0, 287), min_size=2, max_size=70)
thresholds = st.tuples(*[st.sampled_from([0.0, 1e-4, 0.02, 0.1, 0.25, 1.0])] * LAYERS)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder: Path = tmp_path_factory.mktemp("models")
    return cache(lambda name: open_gguf(write_model(folder / f"{name}.gguf", MODELS[name])))


def load(file: GGUFFile, ops: Backend, limits: tuple[float, ...]) -> Model:
    return with_thresholds(load_model(file, ops), limits, name="threshold")


def run(model: Model, token_ids: list[int], *, is_prompt: bool) -> FloatArray:
    kv = model.new_cache(128)
    return model.forward(kv.batch([(0, token_ids, 0)], [is_prompt]), kv)


def between_values(model: Model, x: FloatArray, share: float) -> float:
    """A threshold that about this share of the values is below, and none is close to.

    Where one is, rounding may turn it from one side to the other.
    """
    ffn = model.weights.layers[0].ffn
    decider = ffn.up if ffn.gate is None else ffn.gate
    (products,) = model.ops.linear(x, (decider,))
    wide = model.ops.to_host(products).astype(np.float64)
    values = np.sort(np.abs(activate(ffn.activation, None, wide)), axis=None)
    start = int(share * (len(values) - 40))
    near = values[start : start + 40]
    place = int(np.argmax(np.diff(near)))
    return float(near[place : place + 2].mean())


@pytest.mark.parametrize("backend", NATIVE)
@kinds
@few_examples
@given(name=names, share=st.floats(0, 1), count=st.integers(1, 40), seed=st.integers(0, 99))
def test_kernels_compute_what_the_reference_does(
    backend: str, files: Files, name: str, share: float, count: int, seed: int, *, is_prompt: bool
) -> None:
    x = np.random.default_rng(seed).normal(size=(count, 32)).astype(np.float32)
    marks = np.full(count, is_prompt)
    outputs, actives = [], []
    with using("reference") as ops:
        limits = (between_values(load_model(files(name), ops), x, share),) * LAYERS
    for each in ("reference", backend):
        with using(each) as ops:
            ffn = load(files(name), ops, limits).weights.layers[0].ffn
            outputs.append(ops.to_host(ops.ffn(x, ffn, None, marks)))
            actives.append(ops.counters.active)
    assert_close(outputs[1], outputs[0], "native float")
    assert actives[0] == actives[1]


@kinds
@few_examples
@given(name=names, token_ids=tokens, limits=thresholds, data=st.data())
def test_no_bit_depends_on_threads_or_on_how_a_text_is_cut(
    files: Files,
    name: str,
    token_ids: list[int],
    limits: tuple[float, ...],
    data: st.DataObject,
    *,
    is_prompt: bool,
) -> None:
    cut = data.draw(st.integers(1, len(token_ids) - 1))
    one, more = (load(files(name), as_backend(NativeOps(n)), limits) for n in (1, 3))
    expected = run(one, token_ids, is_prompt=is_prompt)
    kv = more.new_cache(256)
    other = [9, 8, 7]
    batch = kv.batch([(0, token_ids[:cut], 0), (1, other, 0)], [is_prompt, True])
    first = more.forward(batch, kv)[:cut]
    batch = kv.batch([(1, [5], 3), (0, token_ids[cut:], cut)], [False, is_prompt])
    parts = [first, more.forward(batch, kv)[1:]]
    np.testing.assert_array_equal(np.concatenate(parts), expected)


@backends
@kinds
@few_examples
@given(name=names, token_ids=tokens)
def test_a_threshold_that_skips_nothing_gives_the_dense_result(
    backend: str, files: Files, name: str, token_ids: list[int], *, is_prompt: bool
) -> None:
    """0 to the bit, because nothing changes; above it sums have another order."""
    with using(backend) as ops:
        dense = run(load_model(files(name), ops), token_ids, is_prompt=is_prompt)
        none = run(load(files(name), ops, (0.0,) * LAYERS), token_ids, is_prompt=is_prompt)
        tiny = run(load(files(name), ops, (1e-30,) * LAYERS), token_ids, is_prompt=is_prompt)
    np.testing.assert_array_equal(none, dense)
    assert_close(tiny, dense, "exact sparse")


@backends
def test_rows_of_silent_neurons_are_not_read(backend: str, files: Files) -> None:
    """Of experts too: the gate whole, up and down of the neurons that are kept."""
    for name in ("llama-rows", "qwen3moe-rows"):
        recipe = MODELS[name]
        with using(backend) as ops:
            model = load(files(name), ops, (0.2,) * LAYERS)
            run(model, [5], is_prompt=False)
            counters, row = ops.counters, 4 * recipe.hidden_size
            neurons = LAYERS * recipe.intermediate_size * (2 if recipe.num_experts else 1)
            routers = LAYERS * recipe.num_experts
            assert 0 < counters.active < 0.8 * neurons
            assert counters.bytes_read == row * (routers + neurons + 2 * counters.active)
            assert model.layer_kinds == ("threshold",) * LAYERS
