"""Kinds of files next to a model: names, format, and rules for replacing them."""

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

# Folders the user was warned about.
_not_writable: set[Path] = set()

T = TypeVar("T")

_MOST_VERSIONS = 1 << 20


@dataclass(frozen=True, slots=True)
class Sidecar(Generic[T]):
    """A kind of file: its name, its place, and how to read and write it.

    A new kind is one declaration, such as `predictors.calibration_json.CALIBRATION`. A file is one
    line of JSON, an object whose field `version` is the version of its format.

    Attributes:
        noun: kind of file for messages: `calibration`.
        suffix: suffix after the model's name: `.calibration.json`.
        folder: folder for this kind in the user's cache folder.
        version: version of the format, increased when an older file could be misread.
        largest_bytes: size limit.
        error: class of errors raised by all methods.
        encode: returns the fields of a value, without `version`.
        decode: returns the value of a file, whose version is checked already.
        identity: returns the `gguf.model_identity` of the model a value belongs to; None if only
            the file name identifies it.
        remedy: advice for a damaged file.
        remedy_for_others: advice for the file of another model.
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
        """Return the path next to a model: `MODEL.calibration.json`."""
        return model_path.with_name(model_path.name + self.suffix)

    def cached(self, name: str) -> Path:
        """Return the path in the cache for a name, such as a model's identity."""
        return cache_folder(self.folder) / f"{name}{self.suffix}"

    def has_cached(self) -> bool:
        """Return whether the cache has any file of this kind; cheaper than a model's identity."""
        folder = cache_folder(self.folder)
        return folder.is_dir() and any(folder.glob(f"*{self.suffix}"))

    def to_json(self, value: T) -> str:
        """Encode a value as one line of JSON."""
        fields = {"version": self.version, **self.encode(value)}
        return json.dumps(fields, allow_nan=False, separators=(",", ":"))

    def from_json(self, text: str | bytes, where: str, identity: str | None = None) -> T:
        """Decode and check the text of `to_json`.

        Args:
            where: name of the file for messages.
            identity: required identity of the model; None for any.

        Raises:
            PowerInferError: as `error`: the text is invalid (names the field), or belongs to
                another model.
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
        """Read a file, see `read_small_file`.

        Args:
            identity: required identity of the model; None for any.

        Raises:
            PowerInferError: as `error`: it cannot be read, is damaged or belongs to another model.
        """
        data = read_small_file(path, self.largest_bytes, noun=self.noun, error=self.error)
        return self.from_json(data, str(path), identity)

    def recall(self, path: Path, identity: str | None = None) -> T | None:
        """Read a file of the cache; None if it is missing or unusable, to be measured again."""
        if not path.exists():
            return None
        try:
            return self.read(path, identity)
        except self.error:
            return None

    def write(self, path: Path, value: T) -> Path:
        """Write a file atomically and return its path.

        Raises:
            PowerInferError: as `error`: it cannot be written.
        """
        return write_atomically(path, f"{self.to_json(value)}\n".encode(), error=self.error)

    def keep(self, path: Path, value: T) -> None:
        """Write a file of the cache; on failure warn once, and the next run measures again."""
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
        """Write the file of a model next to it, or else into the cache; return its path.

        Args:
            may_lie_beside: False if nothing may be written next to the model.
            may_lie_in_cache: False if data inside the model takes precedence over the cache.

        Raises:
            PowerInferError: as `error`: it cannot be written.
        """
        if may_lie_beside:
            try:
                return self.write(self.beside(model_path), value)
            except self.error:
                # A file next to the model takes precedence over one in the cache.
                if not may_lie_in_cache or os.access(model_path.parent, os.W_OK):
                    raise
        return self.write(self.cached(identity), value)

    def check_target(self, path: Path) -> None:
        """Raise `error` if writing a file would replace one that is not empty or of this kind."""
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
