"""Lines of a request file, and what is wrong with those that cannot be answered."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from powerinfer.errors import PromptError
from powerinfer.serve.bodies import parse_object
from powerinfer.serve.errors import ApiError, bad_request
from powerinfer.values import JSONObject

__all__ = ["URLS", "BatchRequest", "read_requests"]

URLS = ("/v1/chat/completions", "/v1/completions")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRequest:
    """A line of a request file.

    Attributes:
        line: number, from 1.
        custom_id: the caller's name for it; None if there is no readable one.
        error: reason why it cannot be answered; None if it can.
    """

    line: int
    custom_id: str | None = None
    url: str = ""
    body: bytes = b""
    error: ApiError | None = None

    @property
    def id(self) -> str:
        """Id of its line in the answer file."""
        return f"batch_req_{self.line}"

    @property
    def key(self) -> str:
        """Key by which its answer is found, even after lines above it were removed."""
        return self.id if self.custom_id is None else f"custom_id {self.custom_id}"


def read_requests(path: Path) -> list[BatchRequest]:
    """Read all lines of a file except empty ones, in order.

    Raises:
        PromptError: it cannot be read, or two lines have the same `custom_id`.
    """
    requests: list[BatchRequest] = []
    lines: dict[str, int] = {}
    for request in _read(path):
        if request.custom_id is not None:
            before = lines.setdefault(request.custom_id, request.line)
            if before != request.line:
                raise PromptError(
                    f"{path}: lines {before} and {request.line} both have the custom_id "
                    f"{request.custom_id[:60]!r}; give each line one of its own"
                )
        requests.append(request)
    return requests


def _read(path: Path) -> Iterator[BatchRequest]:
    try:
        if not path.is_file():
            # A pipe could not be read again after a kill.
            what = "it is not a regular file" if path.exists() else "no such file"
            raise PromptError(f"{path}: {what}; name a file with one request in each line")
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip(b" \t\r\n\xef\xbb\xbf"):
                    yield _parse(number, line)
    except OSError as error:
        raise PromptError(f"{path}: cannot be read: {error.strerror or error}") from None


def _parse(number: int, line: bytes) -> BatchRequest:
    custom_id = None
    try:
        value = parse_object(line.strip())
        custom_id = _custom_id(value)
        url, body = _url(value), _body(value)
    except ApiError as error:
        return BatchRequest(line=number, custom_id=custom_id, error=error)
    return BatchRequest(line=number, custom_id=custom_id, url=url, body=body)


def _custom_id(value: JSONObject) -> str:
    custom_id = value.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        raise bad_request(
            f"custom_id must be a text that names the line, got {custom_id!r:.60}", "custom_id"
        )
    return custom_id


def _url(value: JSONObject) -> str:
    if value.get("method", "POST") != "POST":
        raise bad_request(f"method must be 'POST', got {value['method']!r:.60}", "method")
    url = value.get("url")
    if url not in URLS:
        raise bad_request(f"url must be {' or '.join(URLS)}, got {url!r:.60}", "url")
    return str(url)


def _body(value: JSONObject) -> bytes:
    body = value.get("body")
    if not isinstance(body, dict):
        raise bad_request(f"body must be an object, got {body!r:.60}", "body")
    if body.get("stream"):
        raise bad_request("the answers of a batch cannot be streamed", "body.stream")
    # Files name other models; the command chooses the one that answers.
    content = {name: each for name, each in body.items() if name != "model"}
    return json.dumps(content, ensure_ascii=False).encode()
