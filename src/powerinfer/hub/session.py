"""Requests to the Hub: which server, who asks, and by which client.

The settings are those of `huggingface_hub` (`HF_ENDPOINT`, `HF_TOKEN`, `HF_HUB_OFFLINE`, its
timeouts), the client too, so that proxies and certificates are set once. Its own headers are not
used: to make them it asks the Hub for a list of programs that may have started this one.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Protocol
from urllib.parse import quote, urlsplit

from powerinfer._version import __version__
from powerinfer.errors import HubError
from powerinfer.hub.names import Reference

__all__ = [
    "Response",
    "address_of_file",
    "address_of_listing",
    "describe",
    "endpoint",
    "is_offline",
    "library_settings",
    "stream",
    "token",
    "transport_error",
]


class Response(Protocol):
    """What is used of a response of the library's HTTP client, which changes its name."""

    @property
    def status_code(self) -> int:
        """Of HTTP."""

    @property
    def reason_phrase(self) -> str:
        """The status in words."""

    @property
    def headers(self) -> Mapping[str, str]:
        """By name, whatever its case."""

    def iter_raw(self) -> Iterator[bytes]:
        """The body as it arrives."""


class _Client(Protocol):
    def stream(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        timeout: float,
        follow_redirects: bool,
    ) -> AbstractContextManager[Response]: ...


def library_settings() -> ModuleType:
    """The settings of `huggingface_hub`, which reads them from the environment.

    Raises:
        HubError: it cannot read one, or is not installed.
    """
    try:
        from huggingface_hub import constants
    except (ImportError, ValueError) as problem:
        raise HubError(f"huggingface_hub cannot be used: {describe(problem)}") from None
    return constants


def is_offline() -> bool:
    """Whether the user forbids requests (`HF_HUB_OFFLINE`)."""
    return bool(library_settings().HF_HUB_OFFLINE)


def address_of_listing(reference: Reference) -> str:
    """Where the Hub lists the files of a revision, with sizes and hashes."""
    revision = reference.revision
    tail = "" if revision is None else f"/revision/{quote(revision, safe='')}"
    return f"{endpoint()}/api/models/{reference.repository}{tail}?blobs=true"


def address_of_file(repository: str, commit: str, path: str) -> str:
    """Where the Hub has a file, or says who has it."""
    return f"{endpoint()}/{repository}/resolve/{commit}/{quote(path)}"


def transport_error() -> type[Exception]:
    """What the HTTP client raises when a connection fails, whichever client the library has."""
    from huggingface_hub.errors import HfHubHTTPError

    return HfHubHTTPError.__bases__[0]


@contextmanager
def stream(address: str, headers: Mapping[str, str] | None = None) -> Iterator[Response]:
    """Send a GET request; redirects are followed, the token stays with the host it is for.

    Args:
        address: of what to get.
        headers: besides those that say who asks.
    """
    # Compressed bytes have no ranges.
    sent = {"user-agent": f"powerinfer/{__version__}", "accept-encoding": "identity"}
    if found := token():
        sent["authorization"] = f"Bearer {found}"
    with _client().stream(
        "GET",
        address,
        headers={**sent, **(headers or {})},
        timeout=library_settings().HF_HUB_DOWNLOAD_TIMEOUT,
        follow_redirects=True,
    ) as response:
        yield response


def describe(problem: Exception) -> str:
    """What went wrong with a connection, in a few words."""
    return " ".join(str(problem).split()) or type(problem).__name__


def _client() -> "_Client":
    """The library's HTTP client."""
    from huggingface_hub import get_session

    try:
        client: _Client = get_session()
    except (ImportError, ValueError) as problem:
        # A proxy in the environment that is no address, or needs another package.
        raise HubError(f"no connection can be made: {describe(problem)}") from None
    return client


def endpoint() -> str:
    """The server's address (`HF_ENDPOINT`).

    Raises:
        HubError: it is none.
    """
    found: str = library_settings().ENDPOINT
    try:
        parts = urlsplit(found)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
        is_address = is_address and parts.port != 0  # which reads it
    except ValueError:
        is_address = False
    if not is_address:
        raise HubError(
            f"HF_ENDPOINT is {found!r:.80}, no address; expected one like https://huggingface.co"
        )
    return found


def token() -> str | None:
    """The user's token (`HF_TOKEN`, or that of `hf auth login`); None if there is none.

    Raises:
        HubError: no header can hold it.
    """
    if library_settings().HF_HUB_DISABLE_IMPLICIT_TOKEN:
        return None
    from huggingface_hub import get_token

    found = get_token()
    if found is not None and not (found.isascii() and found.isprintable()):
        raise HubError("the token (HF_TOKEN, or of `hf auth login`) has characters that none has")
    return found
