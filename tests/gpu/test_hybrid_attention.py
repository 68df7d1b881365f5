"""Head norms, sinks and soft caps where attention lies on the CPU, and where on the device."""

from dataclasses import replace

import numpy as np
import pytest

from torch_device import skip_module_without

skip_module_without("torch", "triton")

import torch

from native_cases import make_batch, numbers
from placed_models import SMALL, make_plan
from powerinfer.errors import PlacementError
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.gpu.cache import DeviceKV
from powerinfer.ops.gpu.memory import Arena
from powerinfer.ops.gpu.ops import TorchGPU
from powerinfer.ops.hybrid.handles import HybridArray, HybridVector
from powerinfer.ops.hybrid.ops import HybridOps
from powerinfer.ops.operands import HeadNorms, KVType, RopeTable
from powerinfer.ops.reference.ops import ReferenceOps
from powerinfer.values import Batch, FloatArray
from tolerances import assert_close

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 4, 2, 32
# Of the heads of q and k, and the sinks.
VECTORS = (numbers((HEAD_DIM,), 1), numbers((HEAD_DIM,), 2), numbers((NUM_HEADS,), 3))


@pytest.fixture
def ops() -> HybridOps:
    """Attention of the first layer on the CPU, of the second on the device."""
    return HybridOps(NativeOps(2), TorchGPU(DEVICE), make_plan("CA"), SMALL)


def placed_vectors(ops: HybridOps, *, is_on_device: bool) -> list[HybridVector]:
    loaded = [ops.cpu.constant(values) for values in VECTORS]
    if not is_on_device:
        return list(loaded)
    room = Arena.allocate(ops.gpu.device, 1 << 12, "vectors")
    return [ops.placer(room).vector(vector) for vector in loaded]


def rotation() -> RopeTable:
    angles = np.arange(64)[:, None] * np.linspace(1, 0.1, HEAD_DIM // 2)
    return RopeTable(np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32), False)


def inputs(batch: Batch) -> list[FloatArray]:
    counts = enumerate((NUM_HEADS, NUM_KV_HEADS, NUM_KV_HEADS), 4)
    return [numbers((batch.num_tokens, count * HEAD_DIM), seed) for seed, count in counts]


def expected(batch: Batch, rope: RopeTable) -> FloatArray:
    oracle = ReferenceOps()
    cache = oracle.new_kv_layers(1, 8, 8, NUM_KV_HEADS, HEAD_DIM, KVType.F16)[0]
    q, k, v = inputs(batch)
    q_norm, k_norm, sinks = VECTORS
    oracle.rope_and_store(q, k, v, cache, batch, rope, HeadNorms(q_norm, k_norm, 1e-5))
    return oracle.attention(q, cache, batch, 0.2, 10, sinks=sinks, soft_cap=3.0)


@pytest.mark.parametrize("layer", (0, 1), ids=("cpu", "device"))
def test_options_reach_the_device_of_the_cache(ops: HybridOps, layer: int) -> None:
    batch, _ = make_batch((20, 3), 1, 8)
    rope = rotation()
    cache = ops.new_kv_layers(2, 8, 8, NUM_KV_HEADS, HEAD_DIM, KVType.F16)[layer]
    assert isinstance(cache, DeviceKV) == (layer == 1)
    q_norm, k_norm, sinks = placed_vectors(ops, is_on_device=layer == 1)
    placed: list[HybridArray] = list(inputs(batch))
    if layer == 1:
        placed = [ops.on_device(x) for x in placed]
    q, k, v = placed
    ops.rope_and_store(q, k, v, cache, batch, rope, HeadNorms(q_norm, k_norm, 1e-5))
    got = ops.attention(q, cache, batch, 0.2, 10, sinks=sinks, soft_cap=3.0)
    assert isinstance(got, np.ndarray) == (layer == 0)
    assert_close(ops.to_host(got), expected(batch, rope), "one operation, f16")


def test_uploaded_vectors_serve_the_cpu_too(ops: HybridOps) -> None:
    batch, _ = make_batch((20, 3), 1, 8)
    cache, _ = ops.new_kv_layers(2, 8, 8, NUM_KV_HEADS, HEAD_DIM, KVType.F16)
    q_norm, k_norm, sinks = placed_vectors(ops, is_on_device=True)
    q, k, v = inputs(batch)
    ops.rope_and_store(q, k, v, cache, batch, rotation(), HeadNorms(q_norm, k_norm, 1e-5))
    got = ops.attention(q, cache, batch, 0.2, 10, sinks=sinks, soft_cap=3.0)
    assert_close(ops.to_host(got), expected(batch, rotation()), "one operation, f16")


def test_a_vector_that_was_not_uploaded_is_refused(ops: HybridOps) -> None:
    batch, _ = make_batch((4,), 1, 8)
    _, cache = ops.new_kv_layers(2, 8, 8, NUM_KV_HEADS, HEAD_DIM, KVType.F16)
    *_, sinks = placed_vectors(ops, is_on_device=False)
    q, _, _ = inputs(batch)
    with pytest.raises(PlacementError, match="was not uploaded"):
        ops.attention(q, cache, batch, 0.2, sinks=sinks)


@pytest.mark.parametrize("kv_type", KVType)
def test_blocks_are_copied_where_they_lie(ops: HybridOps, kv_type: KVType) -> None:
    batch, _ = make_batch((20,), 20, 8)
    layers = ops.new_kv_layers(2, 8, 8, NUM_KV_HEADS, HEAD_DIM, kv_type)
    q, k, v = inputs(batch)
    before = []
    for cache in layers:
        arrays = (q.copy(), k.copy(), v.copy())
        ops.rope_and_store(*arrays, cache, batch, None)
        before.append(ops.to_host(ops.attention(q, cache, batch, 0.2)))
    used = batch.block_tables[0, :3].tolist()
    unused = [block for block in range(8) if block not in used][:3]
    ops.copy_kv_blocks(layers, list(zip(used, unused, strict=True)))
    moved = replace(batch, block_tables=np.array([unused], np.int32))
    for cache, expected_there in zip(layers, before, strict=True):
        there = ops.to_host(ops.attention(q, cache, moved, 0.2))
        np.testing.assert_array_equal(there, expected_there)
    with pytest.raises(IndexError):
        ops.copy_kv_blocks(layers[1:], [(-1, 0)])
