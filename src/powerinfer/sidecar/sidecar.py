"""Kinds of files that lie beside a model: their names, their form, what may be replaced."""

import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from powerinfer._files import cache_folder, read_small_file, write_atomically
from powerinfer.errors import PowerInferError
from powerinfer.sidecar.fields import Field

__all__ = ["Sidecar"]

_log = logging.getLogger(__name__)

# Folders about which the user was told.
_not_writable: set[Path] = set()

T = TypeVar("T")

_MOST_VERSIONS = 1 << 20


@dataclass(frozen=True, slots=True)
class Sidecar(Generic[T]):
    """A kind of file: what it is called, where it lies, how it is read and written.

    Adding a kind is one declaration, such as `predictors.calibration_json.CALIBRATION`. A file is
    one line of JSON, an object whose field `version` says how to read the others.

    Attributes:
        noun: what a file is, for messages: `calibration`.
        suffix: of its name, behind the model's: `.calibration.json`.
        folder: of the user's cache folder that holds files of this kind.
        version: of the format, increased when an older file could be misread.
        largest_bytes: that a file can have.
        error: what its readers and writers raise.
        encode: the fields of a value, without `version`.
        decode: the value of a file, whose version is checked.
        identity: what a value says it belongs to, a `gguf.model_identity`; None where the name of
            the file alone says so.
        remedy: what to do about a file that is damaged.
        remedy_for_others: what to do about the file of another model.
    """

    noun: str
    suffix: str
    folder: str
    version: int
    largest_bytes: int
    error: type[PowerInferError]
    encode: Callable[[T], Mapping[str, object]]
    decode: Callable[[Field], T]
    identity: Callable[[T], str] | None = None
    remedy: str = "remove it"
    remedy_for_others: str = "remove it"

    def beside(self, model_path: Path) -> Path:
        """Where the file of a model lies: `MODEL.calibration.json`."""
        return model_path.with_name(model_path.name + self.suffix)

    def cached(self, name: str) -> Path:
        """Where the file lies that is kept under a name, such as a model's identity."""
        return cache_folder(self.folder) / f"{name}{self.suffix}"

    def has_cached(self) -> bool:
        """Whether any file of this kind is in the cache; costs less than a model's identity."""
        folder = cache_folder(self.folder)
        return folder.is_dir() and any(folder.glob(f"*{self.suffix}"))

    def to_json(self, value: T) -> str:
        """One line of JSON."""
        fields = {"version": self.version, **self.encode(value)}
        return json.dumps(fields, allow_nan=False, separators=(",", ":"))

    def from_json(self, text: str | bytes, where: str, identity: str | None = None) -> T:
        """Read and check.

        Args:
            text: what `to_json` made.
            where: names the file in messages.
            identity: that it must belong to; None for any.

        Raises:
            PowerInferError: this kind's `error`: anything is not as it must be, which names the
                field; or it belongs to another model.
        """
        top = Field.parse(text, lambda problem: self._unusable(where, problem))
        version = top["version"]
        found = version.integer(0, _MOST_VERSIONS)
        if found != self.version:
            version.fail(f"is {found}; this program reads version {self.version}")
        value = self.decode(top)
        if identity is not None and self.identity is not None:
            self._check_identity(self.identity(value), identity, where)
        return value

    def read(self, path: Path, identity: str | None = None) -> T:
        """Read a file, without waiting for a pipe or reading a device.

        Args:
            path: of the file.
            identity: that it must belong to; None for any.

        Raises:
            PowerInferError: this kind's `error`: it cannot be read, is damaged, or belongs to
                another model.
        """
        data = read_small_file(path, self.largest_bytes, noun=self.noun, error=self.error)
        return self.from_json(data, str(path), identity)

    def recall(self, path: Path, identity: str | None = None) -> T | None:
        """Read a file that was written as a cache; None if it is missing or cannot be used.

        Measuring again repairs it.
        """
        if not path.exists():
            return None
        try:
            return self.read(path, identity)
        except self.error:
            return None

    def write(self, path: Path, value: T) -> Path:
        """Write a file under a temporary name, then rename it; return its path.

        Raises:
            PowerInferError: this kind's `error`: it cannot be written.
        """
        return write_atomically(path, f"{self.to_json(value)}\n".encode(), error=self.error)

    def keep(self, path: Path, value: T) -> None:
        """Write a file as a cache; if that fails, with a warning, the next run measures again."""
        try:
            self.write(path, value)
        except self.error as problem:
            cache = path.parent.parent
            if cache not in _not_writable:
                _not_writable.add(cache)
                _log.warning(
                    "%s; the measurement cannot be cached and will be repeated on every run",
                    problem,
                )

    def save(
        self,
        model_path: Path,
        value: T,
        *,
        identity: str,
        may_lie_beside: bool = True,
        may_lie_in_cache: bool = True,
    ) -> Path:
        """Write the file of a model beside it, or else in the cache; return its path.

        Args:
            model_path: of the model.
            value: what to store.
            identity: of the model.
            may_lie_beside: False for a model beside which nothing is ever written.
            may_lie_in_cache: False where something inside the model would be found first.

        Raises:
            PowerInferError: this kind's `error`: it cannot be written.
        """
        if may_lie_beside:
            try:
                return self.write(self.beside(model_path), value)
            except self.error:
                # A file beside the model would be found before one in the cache.
                if not may_lie_in_cache or os.access(model_path.parent, os.W_OK):
                    raise
        return self.write(self.cached(identity), value)

    def check_target(self, path: Path) -> None:
        """Check that writing a file would replace nothing but an empty one or one of this kind.

        Raises:
            PowerInferError: this kind's `error`: it would.
        """
        if not os.path.lexists(path) or (path.is_file() and not path.stat().st_size):
            return
        try:
            self.read(path)
        except self.error:
            raise self.error(
                f"{path}: already exists and is not a readable {self.noun}",
                remedy="name another file with {output}",
            ) from None

    def _unusable(self, where: str, problem: str) -> PowerInferError:
        return self.error(f"{where}: the {self.noun} cannot be used: {problem}; {self.remedy}")

    def _check_identity(self, found: str, wanted: str, where: str) -> None:
        if found != wanted:
            raise self.error(
                f"{where}: this {self.noun} was made for another model (identity "
                f"{found[:12]:.12}..., this one's is {wanted[:12]}...): {self.remedy_for_others}"
            )
