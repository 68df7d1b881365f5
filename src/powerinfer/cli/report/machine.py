"""Output of `inspect --machine`: processor, kernels, and how memory and weights are read."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from powerinfer.ops.cpu.prefetch_settings import PlainReadSettings, PrefetchSettings

__all__ = ["Lines", "MachineReport", "machine_report"]

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


@dataclass(frozen=True, slots=True)
class MachineReport:
    """See `machine_report`.

    Attributes:
        cpu_features: instruction-set extensions found and usable.
        available_kernels: best first.
        products: what multiplies prompts: quantized weights, F16 and F32, and BF16.
        read_ways: measured prefetch settings by format; None: the kernels are not ours.
    """

    cpu_features: tuple[str, ...]
    available_kernels: tuple[str, ...]
    selected_kernels: str
    products: tuple[str, str, str]
    threads: int
    read: _PlainRead
    read_ways: "dict[str, PrefetchSettings] | None"
    gpus: tuple[str, ...]

    def as_json(self) -> dict[str, object]:
        """The object of `inspect --machine --json`."""
        quantized, floats, bf16 = self.products
        return {
            "cpu_features": self.cpu_features,
            "available_kernels": self.available_kernels,
            "selected_kernels": self.selected_kernels,
            "products": {"quantized": quantized, "floats": floats, "bf16": bf16},
            "threads": self.threads,
            "read_gb_per_s": self.read.gb_per_s,
            "read_way": None if self.read.settings is None else asdict(self.read.settings),
            "read_problem": self.read.problem,
            "read_ways": self._settings_as_json(),
            "gpus": self.gpus,
        }

    def rows(self) -> dict[str, object]:
        """Names and values of a table for people."""
        read = (
            f"not measured: {self.read.problem}"
            if self.read.problem
            else f"{self.read.gb_per_s} GB/s, measured now: "
            f"{self.threads} threads, {self.read.settings}"
        )
        return {
            "cpu_features": self.cpu_features,
            "available_kernels": self.available_kernels,
            "selected_kernels": self.selected_kernels,
            "products": self._product_lines(),
            "plain_read": read,
            "read_ways": self._settings_lines() or None,
            "gpus": self.gpus,
        }

    def _product_lines(self) -> Lines:
        quantized, floats, bf16 = self.products
        lines = [f"{quantized} for prompts of quantized weights"]
        if bf16 == floats:
            lines.append(f"{floats} for prompts of F16, BF16 and F32 weights")
        else:
            lines.append(f"{floats} for prompts of F16 and F32 weights")
            lines.append(f"{bf16} for prompts of BF16 weights")
        return Lines(lines)

    def _settings_as_json(self) -> list[dict[str, object]]:
        from powerinfer.ops.cpu.prefetch_settings import PrefetchSettings

        if self.read_ways is None:
            return []
        measured = [*((name, True, each) for name, each in self.read_ways.items())]
        return [
            {"format": name, "threads": self.threads, "is_measured": is_measured, **asdict(each)}
            for name, is_measured, each in (*measured, (None, False, PrefetchSettings()))
        ]

    def _settings_lines(self) -> Lines:
        """The default, and what was measured to be faster."""
        from powerinfer.ops.cpu.prefetch_settings import PrefetchSettings

        if self.read_ways is None:
            return Lines()
        usual = PrefetchSettings()
        faster = (
            f"{name}: {each} (measured with {self.threads} threads, for models of 1 GiB or more "
            f"whose weights are mostly {name})"
            for name, each in self.read_ways.items()
            if each != usual
        )
        return Lines((f"{usual} (default)", *faster))


def machine_report(kernels: str | None) -> MachineReport:
    """Report the processor, the kernels that a run with this flag would use, and the GPUs.

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
    return MachineReport(
        cpu_features=info.cpu_features,
        available_kernels=info.available_kernels,
        selected_kernels=selected,
        products=native.product_names(selected) if is_native else ("numpy",) * 3,
        threads=threads,
        read=_plain_read(threads),
        read_ways=stored_prefetch_settings(threads, selected) if is_native else None,
        gpus=tuple(describe_gpus()),
    )


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
