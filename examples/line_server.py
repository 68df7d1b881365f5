"""Serve one model to several clients with asyncio: python examples/line_server.py [MODEL.gguf].

Each line that a client sends is a prompt. The answer comes back piece by piece, as one JSON string
per line, with an empty line after the last:

    $ python examples/line_server.py &
    $ echo 'Once upon a time' | nc -N 127.0.0.1 8808

Texts of clients are computed side by side, and the loop serves them all meanwhile. A client that
disconnects ends its text. Ctrl-C and SIGTERM end everything, and the program ends with 0.
"""

import argparse
import asyncio
import contextlib
import json
import signal

from powerinfer import LLM, PowerInferError, SamplingParams

PARAMS = SamplingParams(max_tokens=64, seed=1)
LONGEST_LINE = 1 << 16
PATIENCE_S = 5.0  # for a client that goes on sending after an error


class LineServer:
    """Answers the lines of its clients."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self.clients: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Begin to serve a client."""
        task = asyncio.create_task(self.serve(reader, writer))
        self.clients[task] = writer
        task.add_done_callback(self.clients.pop)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one client until it hangs up."""
        try:
            while line := await reader.readline():
                await answer(self.llm, line.rstrip(b"\r\n"), writer)
        except ConnectionError:
            pass  # it hung up
        except ValueError:  # the rest of the line would look like the next one
            with contextlib.suppress(ConnectionError):
                await refuse(f"a line is longer than {LONGEST_LINE} bytes", writer)
                await drop_rest(reader, writer)
        finally:
            writer.close()

    async def close(self) -> None:
        """End all texts, hang up, and wait until no client is left."""
        # In a thread, because it waits for the current step.
        await asyncio.to_thread(self.llm.close)
        for writer in self.clients.values():
            writer.close()
        await asyncio.gather(*self.clients)


async def answer(llm: LLM, prompt: bytes, writer: asyncio.StreamWriter) -> None:
    """Stream the text of one prompt; an error is one line as well."""
    try:
        async with llm.astream(prompt, PARAMS) as stream:
            async for piece in stream:
                writer.write(json.dumps(piece).encode() + b"\n")
                await writer.drain()  # fails if the client is gone, which ends the text
    except PowerInferError as error:
        await refuse(str(error), writer)
        return
    writer.write(b"\n")
    await writer.drain()


async def refuse(why: str, writer: asyncio.StreamWriter) -> None:
    """Send an error as one line, and the empty line."""
    writer.write(json.dumps({"error": why}).encode() + b"\n\n")
    await writer.drain()


async def drop_rest(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read what a client still sends; hanging up at once would lose it the error."""
    writer.write_eof()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            while await reader.read(LONGEST_LINE):
                pass


async def main(model: str | None, port: int) -> None:
    """Serve until a signal comes."""
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    with LLM(model) as llm:
        clients = LineServer(llm)
        server = await asyncio.start_server(clients.connect, "127.0.0.1", port, limit=LONGEST_LINE)
        print("listening on port", server.sockets[0].getsockname()[1], flush=True)
        await stopped.wait()
        server.close()
        await clients.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--port", type=int, default=8808, help="0 takes any that is free")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.model, arguments.port))
