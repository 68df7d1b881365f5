"""The answer file: appended line by line, so that a killed run loses and repeats no answers."""

import json
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from powerinfer._locks import try_lock
from powerinfer.errors import PromptError
from powerinfer.serve.batch.requests import BatchRequest
from powerinfer.serve.errors import ApiError
from powerinfer.values import JSON, JSONObject

__all__ = ["AnswerFile"]

# Beginning of every line, by which an incomplete line is recognized.
_BEGINNING = b'{"id": "batch_req_'


class AnswerFile:
    """An answer file, opened as a context manager by one process at a time."""

    def __init__(self, path: Path) -> None:
        """Set the path; the file need not exist."""
        self.path = path
        # By key of a request, whether it failed.
        self._done: dict[str, bool] = {}

    def __enter__(self) -> Self:
        """Open the file, read its lines and cut off an incomplete last line.

        Raises:
            PromptError: it cannot be written, another process writes it, or it is no answer file.
        """
        try:
            if self.path.exists() and not self.path.is_file():
                raise PromptError(f"{self.path}: it is not a regular file; name another one")
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a+b", buffering=0)
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            self._lock()
            self._read()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(OSError):
            os.fsync(self._file.fileno())
        self._file.close()

    def has(self, request: BatchRequest) -> bool:
        """Return whether a request has been answered."""
        return request.key in self._done

    def has_failed(self, request: BatchRequest) -> bool:
        """Return whether a request was answered with an error."""
        return self._done.get(request.key, False)

    def add(self, request: BatchRequest, status: int, request_id: str, body: JSON) -> None:
        """Append a route's answer."""
        response: JSON = {"status_code": status, "request_id": request_id, "body": body}
        self._append(request, {"response": response, "error": None}, has_failed=status != 200)

    def add_error(self, request: BatchRequest, error: ApiError) -> None:
        """Append the reason why a line cannot be answered."""
        said: JSON = {"code": error.code or "invalid_request", "message": error.message}
        self._append(request, {"response": None, "error": said}, has_failed=True)

    def _append(self, request: BatchRequest, content: JSONObject, *, has_failed: bool) -> None:
        record = {"id": request.id, "custom_id": request.custom_id, **content}
        rest = memoryview(json.dumps(record, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
        try:
            while rest:
                rest = rest[self._file.write(rest) or 0 :]
        except OSError as error:
            raise self._unwritable(error) from None
        self._done[request.key] = has_failed

    def _lock(self) -> None:
        try:
            try_lock(self._file)
        except BlockingIOError:
            raise PromptError(
                f"{self.path}: another process writes to it; wait for it, or name another file"
            ) from None
        except OSError:
            pass  # a file system without locks

    def _read(self) -> None:
        self._file.seek(0)
        end = 0
        with os.fdopen(os.dup(self._file.fileno()), "rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n") and not self._is_whole(line):
                    self._cut(end, number, line)
                    return
                self._take(number, line)
                end += len(line)
                if not line.endswith(b"\n"):
                    self._file.write(b"\n")

    def _cut(self, end: int, number: int, line: bytes) -> None:
        if not (line.startswith(_BEGINNING) or _BEGINNING.startswith(line)):
            raise self._foreign(number)
        self._file.truncate(end)

    @staticmethod
    def _is_whole(line: bytes) -> bool:
        try:
            json.loads(line)
        except ValueError:
            return False
        return True

    def _take(self, number: int, line: bytes) -> None:
        try:
            record = json.loads(line)
            id_, custom_id = record["id"], record["custom_id"]
            key = str(id_) if custom_id is None else f"custom_id {custom_id}"
            has_failed = record["error"] is not None or record["response"]["status_code"] != 200
            self._done[key] = has_failed
        except (ValueError, TypeError, KeyError, AttributeError):
            raise self._foreign(number) from None

    def _foreign(self, number: int) -> PromptError:
        return PromptError(
            f"{self.path}: line {number} is no answer of a batch; name a new file, or one that an "
            "earlier run began"
        )

    def _unwritable(self, error: OSError) -> PromptError:
        return PromptError(f"{self.path}: cannot write: {error.strerror or error}")
