"""What must not matter: how tokens are cut into steps, who shares a step, skipping, the backend."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends import BACKENDS, using
from expert_choices import ChoiceObserver, num_agreeing
from powerinfer.gguf import GGUFFile, open_gguf
from powerinfer.kvcache import KVCache
from powerinfer.models import Model, get_architecture, load_model
from powerinfer.ops.backend import Backend, as_backend
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.protocol import KVType
from powerinfer.values import FloatArray
from tiny_models import TINY_MODELS, wide, write_model
from tolerances import assert_close

Files = Callable[[str, str], GGUFFile]

# Short rows, two layers: enough to reach every tail and block border, and still quick.
OTHER_BATCH = "same backend, other batch"
SPARSE = [
    name
    for name, model in TINY_MODELS.items()
    # PowerInfer's container, or the architecture, say that the model is sparse without a key.
    if model.activation not in (None, "silu")
    or model.magic == "PWRI"
    or get_architecture(model.architecture).activation.is_sparse
]

backends = pytest.mark.parametrize("backend", BACKENDS)
# Prompts have other kernels than decoding.
kinds = pytest.mark.parametrize("is_prompt", [True, False], ids=["prompt", "decode"])
# An example runs two models, and each test runs on every kernel table: a share of the profile's.
few_examples = settings(max_examples=max(5, settings().max_examples // 3))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Opens tiny models: recipe name, tensor type (wide sizes for anything but f32)."""
    folder: Path = tmp_path_factory.mktemp("models")

    @cache
    def open_model(name: str, format_name: str) -> GGUFFile:
        model = TINY_MODELS[name]
        model = model if format_name == "f32" else wide(model, format_name)
        # Long enough for several KV blocks of 64.
        model = replace(model, context_length=256)
        return open_gguf(write_model(folder / f"{name}-{format_name}.gguf", model))

    return open_model


def load(file: GGUFFile, ops: Backend) -> Model:
    """With what loses nothing: rounding may turn a predictor's score from one side to the other."""
    model = load_model(file, ops)
    return model if model.sparsity in ("exact", "off") else load_model(file, ops, sparsity="exact")


def run(
    model: Model,
    kv: KVCache,
    sequence: int,
    token_ids: list[int],
    start: int,
    *,
    is_prompt: bool,
) -> FloatArray:
    return model.forward(kv.batch([(sequence, token_ids, start)], [is_prompt]), kv)


def whole(
    model: Model, token_ids: list[int], kv_type: KVType = KVType.F16, *, is_prompt: bool
) -> FloatArray:
    """Logits of every position in one step."""
    return run(model, model.new_cache(256, kv_type), 0, token_ids, 0, is_prompt=is_prompt)


def tokens(min_size: int, max_size: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, 287), min_size=min_size, max_size=max_size)


@backends
@kinds
@few_examples
@given(data=st.data(), name=st.sampled_from(sorted(TINY_MODELS)), token_ids=tokens(2, 140))
def test_any_cut_into_steps_gives_the_same_logits(
    backend: str,
    files: Files,
    data: st.DataObject,
    name: str,
    token_ids: list[int],
    *,
    is_prompt: bool,
) -> None:
    """In particular prefill(n) then prefill(m) equals prefill(n + m)."""
    cuts = data.draw(st.sets(st.integers(1, len(token_ids) - 1), min_size=1, max_size=4))
    borders = [0, *sorted(cuts), len(token_ids)]
    with using(backend) as ops:
        model = load(files(name, "f32"), ops)
        expected = whole(model, token_ids, is_prompt=is_prompt)
        kv = model.new_cache(256)
        parts = [
            run(model, kv, 0, token_ids[start:end], start, is_prompt=is_prompt)
            for start, end in pairwise(borders)
        ]
    kv.check_integrity()
    assert_close(np.concatenate(parts), expected, OTHER_BATCH)


@backends
@few_examples
@given(
    name=st.sampled_from(sorted(TINY_MODELS)),
    prompts=st.lists(tokens(1, 70), min_size=2, max_size=4),
)
def test_sequences_that_share_steps_do_not_meet(
    backend: str, files: Files, name: str, prompts: list[list[int]]
) -> None:
    """A prefill of all, then a step in which each decodes its next token."""
    with using(backend) as ops:
        model = load(files(name, "f32"), ops)
        kv = model.new_cache(5 * 128, num_slots=2 * len(prompts))
        first = model.forward(
            kv.batch([(i, ids, 0) for i, ids in enumerate(prompts)], [True] * len(prompts)), kv
        )
        second = model.forward(
            kv.batch([(i, [7], len(ids)) for i, ids in enumerate(prompts)], [False] * len(prompts)),
            kv,
        )
        start = 0
        for number, ids in enumerate(prompts):
            own = model.new_cache(128)
            alone = [
                run(model, own, 0, ids, 0, is_prompt=True),
                run(model, own, 0, [7], len(ids), is_prompt=False),
            ]
            together = np.concatenate(
                [first[start : start + len(ids)], second[number : number + 1]]
            )
            assert_close(together, np.concatenate(alone), OTHER_BATCH)
            start += len(ids)


@backends
@kinds
@few_examples
@given(name=st.sampled_from(SPARSE), token_ids=tokens(1, 12))
def test_exact_sparsity_equals_dense(
    backend: str, files: Files, name: str, token_ids: list[int], *, is_prompt: bool
) -> None:
    with using(backend) as ops:
        file = files(name, "f32")
        exact, dense = (load_model(file, ops, sparsity=kind) for kind in ("exact", "off"))
        got, expected = (whole(model, token_ids, is_prompt=is_prompt) for model in (exact, dense))
        assert_close(got, expected, "exact sparse")


@backends
@kinds
@few_examples
@given(name=st.sampled_from(["llama", "qwen2"]), token_ids=tokens(1, 70))
def test_q8_0_cache_is_close_to_f16(
    backend: str, files: Files, name: str, token_ids: list[int], *, is_prompt: bool
) -> None:
    with using(backend) as ops:
        model = load(files(name, "f16"), ops)
        got, expected = (
            whole(model, token_ids, kind, is_prompt=is_prompt) for kind in (KVType.Q8_0, KVType.F16)
        )
    assert_close(got, expected, "kv q8_0")


@backends
@kinds
@few_examples
@given(data=st.data(), name=st.sampled_from(sorted(TINY_MODELS)), token_ids=tokens(1, 70))
def test_logits_of_some_tokens_are_rows_of_all(
    backend: str,
    files: Files,
    data: st.DataObject,
    name: str,
    token_ids: list[int],
    *,
    is_prompt: bool,
) -> None:
    chosen = data.draw(st.sets(st.integers(0, len(token_ids) - 1)))
    rows = np.array(sorted(chosen), np.int32)
    with using(backend) as ops:
        model = load(files(name, "f32"), ops)
        kv = model.new_cache(128)
        got = model.forward(kv.batch([(0, token_ids, 0)], [is_prompt]), kv, logits_for=rows)
        expected = whole(model, token_ids, is_prompt=is_prompt)[rows]
    assert got.shape == (len(rows), 288)
    assert_close(got, expected, OTHER_BATCH)


@pytest.mark.parametrize("backend", BACKENDS[1:])
@kinds
@few_examples
@given(
    name=st.sampled_from(sorted(TINY_MODELS)),
    token_ids=tokens(1, 40),
    format_name=st.sampled_from(
        ["f32", "f16", "q8_0", "q4_0", "q4_1", "q5_0", "q4_k", "q6_k", "mxfp4"]
    ),
)
def test_native_equals_reference(
    backend: str,
    files: Files,
    name: str,
    token_ids: list[int],
    format_name: str,
    *,
    is_prompt: bool,
) -> None:
    results, choices = [], []
    for each in ("reference", backend):
        with using(each) as ops:
            model = load(files(name, format_name), ops)
            choices.append(ChoiceObserver(model, np.full(len(token_ids), is_prompt)))
            kv = model.new_cache(256)
            batch = kv.batch([(0, token_ids, 0)], [is_prompt])
            results.append(model.forward(batch, kv, observe=choices[-1]))
    agreeing = num_agreeing(choices[0], choices[1], len(token_ids))
    expected, got = (logits[:agreeing] for logits in results)
    tolerance = "native float" if format_name in ("f32", "f16") else "native quantized"
    assert_close(got, expected, tolerance)


@kinds
@few_examples
@given(
    name=st.sampled_from(sorted(TINY_MODELS)),
    token_ids=tokens(1, 40),
    format_name=st.sampled_from(["f32", "q8_0", "q4_0", "q4_k"]),
    threads=st.sampled_from([2, 3, 5]),
)
def test_threads_do_not_change_a_bit(
    files: Files,
    name: str,
    token_ids: list[int],
    format_name: str,
    threads: int,
    *,
    is_prompt: bool,
) -> None:
    file = files(name, format_name)
    one, more = (load(file, as_backend(NativeOps(number))) for number in (1, threads))
    got, expected = (whole(model, token_ids, is_prompt=is_prompt) for model in (more, one))
    np.testing.assert_array_equal(got, expected)
    for model in (one, more):
        assert (model.ops.counters.total > 0) == TINY_MODELS[name].has_ffns
    assert one.ops.counters == more.ops.counters


@backends
@pytest.mark.parametrize("name", SPARSE)
def test_exact_sparsity_reads_and_counts_less(name: str, backend: str, files: Files) -> None:
    """One token: the gate whole, rows of up and of a transposed down for active neurons only."""
    with using(backend) as ops:
        model = load_model(files(name, "f32"), ops, sparsity="exact")
        whole(model, [5], is_prompt=False)
        counters, recipe = ops.counters, TINY_MODELS[name]
        row = 4 * recipe.hidden_size
        num_ffns = sum(map(recipe.has_ffn, range(recipe.num_layers)))
        neurons, shared = num_ffns * recipe.intermediate_size, num_ffns * recipe.shared_size
        assert counters.total == neurons * max(1, recipe.num_experts) + shared
        # Of experts the gates of the chosen ones, and the routers.
        routers = num_ffns * recipe.num_experts
        neurons *= recipe.num_used_experts if recipe.num_experts else 1
        neurons += shared
        assert 0 < counters.active < 0.8 * neurons
        # Without a gate, and with neurons as columns of down, there are no rows to leave out.
        assert (counters.bytes_read < model.used_ffn_bytes) == (
            recipe.is_gated or recipe.is_down_transposed
        )
        down = counters.active if recipe.is_down_transposed else neurons
        up = counters.active if recipe.is_gated else 0
        if model.config.activation.kind != "drelu" and not recipe.latent_size:
            assert counters.bytes_read == row * (routers + neurons + up + down)
