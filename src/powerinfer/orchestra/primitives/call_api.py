"""Primitive `call_api`: one request to a host that the user allows, without redirects."""

import asyncio
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from powerinfer._extras import how_to_install
from powerinfer.orchestra.primitives._addresses import public_address
from powerinfer.orchestra.primitives._leaving import check_may_leave
from powerinfer.orchestra.primitives._messages import clip
from powerinfer.orchestra.primitives.primitive import (
    Call,
    Observation,
    Primitive,
    PrimitiveError,
)

if TYPE_CHECKING:
    import httpx

__all__ = ["PRIMITIVE"]

_SECONDS = 15.0
_MOST_BYTES = 256 << 10
_LONGEST = 8_000
_FORM = re.compile(r"\s*(?:(?P<method>GET|POST)\s+)?(?P<url>\S{1,2000})\s*(?P<body>.*)", re.DOTALL)
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class _Request:
    """One request: its parts, and the address to connect to once it is known."""

    method: str
    scheme: str
    host: str
    port: int
    target: str
    body: bytes

    @property
    def authority(self) -> str:
        """Host with its port, where that is not the scheme's own."""
        return self.host if self.port == _PORTS[self.scheme] else f"{self.host}:{self.port}"


async def _run(call: Call) -> Observation:
    check_may_leave(call, PRIMITIVE.name)
    request = _request(call.query)
    if request.authority not in call.permissions.hosts:
        allowed = ", ".join(sorted(call.permissions.hosts))[:200] or "none"
        raise PrimitiveError(
            f"the host {request.authority[:80]} is not allowed; allowed: {allowed}"
        )
    try:
        async with asyncio.timeout(_SECONDS):
            return await _answer(request, await public_address(request.host, request.port))
    except TimeoutError:
        raise PrimitiveError(f"{request.authority} did not answer within {_SECONDS:g} s") from None


def _request(query: str) -> _Request:
    """Read `URL`, `GET URL` or `POST URL` with a body after it."""
    form = _FORM.fullmatch(query)
    if form is None:
        raise PrimitiveError("expected 'URL', 'GET URL' or 'POST URL BODY'")
    try:
        parts = urlsplit(form["url"])
        host, port = (parts.hostname or "").encode("idna").decode(), parts.port
    except ValueError:
        raise PrimitiveError(f"not an address: {form['url'][:80]!r}") from None
    if parts.scheme not in _PORTS or not host or "@" in parts.netloc or "%" in host:
        raise PrimitiveError(f"not an address of http or https: {form['url'][:80]!r}")
    method = form["method"] or ("POST" if form["body"].strip() else "GET")
    body = form["body"].strip().encode("utf-8", "replace") if method == "POST" else b""
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return _Request(method, parts.scheme, host, port or _PORTS[parts.scheme], target, body)


async def _answer(request: _Request, address: str) -> Observation:
    try:
        import httpx
    except ImportError:
        raise PrimitiveError("httpx is not installed", remedy=how_to_install("orchestra")) from None
    shown = f"[{address}]" if ":" in address else address
    headers = {
        "Host": request.authority,
        "User-Agent": "powerinfer",
        "Accept": "application/json, text/*",
        # What is packed could unpack to any size.
        "Accept-Encoding": "identity",
    }
    if request.body:
        headers["Content-Type"] = "application/json"
    # No proxies, netrc or cookies of this machine. The address is the one that was checked; the
    # certificate must be that of the name.
    client = httpx.AsyncClient(trust_env=False, follow_redirects=False, timeout=_SECONDS)
    try:
        async with (
            client,
            client.stream(
                request.method,
                f"{request.scheme}://{shown}:{request.port}{request.target}",
                headers=headers,
                content=request.body,
                extensions={"sni_hostname": request.host},
            ) as response,
        ):
            return _told(request, response, await _body(request, response))
    except httpx.HTTPError as error:
        why = str(error) or type(error).__name__
        raise PrimitiveError(f"{request.authority} cannot be asked: {why[:200]}") from None


async def _body(request: _Request, response: "httpx.Response") -> bytes:
    if response.headers.get("content-encoding", "identity") != "identity":
        raise PrimitiveError(
            f"{request.authority} answers in a packed form, which was not asked for"
        )
    data = bytearray()
    async for piece in response.aiter_raw():
        data += piece
        if len(data) > _MOST_BYTES:
            raise PrimitiveError(
                f"{request.authority} answers with more than {_MOST_BYTES:,} bytes"
            )
    return bytes(data)


def _told(request: _Request, response: "httpx.Response", body: bytes) -> Observation:
    status = response.status_code
    if 300 <= status < 400:
        where = response.headers.get("location", "")[:200]
        raise PrimitiveError(f"{request.authority} redirects to {where!r}, which is not followed")
    text = body.decode(errors="replace").replace("\0", "\ufffd").strip()
    if status >= 400:
        return Observation(clip(f"[status {status}]\n{text}", _LONGEST), ok=False, untrusted=True)
    return Observation(clip(text, _LONGEST) or f"[status {status}]", untrusted=True)


PRIMITIVE = Primitive(
    name="call_api",
    summary="one request over the network to an allowed host: 'URL', 'GET URL' or 'POST URL BODY'",
    needs_model=False,
    leaves_machine=True,
    run=_run,
)
