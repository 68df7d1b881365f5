"""Lets a large model read its weights in the way that is fastest on this machine.

What to prefetch, and how far ahead, differs between processors of one vendor. It is measured when a
large model is loaded first, which takes a second or two, and kept in the user's cache folder like
the speeds of devices. No result depends on it.
"""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from powerinfer.gguf import GGUFFile
from powerinfer.ops.cpu.read_way import LEAST_CHUNK, MOST_AHEAD, ReadWay
from powerinfer.sidecar import Field
from powerinfer.store.measurements import MeasurementFile, cpu_title
from powerinfer.store.memory import available_memory_bytes

if TYPE_CHECKING:
    from powerinfer.ops.cpu.ops import NativeOps

__all__ = ["READ_WAYS", "read_way_name", "stored_read_ways", "use_measured_ways"]

# Below, a whole load takes less time than measuring, and caches hold much of the weights.
_LARGE_MODEL_BYTES = 1 << 30
# Kinds of kernels that read less of a model do not matter for its speed.
_LEAST_SHARE = 0.1

_log = logging.getLogger(__name__)


def use_measured_ways(
    ops: "NativeOps",
    file: GGUFFile,
    *,
    in_place: bool,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Let `ops` read the weights of a file in the fastest way, measured now unless it is stored.

    Small models keep the default; so does every model where the machine is too busy to measure, or
    has no memory left for it.

    Args:
        ops: the backend that will run the file's model.
        file: its weights.
        in_place: they are read where the file is mapped.
        progress: told (steps done, steps in all) while something is measured.
    """
    from powerinfer.ops.cpu.weights import REPACKED_FORMATS

    for kind, format_name in _main_formats(file).items():
        # What is repacked is copied in any case.
        is_mapped = in_place and format_name not in REPACKED_FORMATS
        name = read_way_name(ops.threads, ops.kernels, format_name, in_place=is_mapped)
        way = READ_WAYS.recall(name)
        if way is None:
            way = _measure(ops, format_name, in_place=is_mapped, progress=progress)
            if way is None:
                continue
            READ_WAYS.keep(name, way)
        ops.set_read_way(kind, way)


def stored_read_ways(threads: int, kernels: str) -> dict[str, ReadWay]:
    """What was measured before, by format; of copies in memory as `q8_0 in memory`."""
    from powerinfer.ops.cpu.weights import FORMATS, REPACKED_FORMATS

    found: dict[str, ReadWay] = {}
    for name in FORMATS:
        is_repacked = name in REPACKED_FORMATS
        for in_place in (False,) if is_repacked else (True, False):
            way = READ_WAYS.recall(read_way_name(threads, kernels, name, in_place=in_place))
            if way is not None:
                found[name if in_place or is_repacked else f"{name} in memory"] = way
    return found


def read_way_name(threads: int, kernels: str, format_name: str, *, in_place: bool) -> str:
    """What is stored in READ_WAYS for weights of a format.

    Args:
        threads: of the team that reads.
        kernels: that read.
        format_name: of the weights.
        in_place: they are read where the file is mapped.
    """
    place = "" if in_place else " in memory"
    return f"{cpu_title(threads, kernels)}, {format_name} weights{place}"


def _main_formats(file: GGUFFile) -> dict[str, str]:
    """Of each kind of kernels that reads much of a large model, the format with most bytes."""
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
) -> ReadWay | None:
    from powerinfer.ops.cpu.way_speed import WAY_BYTES, measure_read_way

    available = available_memory_bytes()
    if available is None or available < 2 * WAY_BYTES:
        return None
    _log.info("measuring how this CPU reads %s weights fastest", format_name)
    try:
        way = measure_read_way(
            ops.threads, ops.kernels, format_name, in_place=in_place, progress=progress
        )
    except (MemoryError, OSError) as error:
        # A limit of this process may be lower than what the system has.
        _log.info("no memory to measure (%s): %s weights are read as usual", error, format_name)
        return None
    if way is None:
        _log.info("this machine is too busy to measure: %s weights are read as usual", format_name)
    return way


def _decode(field: Field) -> ReadWay:
    distance = {"least": 0, "most": MOST_AHEAD}
    return ReadWay(
        field["ahead"].integer(**distance),
        field["chunk_bytes"].integer(LEAST_CHUNK, MOST_AHEAD),
        field["gather_ahead"].integer(**distance),
        field["add_ahead"].integer(**distance),
    )


READ_WAYS = MeasurementFile("reads", asdict, _decode, version=3)
"""How this machine reads a format fastest, under the names of `read_way_name`."""
