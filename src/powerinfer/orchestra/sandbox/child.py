"""Programs that end: their output is bounded, and they are killed at a limit or when cancelled."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

__all__ = ["Ended", "run_program"]

_GRACE_S = 2.0


@dataclass(frozen=True)
class Ended:
    """What a program left.

    Attributes:
        code: its exit code; negative: the signal that ended it.
        limit: the limit that ended it, "time" or "output"; None if it ended by itself.
    """

    stdout: bytes
    stderr: bytes
    code: int
    limit: str | None = None


async def run_program(
    argv: Sequence[str],
    *,
    stdin: bytes = b"",
    seconds: float,
    output_bytes: int,
    env: Mapping[str, str],
    pass_fds: Sequence[int] = (),
) -> Ended:
    """Run a program in a session of its own, and return when it and its pipes are closed.

    When a limit is passed, and when the caller is cancelled, its process group is killed.

    Args:
        argv: the program's path and its arguments.
        stdin: what it reads.
        seconds: how long it may take.
        output_bytes: that it may write to stdout and stderr together.
        env: its whole environment.
        pass_fds: file descriptors that it inherits, besides 0, 1 and 2.

    Raises:
        OSError: it cannot be started.
    """
    transport, protocol = await _started(argv, output_bytes, dict(env), tuple(pass_fds))
    limit: str | None = "time"
    try:
        _feed(cast("asyncio.WriteTransport", transport.get_pipe_transport(0)), stdin)
        with contextlib.suppress(TimeoutError):
            limit = await asyncio.wait_for(protocol.ended, seconds)
            if limit is None:
                # Its whole group has closed the pipes.
                return protocol.so_far(transport, None)
    finally:
        await _kill(transport, protocol)
    return protocol.so_far(transport, limit)


async def _started(
    argv: Sequence[str], output_bytes: int, env: dict[str, str], pass_fds: tuple[int, ...]
) -> tuple[asyncio.SubprocessTransport, "_Output"]:
    starting = asyncio.ensure_future(
        asyncio.get_running_loop().subprocess_exec(
            lambda: _Output(output_bytes),
            *argv,
            env=env,
            pass_fds=pass_fds,
            start_new_session=True,
            cwd="/",
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        # Cancelled half-way, asyncio would kill the program alone and wait for what it has started.
        await _kill(*await starting)
        raise


def _feed(pipe: asyncio.WriteTransport, data: bytes) -> None:
    """Write all, then close; a program that reads less loses the rest without an error."""
    pipe.write(data)
    pipe.write_eof()


async def _kill(transport: asyncio.SubprocessTransport, protocol: "_Output") -> None:
    """Kill what is left of the process group, and reap its leader."""
    if not protocol.is_over:
        # Its id cannot be another group's: the leader is not reaped, or others keep the pipes open.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(transport.get_pid(), signal.SIGKILL)
        await asyncio.wait([protocol.exited], timeout=_GRACE_S)
    transport.close()


class _Output(asyncio.SubprocessProtocol):
    """Both streams, up to a limit on their sum.

    Attributes:
        exited: done when the program has been reaped.
        ended: done with "output" at the limit, else with None after exit and end of both streams.
    """

    def __init__(self, most: int) -> None:
        self._left = most
        self._streams = {1: bytearray(), 2: bytearray()}
        self._open = {1, 2}
        loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[str | None] = loop.create_future()

    @property
    def is_over(self) -> bool:
        """True if the program has exited and nobody holds its streams."""
        return self.exited.done() and not self._open

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Keep what is within the limit."""
        self._streams[fd] += data[: self._left]
        if len(data) > self._left and not self.ended.done():
            self.ended.set_result("output")
        self._left -= min(self._left, len(data))

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """Note the end of a stream; errors of stdin mean that the program does not read it."""
        self._open.discard(fd)
        self._end()

    def process_exited(self) -> None:
        """Note the exit."""
        if not self.exited.done():
            self.exited.set_result(None)
        self._end()

    def _end(self) -> None:
        if self.is_over and not self.ended.done():
            self.ended.set_result(None)

    def so_far(self, transport: asyncio.SubprocessTransport, limit: str | None) -> Ended:
        """Return what has been read and the exit code; that of SIGKILL if it is not reaped."""
        code = transport.get_returncode()
        return Ended(
            bytes(self._streams[1]),
            bytes(self._streams[2]),
            -signal.SIGKILL if code is None else code,
            limit,
        )
