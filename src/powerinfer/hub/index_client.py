"""Requests to package indexes, with pip's settings; refusals as one-line errors.

Python's own HTTP client is enough; the session of `huggingface_hub` has the Hub's settings.
"""

import base64
import os
import re
import ssl
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException, HTTPResponse, HTTPSConnection
from ipaddress import ip_address
from netrc import NetrcParseError, netrc
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit

from powerinfer._version import __version__
from powerinfer.errors import HubError
from powerinfer.hub.client import Response, Retries, TransportError
from powerinfer.hub.pip_settings import PipSettings

__all__ = ["NotThereError", "shown", "stream"]

_PIECE_BYTES = 1 << 16
# Malformed addresses are a ValueError.
_FAILURES = (OSError, HTTPException, ValueError)


class NotThereError(HubError):
    """The server has nothing at an address."""


@contextmanager
def stream(url: str, settings: PipSettings, retries: Retries, **headers: str) -> Iterator[Response]:
    """Send a GET request, again while the server fails; other hosts do not get the password.

    Raises:
        TransportError: the connection failed, perhaps while the body was read.
        HubError: the address may not be asked, or the request was refused or failed too often.
    """
    # Ranges need uncompressed bytes.
    headers |= {"user-agent": f"powerinfer/{__version__}", "accept-encoding": "identity"}
    # None: those of the environment.
    proxies = dict.fromkeys(("http", "https"), settings.proxy) if settings.proxy else None
    opener = urllib.request.build_opener(
        _Connections(settings, url), urllib.request.ProxyHandler(proxies)
    )
    host = urlsplit(url).netloc
    while True:
        with _send(url, headers, opener, settings.timeout_s) as found:
            response = Response(
                getattr(found, "status", None) or 200,  # a file of this machine has none
                " ".join(str(getattr(found, "reason", "")).split()),
                {name.lower(): value for name, value in found.headers.items()},
                _pieces(found),
                # Links to the same host need the password again.
                found.url.replace(f"//{_without_login(host)}/", f"//{host}/", 1),
            )
            if response.status < 300:
                yield response
                return
        if not retries.wait_if_transient(response):
            raise _refusal(response, url)


def shown(url: str) -> str:
    """Write an address without the password in it."""
    return _without_login(url)[:200]


def _send(
    url: str, headers: dict[str, str], opener: urllib.request.OpenerDirector, timeout_s: float
) -> HTTPResponse | HTTPError:
    try:
        request = urllib.request.Request(_without_login(url), headers=headers)
        found: HTTPResponse = opener.open(request, timeout=timeout_s)
    except HTTPError as answer:
        return answer
    except _FAILURES as problem:
        raise _transport_error(problem) from None
    return found


def _pieces(response: HTTPResponse | HTTPError) -> Iterator[bytes]:
    try:
        while piece := response.read(_PIECE_BYTES):
            yield piece
    except _FAILURES as problem:
        raise _transport_error(problem) from None


def _transport_error(problem: Exception) -> TransportError:
    reason = getattr(problem, "reason", problem)
    return TransportError(" ".join(str(reason).split()) or type(problem).__name__)


def _refusal(response: Response, url: str) -> HubError:
    advice = ""
    if response.status in (401, 403):
        advice = "; write USER:PASSWORD@ before the host of the index in pip's configuration"
    error = NotThereError if response.status in (404, 410) else HubError
    return error(f"{shown(url)}: the server answers {response}{advice}")


class _Connections(urllib.request.HTTPSHandler):
    """Asks only addresses that pip would ask, also when a server redirects to them.

    Args:
        url: first address, whose host alone gets the password in it.
    """

    def __init__(self, settings: PipSettings, url: str) -> None:
        self._settings, self._url = settings, url
        cert = settings.cert
        file, folder = (None, cert) if cert and Path(cert).is_dir() else (cert, None)
        try:
            self._checked = ssl.create_default_context(cafile=file, capath=folder)
        except OSError as problem:
            raise HubError(f"pip's cert, {cert}, cannot be read: {problem}") from None
        self._unchecked = ssl.create_default_context()
        self._unchecked.check_hostname, self._unchecked.verify_mode = False, ssl.CERT_NONE
        super().__init__(context=self._checked)

    def https_request(self, request: urllib.request.Request) -> urllib.request.Request:
        """Add the password; refuse an address where anybody could change the answer."""
        parts = urlsplit(request.full_url)
        is_http = parts.scheme == "http"
        may_be_open = _is_here(parts.hostname or "") or self._is_trusted(request)
        if parts.scheme != "https" and not (is_http and may_be_open):
            raise HubError(
                f"{shown(request.full_url)}: not asked, because anybody could have changed the "
                "answer; expected https, or the host among trusted-host of pip's configuration"
            )
        is_first_host = _without_login(self._url).startswith(f"{parts.scheme}://{parts.netloc}/")
        if login := _login(self._url if is_first_host else request.full_url):
            request.add_unredirected_header("authorization", login)
        return self.do_request_(request)

    http_request = ftp_request = https_request

    def https_open(self, request: urllib.request.Request) -> HTTPResponse:
        """Connect; certificates of hosts that the user trusts are not checked."""
        context = self._unchecked if self._is_trusted(request) else self._checked
        return self.do_open(HTTPSConnection, request, context=context)

    def _is_trusted(self, request: urllib.request.Request) -> bool:
        parts = urlsplit(request.full_url)
        names = {parts.hostname, f"{parts.hostname}:{parts.port}"}
        return not names.isdisjoint(self._settings.trusted_hosts)


def _is_here(host: str) -> bool:
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


def _login(url: str) -> str | None:
    """Name and password for a host, of its address or else of the user's .netrc."""
    parts = urlsplit(url)
    name, password = unquote(parts.username or ""), unquote(parts.password or "")
    if parts.username is None:
        path = Path(os.environ.get("NETRC", "~/.netrc"))
        # pip ignores a file that it cannot read, too.
        with suppress(OSError, NetrcParseError, UnicodeDecodeError, RuntimeError):
            logins = netrc(path.expanduser())
            name, _, password = logins.authenticators(parts.hostname or "") or ("", "", "")
    if not name:
        return None
    return f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"


def _without_login(url: str) -> str:
    return re.sub(r"(^|//)[^/]*@", r"\1", url, count=1)
