"""What the benchmark of CPU and GPU together needs to know of a model and of a machine."""

import time
from dataclasses import asdict, dataclass

import numpy as np

from powerinfer.bench.read_bandwidth import PlainReader
from powerinfer.models import Model
from powerinfer.models.blocks import Stage
from powerinfer.offload.model_sizes import SizeAssumptions, model_sizes
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.cpu.speed import measure_native_speed
from powerinfer.ops.protocol import KVType
from powerinfer.placement.cost_model import CostModel, DeviceSpeed
from powerinfer.placement.problem import ActivationStats, ModelSizes
from powerinfer.values import FloatArray

__all__ = [
    "MeasuredSpeeds",
    "handoff_figures",
    "measured_speeds",
    "predicted_frequencies",
    "sizes_of",
]

_TIMED_STEPS = 3
_READ_BYTES = 1 << 30


@dataclass(frozen=True)
class MeasuredSpeeds:
    """Of this machine.

    Attributes:
        cost: what plans are made from.
        gpu_plain_read: bytes per second of adding up numbers in GPU memory.
        cpu_plain_read: bytes per second of reading memory and doing nothing with it.
        cpu_dense_decode: bytes per second of a dense decode step on the CPU alone.
    """

    cost: CostModel
    gpu_plain_read: float
    cpu_plain_read: float
    cpu_dense_decode: float


def sizes_of(model: Model) -> ModelSizes:
    """Bytes of every part, for short sequences."""
    return model_sizes(model, SizeAssumptions(kv_type=KVType.F16, seq_len=64, batch_size=64))


def predicted_frequencies(model: Model, num_tokens: int) -> ActivationStats:
    """Count over random tokens what the model's predictors let pass.

    Args:
        model: on the CPU, with predictors in every layer.
        num_tokens: in one sequence.
    """
    config = model.config
    counts = np.zeros((config.num_layers, config.intermediate_size), np.float32)

    def count(stage: Stage, layer: int, x: FloatArray) -> None:
        if stage is Stage.PREDICTOR_INPUT:
            predictor = model.weights.layers[layer].ffn.predictor
            if predictor is None:
                raise SystemExit(f"error: layer {layer} has no predictor to count")
            active = model.ops.predict(x, predictor, np.ones(len(x), bool))
            np.add.at(counts[layer], active.ids, 1)

    random = np.random.default_rng(1)
    cache = model.new_cache(num_tokens)
    tokens = random.integers(259, config.vocab_size, num_tokens).tolist()
    model.forward(cache.batch([(0, tokens, 0)], [True]), cache, observe=count)
    return ActivationStats(counts / np.float32(num_tokens), "random tokens", num_tokens)


def measured_speeds(device: str, ops: NativeOps, dense: Model, format_name: str) -> MeasuredSpeeds:
    """Measure both devices.

    Args:
        device: torch's name of the GPU.
        ops: the CPU backend.
        dense: model on it that skips no neuron.
        format_name: of its FFN weights.
    """
    cpu = measure_native_speed(ops, format_name)
    return MeasuredSpeeds(
        cost=_cost(device, cpu, ops, format_name),
        gpu_plain_read=_gpu_plain_read(device),
        cpu_plain_read=_plain_read(ops),
        cpu_dense_decode=_dense_decode(dense),
    )


def _cost(device: str, cpu: DeviceSpeed, ops: NativeOps, format_name: str) -> CostModel:
    if device == "cpu":
        # Interpreted kernels: any figures that make plans with something on both sides.
        return CostModel(DeviceSpeed(1e12, 1e12, 0.0), cpu, 0.0, 1e10)
    from powerinfer.ops.hybrid.speed import measure_gpu_speed

    return measure_gpu_speed(device, ops, format_name).beside(cpu)


def handoff_figures(device: str, ops: NativeOps) -> dict[str, dict[str, float]]:
    """Seconds of a recorded hand-off, `median_s` and `p99_s`, by its name; empty without one."""
    from powerinfer.ops.gpu.ops import TorchGPU
    from powerinfer.ops.hybrid.speed import measure_handoff

    found = measure_handoff(TorchGPU(device), ops)
    return {} if found is None else {"memory_operations": asdict(found)}


def _gpu_plain_read(device: str) -> float:
    import torch

    data = torch.ones((1 << 14) if device == "cpu" else _READ_BYTES, device=device)
    seconds = []
    for _ in range(8):
        started = time.perf_counter()
        data.sum().item()  # waits for the device
        seconds.append(time.perf_counter() - started)
    return float(data.nbytes / min(seconds))


def _plain_read(ops: NativeOps) -> float:
    data = np.ones(_READ_BYTES, np.uint8)
    reader = PlainReader(ops.threads)
    return float(data.nbytes) / min(reader.read_s([data]) for _ in range(3))


def _dense_decode(model: Model) -> float:
    cache = model.new_cache(64)
    seconds = []
    for position in range(_TIMED_STEPS + 1):
        started = time.perf_counter()
        model.forward(cache.batch([(0, [300 + position], position)], [False]), cache)
        seconds.append(time.perf_counter() - started)
    return model.bytes_per_token(4) / float(np.median(seconds[1:]))
