"""One replayed step under torch's profiler: its kernels, and how fast the main ones read.

Bytes are those that the step must read: matrices whole, neurons as the counters saw them. The
bound is a copy within the GPU's memory, bytes read and written together.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from gpu_check.findings import Figure, Finding, Setting, Verdict, attempted, verdict_of
from gpu_check.launches import counting
from gpu_check.planted_models import PlantedModel, place_by_plan, plan_of_state
from powerinfer.gguf import open_gguf
from powerinfer.models import Model, load_model
from powerinfer.offload.model_sizes import SizeAssumptions, model_sizes
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.gpu.formats import device_bytes
from powerinfer.ops.protocol import KVType

__all__ = ["Kernel", "check_replays", "copy_speed", "roofline"]

_WARM_UP_STEPS = 6
_ROWS = 40
_COPY_BYTES = 1 << 30
_COPIES = 8
_GB = 1e9


@dataclass(frozen=True)
class Kernel:
    """One kernel of a step, all its launches together."""

    name: str
    count: int
    seconds: float


def check_replays(planted: PlantedModel, setting: Setting) -> Iterator[Finding]:
    """A step with all on the GPU and one with a third of the neurons; the tables go to the log.

    Args:
        planted: made already.
        setting: where to run it.
    """
    if not setting.is_cuda:
        yield Finding(f"{planted.name}, profile of a replay", Verdict.SKIPPED, "no CUDA")
        yield Finding(f"{planted.name}, speed of the kernels", Verdict.SKIPPED, "no CUDA")
        return
    copied = copy_speed()
    yield Finding(
        "copy within the GPU's memory",
        Verdict.OK,
        f"{copied / _GB:.0f} GB/s, read and written",
        {"bytes_per_s": copied},
    )
    cpu = NativeOps(setting.threads)
    model = load_model(open_gguf(planted.path(setting.folder)), cpu, context_length=256)
    for state in "SF":
        what = f"{planted.name} in state {state}"
        placed = place_by_plan(cpu, model, plan_of_state(model, state), setting.device)
        yield from attempted(what, _check_replay(planted, model, state, placed, copied))
        del placed


def _check_replay(
    planted: PlantedModel, model: Model, state: str, placed: Model, copied: float
) -> Iterator[Finding]:
    what = f"{planted.name} in state {state}"
    cache = placed.new_cache()
    # A step is recorded for the cache that it is run with.
    for position in range(_WARM_UP_STEPS):
        placed.forward(cache.batch([(0, [300], position)], [False]), cache)
    counters = placed.ops.counters
    before = counters.active, counters.predicted
    last = partial(placed.forward, cache.batch([(0, [300], _WARM_UP_STEPS)], [False]), cache)
    with counting() as launches:
        kernels = _profiled(last, what)
    neurons = counters.active - before[0], counters.predicted - before[1]
    total = sum(kernel.seconds for kernel in kernels)
    count = sum(kernel.count for kernel in kernels)
    slowest = ", ".join(f"{k.name} {k.count}x {k.seconds * 1e6:.1f} us" for k in kernels[:4])
    yield Finding(
        f"{what}, profile of a replay",
        verdict_of(bool(kernels) and launches.is_recorded),
        f"{count} kernels and copies, {total * 1e6:.0f} us: {slowest}",
        {"seconds": total, "kernels": count},
    )
    # Elsewhere the CPU computes some of the neurons that were counted.
    if state == "F":
        yield from roofline(planted, model, kernels, copied, neurons)


def _profiled(step: Callable[[], object], what: str) -> list[Kernel]:
    """Kernels of one step, the slowest first; prints the profiler's own table."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        step()
    averages = seen.key_averages()
    print(f"\n{what}: one replayed step")
    print(averages.table(sort_by="self_device_time_total", row_limit=_ROWS), flush=True)
    kernels = [
        Kernel(str(event.key), int(event.count), float(event.self_device_time_total) * 1e-6)
        for event in averages
        if event.self_device_time_total and "CUDA" in str(event.device_type)
    ]
    return sorted(kernels, key=lambda kernel: -kernel.seconds)


def roofline(
    planted: PlantedModel,
    model: Model,
    kernels: list[Kernel],
    copied: float,
    neurons: tuple[int, int],
) -> Iterator[Finding]:
    """GB/s of products with whole matrices, of the values of neurons, of the sums of down.

    Args:
        planted: says whether the FFN has a gate.
        model: on the CPU.
        kernels: of one step with everything on the GPU.
        copied: bytes per second of a copy, read and written.
        neurons: active ones and predicted ones of that step.
    """
    active, predicted = neurons
    sizes = model_sizes(model, SizeAssumptions(kv_type=KVType.F16, seq_len=64, batch_size=64))
    row = device_bytes(planted.format_name, 1, sizes.hidden_size)
    whole = sizes.output_bytes + sum(layer.attention_bytes for layer in sizes.layers)
    whole += _first_matrices_bytes(model)
    is_gated = planted.shape.is_gated
    read = {
        "matvec": whole,
        # The gate decides whether up is read; where there is none, up decides by itself.
        "value": row * (predicted + (active if is_gated else 0)),
        "down": row * active,
    }
    for name, num_bytes in read.items():
        seconds = sum(kernel.seconds for kernel in kernels if name in kernel.name)
        figures: dict[str, Figure] = {"bytes": num_bytes, "seconds": seconds}
        what = f"{planted.name}, {name} kernel"
        if not seconds or not num_bytes:
            yield Finding(what, Verdict.FAILED, "not found in the profile", figures)
            continue
        speed = num_bytes / seconds
        text = (
            f"{speed / _GB:.0f} GB/s, {speed / copied:.0%} of a copy "
            f"({num_bytes / 2**20:.1f} MiB in {seconds * 1e6:.1f} us)"
        )
        yield Finding(what, Verdict.OK, text, figures | {"share_of_copy": speed / copied})


def _first_matrices_bytes(model: Model) -> int:
    """Of the predictors' first matrices on the GPU: products like those of attention."""
    ops, num_bytes = model.ops, 0
    for layer in model.weights.layers:
        predictor = layer.ffn.predictor
        if predictor is not None and predictor.fc1 is not None:
            shape = ops.matrix_shape(predictor.fc1)
            num_bytes += device_bytes(ops.matrix_format(predictor.fc1), *shape)
    return num_bytes


def copy_speed() -> float:
    """Bytes per second, read and written."""
    import torch

    source = torch.ones(_COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    target.copy_(source)
    first.record()
    for _ in range(_COPIES):
        target.copy_(source)
    last.record()
    torch.cuda.synchronize()
    return 2 * _COPIES * _COPY_BYTES / (float(first.elapsed_time(last)) * 1e-3)
