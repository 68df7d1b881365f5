"""Output of `inspect --machine`: processor, kernels, and how memory and weights are read."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from powerinfer.ops.cpu.prefetch_settings import PlainReadSettings, PrefetchSettings

__all__ = ["Lines", "machine_report"]

# More than caches hold; settings are compared on a part, so that it takes a fraction of a second.
_READ_BYTES = 384 << 20
_COMPARED_BYTES = 64 << 20
_READS = 4

_NO_MEMORY = "too little memory is free"
_IS_BUSY = "the machine is busy"


class Lines(tuple[str, ...]):
    """Texts that get a line each."""


@dataclass(frozen=True, slots=True)
class _PlainRead:
    """Fastest rate of reading memory, or the reason why it was not measured."""

    gb_per_s: float | None = None
    settings: "PlainReadSettings | None" = None
    problem: str | None = None


def machine_report(kernels: str | None, *, as_json: bool) -> dict[str, object]:
    """Report the processor, the kernels that a run with this flag would use, and the GPUs.

    Names and values, for `inspect --machine --json` or for a table for people.

    Raises:
        DeviceError: there are no such kernels.
    """
    from powerinfer.errors import DeviceError
    from powerinfer.loading.loader import REFERENCE_KERNELS, make_ops

    try:
        from powerinfer.ops.cpu import machine as native
    except ImportError as error:
        raise DeviceError(f"the native extension is not installed: {error}") from error
    from powerinfer.loading.reading_speeds import stored_prefetch_settings
    from powerinfer.offload.devices import describe_gpus
    from powerinfer.store.threads import default_threads

    threads = default_threads(beside_gpu=False)
    _, selected = make_ops(kernels, threads=1)
    is_native = selected != REFERENCE_KERNELS
    info = native.machine_info()
    # Each multiplies prompts: of quantized weights, of F16 and F32, of BF16.
    products = native.product_names(selected) if is_native else ("numpy",) * 3
    read = _plain_read(threads)
    # By format; None: the kernels are not ours.
    ways = stored_prefetch_settings(threads, selected) if is_native else None
    report: dict[str, object] = {
        "cpu_features": info.cpu_features,
        "available_kernels": info.available_kernels,
        "selected_kernels": selected,
    }
    if as_json:
        report |= {
            "products": dict(zip(("quantized", "floats", "bf16"), products, strict=True)),
            "threads": threads,
            "read_gb_per_s": read.gb_per_s,
            "read_way": None if read.settings is None else asdict(read.settings),
            "read_problem": read.problem,
            "read_ways": _settings_as_json(ways, threads),
        }
    else:
        rate = f"{read.gb_per_s} GB/s, measured now: {threads} threads, {read.settings}"
        report |= {
            "products": _product_lines(*products),
            "plain_read": f"not measured: {read.problem}" if read.problem else rate,
            "read_ways": _settings_lines(ways, threads) or None,
        }
    return {**report, "gpus": tuple(describe_gpus())}


def _product_lines(quantized: str, floats: str, bf16: str) -> Lines:
    lines = [f"{quantized} for prompts of quantized weights"]
    if bf16 == floats:
        lines.append(f"{floats} for prompts of F16, BF16 and F32 weights")
    else:
        lines.append(f"{floats} for prompts of F16 and F32 weights")
        lines.append(f"{bf16} for prompts of BF16 weights")
    return Lines(lines)


def _settings_as_json(
    ways: "dict[str, PrefetchSettings] | None", threads: int
) -> list[dict[str, object]]:
    from powerinfer.ops.cpu.prefetch_settings import PrefetchSettings

    if ways is None:
        return []
    shown: list[tuple[str | None, PrefetchSettings]] = [*ways.items(), (None, PrefetchSettings())]
    return [
        {"format": name, "threads": threads, "is_measured": name is not None, **asdict(each)}
        for name, each in shown
    ]


def _settings_lines(ways: "dict[str, PrefetchSettings] | None", threads: int) -> Lines:
    """The default, and what was measured to be faster."""
    from powerinfer.ops.cpu.prefetch_settings import PrefetchSettings

    if ways is None:
        return Lines()
    usual = PrefetchSettings()
    faster = (
        f"{name}: {each} (measured with {threads} threads, for models of 1 GiB or more "
        f"whose weights are mostly {name})"
        for name, each in ways.items()
        if each != usual
    )
    return Lines((f"{usual} (default)", *faster))


def _plain_read(threads: int) -> _PlainRead:
    import numpy as np

    from powerinfer.bench.read_bandwidth import PlainReader
    from powerinfer.cli.report.progress import ProgressBar
    from powerinfer.ops.cpu import prefetch_settings, prefetch_speed
    from powerinfer.store.memory import available_memory_bytes

    available = available_memory_bytes()
    if available is not None and available < 2 * _READ_BYTES:
        return _PlainRead(problem=_NO_MEMORY)
    if not prefetch_speed.has_a_core():
        return _PlainRead(problem=_IS_BUSY)
    try:
        data = np.ones(_READ_BYTES, np.uint8)
    except MemoryError:
        return _PlainRead(problem=_NO_MEMORY)
    reader = PlainReader(threads, compared_bytes=_COMPARED_BYTES)
    seconds: list[float] = []
    with ProgressBar("measuring how fast memory is read") as say:
        for number in range(_READS):
            say(number, _READS)
            seconds.append(reader.read_s([data]))
    if not prefetch_settings.is_steady(seconds):
        return _PlainRead(problem=_IS_BUSY)
    return _PlainRead(round(_READ_BYTES / min(seconds) / 1e9, 1), reader.settings)
