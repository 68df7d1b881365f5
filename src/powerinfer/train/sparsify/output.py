"""The folder that `sparsify` writes: its owner, work in progress, the finished checkpoint."""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from powerinfer._files import read_small_file, write_atomically
from powerinfer.errors import PowerInferError
from powerinfer.train.folder_lock import lock_folder

__all__ = ["REPORT_FILE", "OutputFolder"]

REPORT_FILE = "sparsify.json"
_WORK = "training"
_IDENTITY_FILE = "run.json"
_LARGEST_JSON = 1 << 24

Values = Mapping[str, object]


class OutputFolder:
    """A folder for a checkpoint; a run keeps its files in `work`, the folder `training` in it."""

    def __init__(self, path: Path) -> None:
        self.path, self.work = path, path / _WORK

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folders, and keep other processes out."""
        busy = f"{self.path}: another process trains there; wait for it, or stop it"
        try:
            file = lock_folder(self.work, busy)
        except OSError as error:
            raise PowerInferError(
                f"{self.path}: cannot write there: {error.strerror or error}"
            ) from None
        with file:
            yield

    def finished(self, identity: Values) -> Values | None:
        """The report of a run that is finished here; None if there is no checkpoint yet."""
        if not (self.path / "config.json").exists():
            return None
        report = self.read(self.path / REPORT_FILE)
        if report is None or report.get("run") != dict(identity):
            raise PowerInferError(
                f"{self.path}: holds a checkpoint already",
                remedy="choose another folder with {output}",
            )
        return report

    def claim(self, identity: Values) -> None:
        """Begin a run, or resume it.

        Raises:
            PowerInferError: another run is unfinished here; says in what it differs.
        """
        path = self.work / _IDENTITY_FILE
        found = self.read(path)
        if found is None:
            self.write(path, identity)
            return
        for key, value in identity.items():
            if found.get(key) != value:
                raise PowerInferError(
                    f"{self.path}: an unfinished run there has another {_named(key, found, value)}",
                    remedy="go on with the same, or choose another folder with {output}",
                )

    def read(self, path: Path) -> dict[str, object] | None:
        """Read a JSON object; None if there is no such file."""
        if not path.exists():
            return None
        data = read_small_file(path, _LARGEST_JSON, noun="report", error=PowerInferError)
        with suppress(ValueError, RecursionError):
            values = json.loads(data)
            if isinstance(values, dict):
                return values
        raise PowerInferError(f"{path}: is damaged; remove {self.path} to start again")

    def write(self, path: Path, values: Values) -> None:
        """Write a JSON object, atomically."""
        data = json.dumps(values, indent=2).encode() + b"\n"
        write_atomically(path, data, error=PowerInferError)

    def keep_log(self, name: str) -> None:
        """Copy a log of the training to its final place."""
        data = (self.work / name).read_bytes()
        write_atomically(self.path / name, data, error=PowerInferError)

    def clean(self) -> None:
        """Remove files that only the training needed."""
        shutil.rmtree(self.work, ignore_errors=True)


def _named(key: str, found: Values, value: object) -> str:
    """The key that differs, with both values if they are short."""
    before = found.get(key)
    if isinstance(before, str) and len(before) > 40:
        return key
    return f"{key} ({before}, here {value})"
