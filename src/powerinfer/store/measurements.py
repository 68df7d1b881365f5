"""Measurements of this machine, stored in the user's cache folder.

Files are named by a digest of the name of the measured object, which they contain.
"""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from powerinfer.errors import PlacementError
from powerinfer.sidecar import Field, Sidecar

__all__ = ["MeasurementFile", "cpu_name", "cpu_title"]

T = TypeVar("T")

_CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class _Measured(Generic[T]):
    """A stored measurement with the name of the measured object."""

    of: str
    value: T


class MeasurementFile(Generic[T]):
    """Files of one kind of measurement."""

    def __init__(
        self, prefix: str, encode: Callable[[T], object], decode: Callable[[Field], T], version: int
    ) -> None:
        """Describe the files, whose names begin with `prefix`; see `Sidecar` for the rest."""
        self._prefix = prefix
        self.sidecar: Sidecar[_Measured[T]] = Sidecar(
            noun="speed measurement",
            suffix=".json",
            folder="speeds",
            version=version,
            largest_bytes=1 << 16,
            error=PlacementError,
            encode=lambda stored: {"of": stored.of, "speeds": encode(stored.value)},
            decode=lambda top: _Measured(top["of"].text(), decode(top["speeds"])),
            identity=lambda stored: stored.of,
        )

    def recall(self, name: str) -> T | None:
        """Return the stored measurement of `name`, or None."""
        found = self.sidecar.recall(self._path(name), name)
        return None if found is None else found.value

    def keep(self, name: str, value: T) -> None:
        """Store a measurement, see `Sidecar.keep`."""
        self.sidecar.keep(self._path(name), _Measured(name, value))

    def _path(self, name: str) -> Path:
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        return self.sidecar.cached(f"{self._prefix}-{digest}")


def cpu_title(threads: int, kernels: str) -> str:
    """Name the processor with its threads and kernels."""
    return f"{cpu_name()}, {threads} threads, {kernels} kernels"


def cpu_name() -> str:
    """Name the processor."""
    with suppress(OSError):
        for line in _CPUINFO.read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Processor"):
                return value.strip()
    import platform

    return platform.processor() or platform.machine()
