"""HTTP on one connection: uvicorn's protocol, with timeouts for clients that stop halfway."""

import asyncio
import json
import socket
from typing import cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from powerinfer.serve.errors import bad_request, error_body
from powerinfer.serve.responding import SEND_PART

__all__ = ["protocol_class"]

# Unread data kept by the kernel: a client that reads nothing is noticed after little text.
_SEND_BUFFER_BYTES = 1 << 16


class _LimitedProtocol(H11Protocol):
    """Closes connections that do not finish a request head, or do not read their answer."""

    timeout_s = 60.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start waiting for a request head."""
        super().connection_made(transport)
        self.app_state = {**self.app_state, SEND_PART: self._send_part}
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._discard_timer: asyncio.TimerHandle | None = None
        connection = cast("socket.socket | None", transport.get_extra_info("socket"))
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        """Parse data, and watch for an incomplete head."""
        super().data_received(data)
        self._watch_head()

    def on_response_complete(self) -> None:
        """Give an unread body, which may be endless, some time to end."""
        super().on_response_complete()
        if not self.transport.is_closing() and self.conn.their_state is h11.SEND_BODY:
            self._discard_timer = self._in_time(self._discard_timer)
        self._watch_head()

    def pause_writing(self) -> None:
        """Start the timer of a client that does not read."""
        super().pause_writing()
        self._write_timer = self._in_time(self._write_timer)

    def resume_writing(self) -> None:
        """Stop the timer: the client reads again."""
        super().resume_writing()
        _cancel(self._write_timer)
        self._write_timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers."""
        for timer in (self._head_timer, self._write_timer, self._discard_timer):
            _cancel(timer)
        super().connection_lost(exc)

    async def _send_part(self, part: bytes) -> None:
        """Send a part of a body that has begun and goes on; `part` is not empty.

        Framed as h11 frames it, without its checks and the layers around the application, which
        are a good part of the calls that a streamed token takes.
        """
        if self.flow.write_paused:
            await self.flow.drain()
        if self.transport.is_closing():
            return
        is_chunked = self.scope["http_version"] >= "1.1"
        self.transport.write(b"%x\r\n%b\r\n" % (len(part), part) if is_chunked else part)

    def send_400_response(self, msg: str) -> None:
        """Refuse invalid HTTP, in the form of all errors."""
        content = json.dumps(error_body(bad_request(msg, code="invalid_http"))).encode()
        headers = [
            ("content-type", "application/json"),
            ("content-length", str(len(content))),
            ("connection", "close"),
        ]
        try:
            for event in (
                h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
                h11.Data(data=content),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:
            # An answer has begun already.
            pass
        self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Ignore requests for WebSockets; they are answered as HTTP."""

    def _watch_head(self) -> None:
        is_idle = self.conn.their_state is h11.IDLE
        has_begun = self.cycle is None or bool(self.conn.trailing_data[0])
        if is_idle and has_begun:
            self._head_timer = self._head_timer or self._in_time(None)
        else:
            _cancel(self._head_timer)
            self._head_timer = None
        if self.conn.their_state is not h11.SEND_BODY:
            _cancel(self._discard_timer)
            self._discard_timer = None

    def _in_time(self, timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle:
        """Abort the connection unless the timer is cancelled; unsent data are lost then."""
        _cancel(timer)
        return self.loop.call_later(self.timeout_s, self.transport.abort)


def protocol_class(timeout_s: float) -> type[asyncio.Protocol]:
    """Create a protocol class with a timeout, which uvicorn instantiates."""
    return type("LimitedProtocol", (_LimitedProtocol,), {"timeout_s": timeout_s})


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
