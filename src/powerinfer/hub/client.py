"""Requests to the Hub: server, token, HTTP client, retries, and refusals as one-line errors.

The settings (`HF_ENDPOINT`, `HF_TOKEN`, `HF_HUB_OFFLINE`, timeouts) and the HTTP client are those
of `huggingface_hub`, so proxies and certificates are set once. Its headers are not used: to build
them, it asks the Hub for a list of programs that may have started this one.
"""

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from powerinfer._version import __version__
from powerinfer.errors import HubError
from powerinfer.hub.names import Reference

__all__ = [
    "Response",
    "Retries",
    "TransportError",
    "endpoint",
    "file_url",
    "is_offline",
    "library_settings",
    "listing_url",
    "stream",
]

_log = logging.getLogger(__name__)

WAITS_S = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds before each retry of a request."""

_LONGEST_WAIT_S = 60.0
# Rate limits, and failures of servers that the one asked relies on.
_TRANSIENT = (408, 429, 500, 502, 503, 504)


class TransportError(Exception):
    """The connection failed, in one line."""


class Response(NamedTuple):
    """The part of an HTTP response used here; `pieces` yields the body as it arrives.

    `url` says where redirects led to, for pages with relative links.
    """

    status: int
    reason: str
    headers: Mapping[str, str]
    pieces: Iterator[bytes]
    url: str = ""

    def __str__(self) -> str:
        return f"{self.status} {self.reason}".strip()


class Retries:
    """Pauses between attempts at one request; raises after the last."""

    def __init__(self, subject: str, *, advice: str) -> None:
        self._subject, self._advice = subject, advice
        self._count = 0

    def reset(self) -> None:
        """Start counting from zero because bytes have arrived."""
        self._count = 0

    def wait(self, problem: str, seconds: float | None = None) -> None:
        """Sleep before the next attempt, for as long as the server asks if it does.

        Raises:
            HubError: that was the last attempt, or the server asks for too long a pause.
        """
        if self._count == len(WAITS_S) or (seconds or 0) > _LONGEST_WAIT_S:
            wish = "" if seconds is None else f" (it asks to wait {seconds:g} s)"
            raise HubError(f"{self._subject}: {problem}{wish}; {self._advice}")
        pause = WAITS_S[self._count] if seconds is None else seconds
        self._count += 1
        _log.warning("%s: %s; trying again in %g s", self._subject, problem, pause)
        time.sleep(pause)

    def wait_if_transient(self, response: Response) -> bool:
        """Sleep before the next attempt if a status is worth one; returns whether it is."""
        if response.status not in _TRANSIENT:
            return False
        wish = response.headers.get("retry-after", "")
        self.wait(f"the server answers {response}", float(wish) if wish.isdigit() else None)
        return True


def library_settings() -> ModuleType:
    """Settings of `huggingface_hub`, which it reads from the environment.

    Raises:
        HubError: it is not installed, or a variable has a value that it cannot read.
    """
    try:
        from huggingface_hub import constants
    except (ImportError, ValueError) as problem:
        raise HubError(f"huggingface_hub cannot be used: {_in_one_line(problem)}") from None
    return constants


def is_offline() -> bool:
    """Read HF_HUB_OFFLINE, which forbids requests."""
    return bool(library_settings().HF_HUB_OFFLINE)


def endpoint() -> str:
    """Address of the server (`HF_ENDPOINT`); raises HubError if it is malformed."""
    found: str = library_settings().ENDPOINT
    with suppress(ValueError):
        parts = urlsplit(found)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return found
    raise HubError(
        f"HF_ENDPOINT is {found!r:.80}, no address; expected one like https://huggingface.co"
    )


def listing_url(reference: Reference) -> str:
    """URL of the files of a revision, with sizes and hashes."""
    revision = reference.revision
    tail = "" if revision is None else f"/revision/{quote(revision, safe='')}"
    return f"{endpoint()}/api/models/{reference.repository}{tail}?blobs=true"


def file_url(repository: str, commit: str, path: str) -> str:
    """URL that has a file, or redirects to it."""
    return f"{endpoint()}/{repository}/resolve/{commit}/{quote(path)}"


@contextmanager
def stream(url: str, reference: Reference, retries: Retries, **headers: str) -> Iterator[Response]:
    """Send a GET request, again while the server fails; redirects do not get the token.

    Raises:
        TransportError: the connection failed, perhaps while the body was read.
        HubError: the request was refused or failed too often, or the token or a proxy is malformed.
    """
    from huggingface_hub import get_session
    from huggingface_hub.errors import HfHubHTTPError

    # Ranges need uncompressed bytes.
    headers |= {"user-agent": f"powerinfer/{__version__}", "accept-encoding": "identity"}
    if token := _token():
        headers["authorization"] = f"Bearer {token}"
    timeout = library_settings().HF_HUB_DOWNLOAD_TIMEOUT
    try:
        client = get_session()
    except (ImportError, ValueError) as problem:
        raise HubError(f"no connection can be made: {_in_one_line(problem)}") from None
    # Base class of the errors of the HTTP client, which is httpx or its successor.
    client_error: type[Exception] = HfHubHTTPError.__bases__[0]
    try:
        while True:
            with client.stream(
                "GET", url, headers=headers, timeout=timeout, follow_redirects=True
            ) as found:
                response = Response(
                    found.status_code, found.reason_phrase, found.headers, found.iter_raw()
                )
                if _succeeded(response, reference, retries):
                    yield response
                    return
    except client_error as problem:
        raise TransportError(_in_one_line(problem)) from None


def _succeeded(response: Response, reference: Reference, retries: Retries) -> bool:
    """Check a status; returns False, after a pause, if the request is worth a retry."""
    if response.status < 300:
        return True
    if retries.wait_if_transient(response):
        return False
    raise HubError(f"{reference.model}: {_refusal(response, reference)}")


def _refusal(response: Response, reference: Reference) -> str:
    """Explain a refusal; a header of the Hub says more than the status."""
    status, code = response.status, response.headers.get("x-error-code", "")
    has_token = bool(_token())
    advice = "set HF_TOKEN to a token of your account, or run `hf auth login`"
    if has_token:
        advice = "use the token (HF_TOKEN or `hf auth login`) of an account that may read it"
    if code == "RevisionNotFound":
        return f"it has no revision {reference.revision!r}"
    if code == "EntryNotFound":
        return "a file that it lists is not there"
    if code == "GatedRepo":
        page = f"{endpoint()}/{reference.repository}"
        return f"one has to accept its terms first, at {page}; then {advice}"
    if code == "RepoNotFound" or (status == 401 and not has_token):
        # The Hub hides from strangers which private repositories exist.
        return (
            f"no such repository at {endpoint()}, or it is not public: check the name; for a "
            f"private or gated one, {advice}"
        )
    if status in (401, 403):
        return f"the server refuses access ({response}): {advice}"
    if status == 404:
        return f"no such repository at {endpoint()}"
    return f"the server answers {response}"


def _token() -> str | None:
    """Token of the user, if there is one; raises HubError if no header can hold it."""
    if library_settings().HF_HUB_DISABLE_IMPLICIT_TOKEN:
        return None
    from huggingface_hub import get_token

    found = get_token()
    if found is not None and not (found.isascii() and found.isprintable()):
        raise HubError(
            "the Hugging Face token contains invalid characters; check HF_TOKEN or run "
            "`hf auth login` again"
        )
    return found


def _in_one_line(problem: Exception) -> str:
    return " ".join(str(problem).split()) or type(problem).__name__
