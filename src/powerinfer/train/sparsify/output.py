"""The folder that `sparsify` writes: whose it is, what is in work, what is finished."""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from powerinfer._files import read_small_file, write_atomically
from powerinfer._locks import try_lock
from powerinfer._replacing import make_folder_of, replacing
from powerinfer.errors import PowerInferError
from powerinfer.train.sparsify.log import LOG_FILE

__all__ = ["REPORT_FILE", "OutputFolder"]

REPORT_FILE = "sparsify.json"
_WORK = "training"
_IDENTITY_FILE = "run.json"
_LARGEST_JSON = 1 << 24

Values = Mapping[str, object]


class OutputFolder:
    """A folder that is to hold a checkpoint; what a run needs meanwhile is in `training`.

    Attributes:
        path: the folder.
        work: the folder `training` in it, removed at the end.
    """

    def __init__(self, path: Path) -> None:
        """Touch nothing yet."""
        self.path, self.work = path, path / _WORK

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folders, and keep other processes out.

        Raises:
            PowerInferError: the folder cannot be made, or another process works in it.
        """
        make_folder_of(self.work / "lock", error=PowerInferError)
        try:
            file = (self.work / "lock").open("wb")
        except OSError as error:
            raise _unwritable(self.path, error) from None
        with file:
            try:
                try_lock(file)
            except BlockingIOError:
                raise PowerInferError(
                    f"{self.path}: another process trains there; wait for it, or stop it"
                ) from None
            except OSError:
                pass  # the file system has no locks
            yield

    def finished(self, identity: Values) -> Values | None:
        """The report of a run that is finished here; None where there is no checkpoint yet.

        Args:
            identity: of the run that is asked for.

        Raises:
            PowerInferError: there is a checkpoint that another run made.
        """
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
        """Begin a run, or go on with it.

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
        """Read a JSON object; None if there is no such file.

        Raises:
            PowerInferError: it is damaged.
        """
        if not path.exists():
            return None
        data = read_small_file(path, _LARGEST_JSON, noun="report", error=PowerInferError)
        with suppress(ValueError, RecursionError):
            values = json.loads(data)
            if isinstance(values, dict):
                return values
        raise PowerInferError(f"{path}: is damaged; remove {self.path} to start anew")

    def write(self, path: Path, values: Values) -> None:
        """Write a JSON object, atomically.

        Raises:
            PowerInferError: it cannot be written.
        """
        data = json.dumps(values, indent=2).encode() + b"\n"
        write_atomically(path, data, error=PowerInferError)

    def keep_log(self) -> None:
        """Copy the log of the training to where it stays.

        Raises:
            PowerInferError: it cannot be written.
        """
        replaced = replacing(self.path / LOG_FILE, error=PowerInferError)
        with (self.work / LOG_FILE).open("rb") as source, replaced as target:
            shutil.copyfileobj(source, target)

    def clean(self) -> None:
        """Remove what only the training needed."""
        shutil.rmtree(self.work, ignore_errors=True)


def _named(key: str, found: Values, value: object) -> str:
    """What differs, and how where that can be said."""
    before = found.get(key)
    if isinstance(before, str) and len(before) > 40:
        return key
    return f"{key} ({before}, here {value})"


def _unwritable(path: Path, error: OSError) -> PowerInferError:
    return PowerInferError(f"{path}: cannot write there: {error.strerror or error}")
