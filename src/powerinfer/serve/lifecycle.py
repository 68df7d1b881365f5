"""The life of a server: open the port, load the model, answer, shut down on a signal."""

import asyncio
import contextlib
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import uvicorn

from powerinfer.errors import DeviceError
from powerinfer.serve.app import build_app
from powerinfer.serve.context import ServerContext
from powerinfer.serve.http_protocol import protocol_class
from powerinfer.serve.served_model import ServedModel
from powerinfer.serve.workers import in_daemon_thread

__all__ = ["bind", "run_server"]

_BACKLOG = 2048
_LARGEST_HEAD = 1 << 16
_KEEP_ALIVE_S = 75
_MOST_FILES = 1 << 16
# To send the last events of ended requests and to close connections.
_FAREWELL_S = 2.0
_POLL_S = 0.05


def bind(host: str, port: int) -> socket.socket:
    """Open a port; 0 takes a free one.

    Raises:
        DeviceError: the address does not exist here, or the port is in use.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise DeviceError(
            f"cannot listen on {host!r}: {getattr(error, 'strerror', None) or error}; name an "
            "address of this machine, such as 127.0.0.1 or 0.0.0.0"
        ) from None
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise DeviceError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another address or port"
        ) from None
    listener.settimeout(0)
    return listener


def run_server(
    context: ServerContext,
    listener: socket.socket,
    load: Callable[[], ServedModel] | None = None,
    announce: Callable[[ServedModel], None] = lambda _: None,
) -> int:
    """Serve until a signal arrives; returns its number.

    Args:
        listener: an open port; closed at the end.
        load: loads the only model in a thread, once the port is open and signals are handled.
        announce: called with this model when it is loaded.

    Raises:
        PowerInferError: the model cannot be loaded.
    """
    _allow_many_connections()
    with contextlib.closing(listener):
        return asyncio.run(_serve(context, listener, load, announce))


async def _serve(
    context: ServerContext,
    listener: socket.socket,
    load: Callable[[], ServedModel] | None,
    announce: Callable[[ServedModel], None],
) -> int:
    with _Signals(asyncio.get_running_loop()) as signals:
        server = _Server(_config(context))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        stopping = asyncio.create_task(signals.first.wait())
        try:
            if load is None or await _start(context, load, announce, (serving, stopping)):
                await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
            await _drain(context, signals)
        finally:
            server.should_exit = True
            await serving
    return signals.number


async def _start(
    context: ServerContext,
    load: Callable[[], ServedModel],
    announce: Callable[[ServedModel], None],
    ends: Sequence[asyncio.Task[Any]],
) -> bool:
    """Load the only model; returns False if one of `ends` is done before."""
    loading = in_daemon_thread(load, "loading")
    try:
        await asyncio.wait((loading, *ends), return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            model = loading.result()
            context.start(model)
            announce(model)
        return loading.done()
    finally:
        # The result of a load that ends after the loop is dropped.
        loading.cancel()


async def _drain(context: ServerContext, signals: "_Signals") -> None:
    """Wait for running requests, until the timeout or a second signal ends them."""
    context.drain()
    until = time.monotonic() + context.settings.drain_timeout_s
    while context.num_requests and time.monotonic() < until and not signals.second.is_set():
        await asyncio.sleep(_POLL_S)
    # Clients get an error after a second signal, too; a step ends soon.
    context.end_requests()
    until = time.monotonic() + _FAREWELL_S
    while context.num_requests and time.monotonic() < until:
        await asyncio.sleep(_POLL_S)


def _allow_many_connections() -> None:
    """Raise the limit of open files as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _config(context: ServerContext) -> uvicorn.Config:
    return uvicorn.Config(
        build_app(context),
        http=protocol_class(context.settings.read_timeout_s),
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        # Lower levels log clients' mistakes, which the answers report.
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=_BACKLOG,
        h11_max_incomplete_event_size=_LARGEST_HEAD,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=1,
    )


class _Server(uvicorn.Server):
    """Ignores signals: requests are to finish before the port closes."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


class _Signals:
    """SIGTERM and Ctrl-C: the first asks the server to shut down, a second to do so at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.first, self.second = asyncio.Event(), asyncio.Event()
        self.number: int = signal.SIGTERM

    def __enter__(self) -> "_Signals":
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._receive, number)
        return self

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.remove_signal_handler(number)

    def _receive(self, number: int) -> None:
        if self.first.is_set():
            self.second.set()
            return
        self.number = number
        self.first.set()
