"""Embedding and norms against the reference, and what the bindings refuse."""

import numpy as np
import pytest

from native_cases import (
    FORMATS,
    THREADS,
    both,
    numbers,
    same_bits,
    tensor,
    use_kernels,
    vector_tensor,
)
from powerinfer import _core
from powerinfer.errors import DeviceError, ShapeError
from powerinfer.ops.cpu.machine import machine_info, product_names
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.protocol import MatrixUse
from powerinfer.quant import get_format
from tolerances import assert_close


@pytest.mark.parametrize("format_name", FORMATS)
def test_embeds_rows_exactly(kernels: str, format_name: str) -> None:
    ops = use_kernels(kernels)
    source = tensor(format_name, (9, 512), 1)
    ids = np.array([8, 0, 8, 3], np.int32)
    got = ops.embed(ops.matrix(source, MatrixUse.EMBEDDING), ids)
    exact = get_format(format_name).decode(source.data).reshape(9, 512)[ids]
    # Decoding is a product and at most one sum; a fused multiply-add rounds once instead of twice.
    np.testing.assert_allclose(got, exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("columns", [1, 7, 64, 1000, 4096])
@pytest.mark.parametrize("num_tokens", [1, 33])
def test_norms_agree_with_the_reference(kernels: str, columns: int, num_tokens: int) -> None:
    backends = both(kernels)
    x = numbers((num_tokens, columns), 1) + np.float32(0.5)
    weight, bias = (vector_tensor(numbers((columns,), seed)) for seed in (2, 3))
    rms = [ops.rms_norm(x, ops.vector(weight), 1e-5) for ops in backends]
    assert_close(rms[0], rms[1], "one operation, float")
    for use_bias in (True, False):
        layer = [
            ops.layer_norm(x, ops.vector(weight), ops.vector(bias) if use_bias else None, 1e-5)
            for ops in backends
        ]
        assert_close(layer[0], layer[1], "one operation, float")


def test_bits_do_not_depend_on_threads(kernels: str) -> None:
    x, weight = numbers((37, 1000), 1), vector_tensor(numbers((1000,), 2))
    results = []
    for threads in THREADS:
        ops = use_kernels(kernels, threads)
        results.append(ops.rms_norm(x, ops.vector(weight), 1e-6))
    assert all(same_bits(result, results[0]) for result in results)


def test_add_is_in_place() -> None:
    x, y = numbers((3, 5), 1), numbers((3, 5), 2)
    expected = x + y
    use_kernels("portable").add(x, y)
    assert same_bits(x, expected)


@pytest.mark.parametrize("token_id", [-1, 9, 2**31 - 1])
def test_embed_refuses_ids_outside(token_id: int) -> None:
    ops = use_kernels("portable")
    table = ops.matrix(tensor("q4_0", (9, 32), 1), MatrixUse.EMBEDDING)
    with pytest.raises(IndexError, match="is not in"):
        ops.embed(table, np.array([0, token_id], np.int32))


def test_arrays_of_another_kind_are_refused_not_copied() -> None:
    team = _core.ThreadTeam(1)
    weight = _core.Vector(np.ones(8, np.float32))
    x, out = np.ones((2, 8), np.float32), np.zeros((2, 8), np.float32)
    strided = np.zeros((2, 16), np.float32)[:, ::2]
    read_only = out.copy()
    read_only.flags.writeable = False
    for bad_x, bad_out in (
        (x.astype(np.float64), out),
        (strided, out),
        (x, strided),
        (x, out.astype(np.float64)),
        (x, read_only),
        (x[0], out),
    ):
        with pytest.raises(TypeError):
            _core.rms_norm(team, bad_x, weight, 1e-5, bad_out)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"out is \[3, 8\], must be \[2, 8\]"):
        _core.rms_norm(team, x, weight, 1e-5, np.zeros((3, 8), np.float32))
    with pytest.raises(ShapeError, match="weight has 8 entries, must have 9"):
        _core.rms_norm(team, np.ones((1, 9), np.float32), weight, 1e-5, np.ones((1, 9), np.float32))


def test_weights_outlive_the_arrays_they_came_from() -> None:
    values = np.full(8, 2.0, np.float32)
    weight = _core.Vector(values)
    del values
    x, out = np.ones((1, 8), np.float32), np.empty((1, 8), np.float32)
    junk = [np.zeros(8, np.float32) for _ in range(100)]
    _core.rms_norm(_core.ThreadTeam(1), x, weight, 0.0, out)
    assert (out == 2.0).all() and len(junk) == 100


@pytest.mark.parametrize("threads", [-1, 0, 513])
def test_refuses_impossible_teams(threads: int) -> None:
    with pytest.raises(DeviceError, match="between 1 and 512"):
        NativeOps(threads)


def test_refuses_kernels_that_are_not_there() -> None:
    with pytest.raises(DeviceError, match=r"'sse9' do not run.*portable"):
        NativeOps(1, "sse9")
    with pytest.raises(ValueError, match="sse9"):
        _core.ThreadTeam(1, "sse9")


def test_machine_info_names_what_kernels_need(kernels: str) -> None:
    needed = {
        "portable": set[str](),
        "avx2": {"avx2", "fma", "f16c"},
        "avxvnni": {"avx2", "avx_vnni"},
        "avx512": {"avx512", "avx512_vnni"},
        "amx": {"avx512", "amx_bf16"},
        "neon": {"neon", "dotprod", "fp16"},
        "neoni8mm": {"neon", "dotprod", "fp16", "i8mm"},
    }
    assert needed[kernels] <= set(machine_info().cpu_features)


def test_prompts_multiply_bf16_in_what_the_processor_has(kernels: str) -> None:
    _, floats, bf16 = product_names(kernels)
    has_product = kernels == "avx512" and "avx512_bf16" in machine_info().cpu_features
    assert bf16 == ("bf16 avx512" if has_product else floats)


def test_machine_info_names_the_kernels(kernels: str) -> None:
    ops = NativeOps(1, kernels)
    available = machine_info().available_kernels
    assert ops.kernels == kernels
    assert NativeOps(1).kernels == available[0]
    assert available[-1] == "portable"
