"""Responses that later requests may refer to, in memory only and within bounds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from powerinfer.serve.errors import ApiError
from powerinfer.values import JSONObject

__all__ = ["ResponseStore", "StoredResponse"]

MAX_RESPONSES = 1000
MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """A response and the conversation before it.

    Attributes:
        response: object of the API.
        items: input of the conversation, with the output of earlier responses.
        output: items of the response.
        num_bytes: length of all of these as JSON.
    """

    response: Mapping[str, object]
    items: Sequence[JSONObject]
    output: Sequence[JSONObject]
    num_bytes: int


class ResponseStore:
    """Keeps the newest responses; changed on the event loop only, read from any thread."""

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._stored: dict[str, StoredResponse] = {}
        self._num_bytes = 0

    def put(self, name: str, stored: StoredResponse) -> None:
        """Keep a response; the oldest ones leave, or this one if it is too large by itself."""
        self._stored[name] = stored
        self._num_bytes += stored.num_bytes
        while len(self._stored) > self._max_responses or self._num_bytes > self._max_bytes:
            self.delete(next(iter(self._stored)))

    def get(self, name: str, *, param: str | None = None) -> StoredResponse:
        """Find a response.

        Raises:
            ApiError: there is none; 400 if the field `param` of a request names it, else 404.
        """
        stored = self._stored.get(name)
        if stored is None:
            raise ApiError(
                f"there is no response {name[:100]!r}: it was not stored, or newer ones took its "
                "place; send the whole conversation as input",
                status=404 if param is None else 400,
                param=param,
                code="response_not_found" if param is None else "previous_response_not_found",
            )
        return stored

    def delete(self, name: str) -> None:
        """Forget a response.

        Raises:
            ApiError: 404, there is none.
        """
        self._num_bytes -= self.get(name).num_bytes
        del self._stored[name]
