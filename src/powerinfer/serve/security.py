"""Access to the server: keys, host names and origins; see docs/serving."""

import hmac
import ipaddress
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from powerinfer.serve.context import ServerContext
from powerinfer.serve.errors import ApiError

__all__ = ["Guard", "is_loopback"]

_SENDS_BODY = ("POST", "PUT", "PATCH")
# Longer than any path of the server; more would flood logs.
_LONGEST_TARGET = 8192


class Guard:
    """Checks the head of each request before any route sees it, and counts answers."""

    def __init__(self, app: ASGIApp, context: ServerContext) -> None:
        """Wrap `app`."""
        self._app = app
        self._context = context
        self._keys = [key.encode() for key in context.settings.api_keys]
        self._checks_host = is_loopback(context.settings.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                # Existing paths only: clients must not create metrics without limit.
                path = getattr(scope.get("route"), "path", "other")
                self._context.metrics.requests.labels(path, message["status"]).inc()
            await send(message)

        try:
            self._check(scope)
        except ApiError as error:
            answer = error.response(self._context.error_body(scope["path"]))
            await answer(scope, receive, counted)
            return
        await self._app(scope, receive, counted)

    def _check(self, scope: Scope) -> None:
        length = len(scope.get("raw_path") or scope["path"]) + len(scope["query_string"])
        if length > _LONGEST_TARGET:
            raise ApiError(
                f"the path and query have {length} bytes, at most {_LONGEST_TARGET} are read",
                status=414,
                code="uri_too_long",
            )
        headers = Headers(scope=scope)
        host = headers.get("host")
        if self._checks_host and host is not None and not self._is_here(host):
            # A web page may have bound its own name to this machine's address.
            raise ApiError(
                f"the host {host[:100]!r} is not this machine", status=403, code="forbidden_host"
            )
        if self._keys and not self._is_public(scope["path"]) and not self._has_key(headers):
            raise ApiError(
                "this server needs an API key: send it as `Authorization: Bearer KEY`",
                status=401,
                type="authentication_error",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        if scope["method"] in _SENDS_BODY:
            self._check_origin(headers)
        encoding = headers.get("content-encoding", "").strip().lower()
        if encoding not in ("", "identity"):
            raise ApiError(
                f"the body has the content-encoding {encoding[:60]!r}; send it as plain JSON",
                status=415,
                code="unsupported_content_encoding",
                headers={"Accept-Encoding": "identity"},
            )

    def _check_origin(self, headers: Headers) -> None:
        """Refuse what a web page of another origin can send without a browser's preflight request.

        That is a body of any type but JSON, which `curl -d` sends too.
        """
        media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type == "application/json":
            return
        origin = headers.get("origin")
        allowed = self._context.settings.cors_origins
        if "*" in allowed or (origin is not None and origin in allowed):
            return
        # Browsers name the origin of every POST; the second header is a net below that.
        host = headers.get("host", "").lower()
        is_own = origin is None or origin.lower().partition("://")[2] == host
        if not is_own or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            got = f"got {media_type[:60]!r}" if media_type else "it has none"
            raise ApiError(
                f"a web page of {(origin or 'another origin')[:100]} may not send this: allow that "
                "origin when starting the server, or send the content-type application/json, "
                f"{got}",
                status=403,
                code="forbidden_origin",
            )

    def _is_here(self, host: str) -> bool:
        name = _without_port(host).lower().rstrip(".")
        return name == self._context.settings.host.lower() or is_loopback(name)

    def _is_public(self, path: str) -> bool:
        public = self._context.public_paths
        return path in public or any(
            each != "/" and each.endswith("/") and path.startswith(each) for each in public
        )

    def _has_key(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = [token.strip()] if scheme.lower() == "bearer" else []
        # Anthropic's clients send their key here.
        given += headers.getlist("x-api-key")
        return _any_equal((each.encode("latin-1", "replace") for each in given), self._keys)


def is_loopback(host: str) -> bool:
    """Return whether a name or an address is this machine's own, unreachable from others."""
    name = host.strip("[]").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _any_equal(given: Iterable[bytes], keys: Iterable[bytes]) -> bool:
    """Return whether one is a key, in a time that does not depend on how much of it matches."""
    keys = list(keys)
    return sum(hmac.compare_digest(each, key) for each in given for key in keys) > 0


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0].strip("[")
    return host.rpartition(":")[0] if host.count(":") == 1 else host
