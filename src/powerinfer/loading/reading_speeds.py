"""Measured prefetch settings for the weights of large models.

The best distances differ between processors of one vendor. They are measured when a large model is
first loaded, which takes a second or two, and stored in the user's cache folder like the speeds of
devices. No result depends on them.
"""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from powerinfer.gguf import GGUFFile
from powerinfer.ops.cpu.prefetch_settings import LEAST_CHUNK, MOST_AHEAD, PrefetchSettings
from powerinfer.sidecar import Field
from powerinfer.store.measurements import MeasurementFile, cpu_title
from powerinfer.store.memory import available_memory_bytes

if TYPE_CHECKING:
    from powerinfer.ops.cpu.ops import NativeOps

__all__ = [
    "PREFETCH_SETTINGS",
    "prefetch_settings_name",
    "stored_prefetch_settings",
    "use_measured_settings",
]

# Smaller models load faster than we measure, and caches hold much of their weights.
_LARGE_MODEL_BYTES = 1 << 30
# Kinds of kernels that read a smaller share of a model do not matter for its speed.
_LEAST_SHARE = 0.1

_log = logging.getLogger(__name__)


def use_measured_settings(
    ops: "NativeOps",
    file: GGUFFile,
    *,
    in_place: bool,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Set the fastest prefetch settings for a file's weights; measure them unless stored.

    Small models keep the defaults; so does every model if the machine is too busy to measure or
    has no memory left for it.

    Args:
        in_place: weights are read from the mapped file.
    """
    from powerinfer.ops.cpu.weights import REPACKED_FORMATS

    for kind, format_name in _main_formats(file).items():
        # Repacked formats are always copied.
        is_mapped = in_place and format_name not in REPACKED_FORMATS
        name = prefetch_settings_name(ops.threads, ops.kernels, format_name, in_place=is_mapped)
        settings = PREFETCH_SETTINGS.recall(name)
        if settings is None:
            settings = _measure(ops, format_name, in_place=is_mapped, progress=progress)
            if settings is None:
                continue
            PREFETCH_SETTINGS.keep(name, settings)
        ops.set_prefetch_settings(kind, settings)


def stored_prefetch_settings(threads: int, kernels: str) -> dict[str, PrefetchSettings]:
    """Return stored settings by format; those of copies in memory as `q8_0 in memory`."""
    from powerinfer.ops.cpu.weights import FORMATS, REPACKED_FORMATS

    found: dict[str, PrefetchSettings] = {}
    for name in FORMATS:
        is_repacked = name in REPACKED_FORMATS
        for in_place in (False,) if is_repacked else (True, False):
            settings = PREFETCH_SETTINGS.recall(
                prefetch_settings_name(threads, kernels, name, in_place=in_place)
            )
            if settings is not None:
                found[name if in_place or is_repacked else f"{name} in memory"] = settings
    return found


def prefetch_settings_name(threads: int, kernels: str, format_name: str, *, in_place: bool) -> str:
    """Key in `PREFETCH_SETTINGS` for weights of a format; `in_place`: read from the mapped file."""
    place = "" if in_place else " in memory"
    return f"{cpu_title(threads, kernels)}, {format_name} weights{place}"


def _main_formats(file: GGUFFile) -> dict[str, str]:
    """Format with the most bytes for each kind of kernels that reads much of a large model."""
    from powerinfer.ops.cpu.machine import read_kind
    from powerinfer.ops.cpu.weights import FORMATS

    sizes = Counter[str]()
    for tensor in file.tensors.values():
        if tensor.format in FORMATS:
            sizes[tensor.format] += tensor.data.nbytes
    if sizes.total() < _LARGE_MODEL_BYTES:
        return {}
    by_kind = Counter[str]()
    for name, num_bytes in sizes.items():
        by_kind[read_kind(name)] += num_bytes
    found: dict[str, str] = {}
    for name, _ in sizes.most_common():
        kind = read_kind(name)
        if by_kind[kind] >= _LEAST_SHARE * sizes.total():
            found.setdefault(kind, name)
    return found


def _measure(
    ops: "NativeOps",
    format_name: str,
    *,
    in_place: bool,
    progress: Callable[[int, int], None] | None,
) -> PrefetchSettings | None:
    from powerinfer.ops.cpu.prefetch_speed import MEASURING_BYTES, measure_prefetch_settings

    available = available_memory_bytes()
    if available is None or available < 2 * MEASURING_BYTES:
        return None
    _log.info("measuring how this CPU reads %s weights fastest", format_name)
    try:
        settings = measure_prefetch_settings(
            ops.threads, ops.kernels, format_name, in_place=in_place, progress=progress
        )
    except (MemoryError, OSError) as error:
        # This process may have a lower limit than the system.
        _log.info("no memory to measure (%s): %s weights are read as usual", error, format_name)
        return None
    if settings is None:
        _log.info("this machine is too busy to measure: %s weights are read as usual", format_name)
    return settings


def _decode(field: Field) -> PrefetchSettings:
    distance = {"least": 0, "most": MOST_AHEAD}
    return PrefetchSettings(
        field["ahead"].integer(**distance),
        field["chunk_bytes"].integer(LEAST_CHUNK, MOST_AHEAD),
        field["gather_ahead"].integer(**distance),
        field["add_ahead"].integer(**distance),
    )


PREFETCH_SETTINGS = MeasurementFile("reads", asdict, _decode, version=4)
"""Fastest settings of this machine by format, under the names of `prefetch_settings_name`."""
