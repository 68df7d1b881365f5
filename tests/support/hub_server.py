"""A server with the Hub's routes, in a thread: listings, files by ranges, and every fault."""

import hashlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

__all__ = [
    "COMMIT",
    "Asked",
    "Hub",
    "HubHandler",
    "Repository",
    "serving",
    "serving_with",
    "settings_of",
]

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_PIECE = 1 << 14


@dataclass
class Repository:
    """A repository.

    Attributes:
        files: content by path.
        commit: that every branch is.
        revisions: that it has.
        in_git: paths of files that are stored in git itself, without a sha256.
        listed: what the listing says instead, by path: sizes and hashes that are wrong.
        is_gated: asks for a token.
    """

    files: dict[str, bytes]
    commit: str = COMMIT
    revisions: tuple[str, ...] = ("main",)
    in_git: tuple[str, ...] = ()
    listed: dict[str, dict[str, object]] = field(default_factory=dict)
    is_gated: bool = False

    def listing(self) -> dict[str, object]:
        """What the Hub answers."""
        return {
            "_id": "1",
            "id": "x",
            "sha": self.commit,
            "siblings": [self._sibling(path) for path in self.files],
        }

    def _sibling(self, path: str) -> dict[str, object]:
        content = self.files[path]
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        row: dict[str, object] = {"rfilename": path, "size": len(content), "blobId": blob}
        if path not in self.in_git:
            sha256 = hashlib.sha256(content).hexdigest()
            row["lfs"] = {"sha256": sha256, "size": len(content), "pointerSize": 135}
        return {**row, **self.listed.get(path, {})}


@dataclass(frozen=True)
class Asked:
    """A request.

    Attributes:
        host: that got it, `hub` or `cdn`.
        path: with the query.
        range: the header; empty if there was none.
        headers: all, with names in lower case.
    """

    host: str
    path: str
    range: str
    headers: Mapping[str, str]


@dataclass
class Hub:
    """What the server has, what it was asked, and what it does wrong.

    Attributes:
        repositories: by ORG/NAME.
        asked: in order.
        cuts: bytes after which the next answers with files end, one for each; None for all.
        answers: status codes of the next requests for files.
        refusals: status and error code of the next answers to requests for listings.
        headers: that files are sent with instead of the right ones.
        ignores_ranges: sends whole files.
        hides_length: sends no sizes.
        redirects: sends files from another port.
        stalls_after: bytes of a file after which it waits for `go_on`.
    """

    repositories: dict[str, Repository] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    cuts: list[int | None] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    refusals: list[tuple[int, str]] = field(default_factory=list)
    headers: dict[str, object] = field(default_factory=dict)
    ignores_ranges: bool = False
    hides_length: bool = False
    redirects: bool = True
    stalls_after: int | None = None
    go_on: threading.Event = field(default_factory=threading.Event)
    endpoint: str = ""
    cdn: str = ""

    def requests_of_files(self) -> list[Asked]:
        """Requests for bytes of files, where they were sent from."""
        host = "cdn" if self.redirects else "hub"
        return [each for each in self.asked if each.host == host and "/api/" not in each.path]

    def requests_of_listings(self) -> list[Asked]:
        """Requests for listings."""
        return [each for each in self.asked if "/api/" in each.path]


class HubHandler(BaseHTTPRequestHandler):
    """The Hub's routes."""

    protocol_version = "HTTP/1.1"
    hub: Hub
    host: str

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Answer one request."""
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.hub.asked.append(Asked(self.host, self.path, headers.get("range", ""), headers))
        self.answer(unquote(urlsplit(self.path).path).strip("/").split("/"))

    def answer(self, parts: list[str]) -> None:
        """Answer a request for a path."""
        if self.host == "hub" and parts[:2] == ["api", "models"]:
            self._list("/".join(parts[2:4]), "/".join(parts[5:]) or "main")
        elif parts[2:3] == ["resolve"]:
            self._resolve("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        else:
            self.refuse(404)

    def _list(self, name: str, revision: str) -> None:
        repository = self.hub.repositories.get(name)
        if self.hub.refusals:
            self.refuse(*self.hub.refusals.pop(0))
        elif repository is None:
            # As the Hub answers strangers: it may be private.
            self.refuse(404 if self._has_token() else 401, "RepoNotFound")
        elif revision not in (*repository.revisions, repository.commit):
            self.refuse(404, "RevisionNotFound")
        else:
            body = json.dumps(repository.listing()).encode()
            self.head(200, {"content-type": "application/json", "content-length": len(body)})
            self.wfile.write(body)

    def _resolve(self, name: str, revision: str, path: str) -> None:
        repository = self.hub.repositories.get(name)
        if repository is None or path not in repository.files:
            self.refuse(404, "EntryNotFound")
        elif self.host == "hub" and repository.is_gated and not self._has_token():
            self.refuse(401, "GatedRepo")
        elif self.hub.answers:
            self.refuse(self.hub.answers.pop(0), extra={"retry-after": 0})
        elif self.host == "hub" and self.hub.redirects:
            self.head(302, {"location": self.hub.cdn + self.path, "content-length": 0})
        else:
            self.send(repository.files[path])

    def send(self, content: bytes) -> None:
        """Send a file or the range of it that is asked for."""
        begin, end = 0, len(content)
        wanted = self.headers.get("range", "")
        headers: dict[str, object] = {"etag": f'"{hashlib.sha256(content).hexdigest()}"'}
        status = 200
        if wanted and not self.hub.ignores_ranges:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            begin, end = int(first), min(int(last) + 1, len(content))
            headers["content-range"] = f"bytes {begin}-{end - 1}/{len(content)}"
            status = 206
        if self.hub.hides_length:
            self.close_connection = True
            headers["connection"] = "close"
        else:
            headers["content-length"] = end - begin
        self.head(status, {**headers, **self.hub.headers})
        self._write(content[begin:end])

    def _write(self, body: bytes) -> None:
        cut = self.hub.cuts.pop(0) if self.hub.cuts else None
        stalls_after = self.hub.stalls_after
        for at in range(0, len(body), _PIECE):
            if cut is not None and at >= cut:
                self.close_connection = True
                return
            if stalls_after is not None and at >= stalls_after:
                self.wfile.flush()
                self.hub.go_on.wait(60)
            try:
                self.wfile.write(body[at : at + _PIECE])
            except OSError:
                self.close_connection = True
                return

    def _has_token(self) -> bool:
        return bool(self.headers.get("authorization"))

    def refuse(
        self, status: int, code: str = "", extra: Mapping[str, object] | None = None
    ) -> None:
        """Answer with a status and nothing else."""
        headers: dict[str, object] = {"content-length": 0, **(extra or {})}
        if code:
            headers["x-error-code"] = code
        self.head(status, headers)

    def head(self, status: int, headers: Mapping[str, object]) -> None:
        """Begin an answer."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()


@contextmanager
def serving() -> Iterator[Hub]:
    """Serve a hub and the host of its files, on two ports of this machine."""
    hub = Hub()
    with serving_with(hub, HubHandler):
        yield hub


@contextmanager
def serving_with(hub: Hub, base: type["HubHandler"]) -> Iterator[None]:
    """Serve with the routes of a handler."""
    servers = []
    for host in ("hub", "cdn"):
        handler = type("Handler", (base,), {"hub": hub, "host": host})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        # Clients that are killed close their connections.
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        servers.append(server)
    hub.endpoint, hub.cdn = (f"http://127.0.0.1:{server.server_address[1]}" for server in servers)
    try:
        yield
    finally:
        hub.go_on.set()
        for server in servers:
            server.shutdown()
            server.server_close()


def settings_of(hub: Hub, folder: Path) -> dict[str, str]:
    """The environment of a process that talks to a hub and keeps everything in one folder."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.upper().startswith(("HF_", "HUGGING")) and "PROXY" not in name.upper()
    }
    return {
        **kept,
        "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(folder / "huggingface"),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
