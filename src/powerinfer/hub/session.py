"""Requests to the Hub: who asks, how long one waits, and what its refusals mean in one line.

The settings are those of `huggingface_hub` (`HF_ENDPOINT`, `HF_TOKEN`, `HF_HUB_OFFLINE`, its
timeouts), the client too, so that proxies and certificates are set once. Its own headers are not
used: to make them it asks the Hub for a list of programs that may have started this one.
"""

import logging
import time
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
    "Retries",
    "UnreachableError",
    "address_of_file",
    "address_of_listing",
    "check_answer",
    "describe",
    "is_offline",
    "library_settings",
    "stream",
    "transport_error",
]

_log = logging.getLogger(__name__)

WAITS_S = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds before each repetition of a request."""

_LONGEST_WAIT_S = 60.0
# Too many requests, and what servers say while something behind them fails.
_PASSING = (408, 429, 500, 502, 503, 504)


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


class UnreachableError(HubError):
    """The server cannot be reached at all; what is in the caches may do."""


class Retries:
    """How often a request is made again; bytes that arrive make it patient again."""

    def __init__(self, what: str, *, advice: str) -> None:
        """Begin.

        Args:
            what: is asked for; begins the message of the error.
            advice: ends it.
        """
        self._what, self._advice = what, advice
        self._number = 0

    def begin_anew(self) -> None:
        """Something has arrived."""
        self._number = 0

    def wait(self, problem: str, seconds: float | None = None) -> None:
        """Wait before the next attempt.

        Args:
            problem: of the last one.
            seconds: that the server asks for; None if it does not.

        Raises:
            HubError: there were enough of them.
        """
        if self._number == len(WAITS_S) or (seconds or 0) > _LONGEST_WAIT_S:
            wish = "" if seconds is None else f" (it asks to wait {seconds:g} s)"
            raise HubError(f"{self._what}: {problem}{wish}; {self._advice}")
        pause = WAITS_S[self._number] if seconds is None else seconds
        self._number += 1
        _log.warning("%s: %s; trying again in %g s", self._what, problem, pause)
        time.sleep(pause)


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
    return f"{_endpoint()}/api/models/{reference.repository}{tail}?blobs=true"


def address_of_file(repository: str, commit: str, path: str) -> str:
    """Where the Hub has a file, or says who has it."""
    return f"{_endpoint()}/{repository}/resolve/{commit}/{quote(path)}"


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
    if token := _token():
        sent["authorization"] = f"Bearer {token}"
    with _client().stream(
        "GET",
        address,
        headers={**sent, **(headers or {})},
        timeout=library_settings().HF_HUB_DOWNLOAD_TIMEOUT,
        follow_redirects=True,
    ) as response:
        yield response


def check_answer(response: Response, reference: Reference, retries: Retries) -> bool:
    """Whether a request succeeded; False after waiting, if it may when it is repeated.

    Args:
        response: to it.
        reference: to the model that it was for.
        retries: of the same request.

    Raises:
        HubError: it was refused, in words that say what to do; or it failed too often.
    """
    status = response.status_code
    if status < 300:
        return True
    if status in _PASSING:
        wanted = str(response.headers.get("retry-after", ""))
        retries.wait(
            f"the server answers {_status(response)}", float(wanted) if wanted.isdigit() else None
        )
        return False
    raise _refusal(response, reference)


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


def _endpoint() -> str:
    endpoint: str = library_settings().ENDPOINT
    try:
        parts = urlsplit(endpoint)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
        is_address = is_address and parts.port != 0  # which reads it
    except ValueError:
        is_address = False
    if not is_address:
        raise HubError(
            f"HF_ENDPOINT is {endpoint!r:.80}, no address; expected one like https://huggingface.co"
        )
    return endpoint


def _token() -> str | None:
    if library_settings().HF_HUB_DISABLE_IMPLICIT_TOKEN:
        return None
    from huggingface_hub import get_token

    token = get_token()
    if token is not None and not (token.isascii() and token.isprintable()):
        raise HubError("the token (HF_TOKEN, or of `hf auth login`) has characters that none has")
    return token


def _status(response: Response) -> str:
    return f"{response.status_code} {response.reason_phrase}".strip()


def _refusal(response: Response, reference: Reference) -> HubError:
    """What a refusal means; the Hub says more in two headers than in the status."""
    status, code = response.status_code, response.headers.get("x-error-code", "")
    page = f"{_endpoint()}/{reference.repository}"
    if code == "RevisionNotFound":
        what = f"it has no revision {reference.revision!r}"
    elif code == "EntryNotFound":
        what = "a file that it lists is not there"
    elif code == "GatedRepo":
        what = f"one has to accept its terms first, at {page}; then {_token_advice()}"
    elif code == "RepoNotFound" or (status == 401 and not _token()):
        # The Hub does not tell strangers which private repositories there are.
        what = f"no such repository at {_endpoint()}, or not a public one: check the name; for a "
        what += f"private or gated one {_token_advice()}"
    elif status in (401, 403):
        what = f"the server refuses access ({_status(response)}): {_token_advice()}"
    elif status == 404:
        what = f"no such repository at {_endpoint()}"
    else:
        what = f"the server answers {_status(response)}"
    return HubError(f"{reference.model}: {what}")


def _token_advice() -> str:
    if _token():
        return "use the token (HF_TOKEN, or of `hf auth login`) of an account that may read it"
    return "set HF_TOKEN to a token of your account, or run `hf auth login`"
