"""A server in a process of its own, and raw connections to it, for tests of the whole."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from patience import PATIENCE_S

__all__ = ["Server", "receive", "serving", "wait_for"]


def wait_for(condition: Callable[[], Any]) -> None:
    """Wait until something is so."""
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def receive(connection: socket.socket) -> bytes:
    """An answer with a length, whole."""
    received = b""
    length = -1
    while len(received) != length:
        chunk = connection.recv(1 << 16)
        assert chunk, received
        received += chunk
        head, end, _ = received.partition(b"\r\n\r\n")
        found = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        if end and found:
            length = len(head) + len(end) + int(found[1])
    return received


@dataclass
class Server:
    """A running server.

    Attributes:
        process: of the server.
        port: of TCP.
        lines: of its stderr.
    """

    process: "subprocess.Popen[str]"
    port: int = 0
    lines: list[str] = field(default_factory=list)
    _connections: list[socket.socket] = field(default_factory=list)
    # Connections that are used once: the pool of httpcore may close an idle one that another thread
    # has just been given.
    _client: httpx.Client = field(
        default_factory=lambda: httpx.Client(timeout=PATIENCE_S, headers={"Connection": "close"})
    )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return self._client.post(self.url + path, json=body, **options)

    def get(self, path: str) -> httpx.Response:
        return self._client.get(self.url + path)

    def complete(self, prompt: Any = "Once", **fields: Any) -> Any:
        """A completion, which must succeed."""
        answer = self.post("/v1/completions", {"prompt": prompt, **fields})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def works(self) -> bool:
        """Whether it answers a request as if nothing had happened."""
        return bool(self.complete(max_tokens=4)["usage"]["completion_tokens"])

    def figure(self, name: str) -> float:
        """A value of `/metrics`."""
        found = re.search(rf"^{name} (\S+)$", self.get("/metrics").text, re.MULTILINE)
        assert found is not None, name
        return float(found[1])

    def connect(self) -> socket.socket:
        """A connection, which `disconnect` closes."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)
        self._connections.append(connection)
        return connection

    def disconnect(self) -> None:
        """Close all connections that were made."""
        while self._connections:
            self._connections.pop().close()

    def close(self) -> None:
        """Close everything of ours."""
        self.disconnect()
        self._client.close()

    def send(self, head: str, body: bytes = b"", **headers: str) -> socket.socket:
        """A connection on which a request was sent, whole or not."""
        fields = (f"{name.replace('_', '-')}: {value}" for name, value in headers.items())
        lines = [head, "Host: localhost", *fields]
        connection = self.connect()
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        return connection

    def stream(self, path: str = "/v1/completions", **fields: Any) -> socket.socket:
        """A connection on which an endless answer comes."""
        body = json.dumps({"prompt": "Once", "stream": True, "ignore_eos": True, **fields}).encode()
        return self.send(
            f"POST {path} HTTP/1.1",
            body,
            Content_Type="application/json",
            Content_Length=str(len(body)),
        )

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End it by a signal; returns its exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)

    def read_lines(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip())
            found = re.search(r"https?://\S+:(\d+) is open", line)
            if found is not None:
                self.port = int(found[1])


@contextmanager
def serving(
    *arguments: str, command: tuple[str, ...] = (), load_s: float = 0.0
) -> Iterator[Server]:
    """A server on a free port, killed at the end.

    Args:
        *arguments: of `powerinfer serve`.
        command: instead of it.
        load_s: how long `fake_server` is to load; this does not wait for it. Otherwise it waits
            until the model is loaded.
    """
    program = command or (sys.executable, "-m", "powerinfer", "serve")
    with subprocess.Popen(
        [*program, "--port", "0", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "LOAD_S": str(load_s)},
    ) as process:
        server = Server(process)
        reader = threading.Thread(target=server.read_lines, daemon=True)
        reader.start()
        try:
            wait_for(lambda: server.port or process.poll() is not None)
            assert server.port, "\n".join(server.lines)
            if not load_s:
                wait_for(lambda: server.get("/health").status_code == 200)
            yield server
        finally:
            server.close()
            process.kill()
            process.wait(PATIENCE_S)
            reader.join(PATIENCE_S)
