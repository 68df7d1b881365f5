"""Serve one model over HTTP with threads: python examples/http_server.py [MODEL.gguf].

    $ python examples/http_server.py &
    $ curl -N --data 'Once upon a time' http://127.0.0.1:8809/

The body of a POST is a prompt; the answer is streamed as plain text. Every client has a thread, and
their texts are computed side by side. A client that disconnects ends its text. Ctrl-C and SIGTERM
end everything, and the program ends with 0.
"""

import argparse
import contextlib
import signal
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from powerinfer import LLM, PowerInferError, PromptError, SamplingParams

PARAMS = SamplingParams(max_tokens=64, seed=1)
LONGEST_PROMPT = 1 << 20


class Server(ThreadingHTTPServer):
    """Holds the model that all requests use."""

    daemon_threads = False  # the end waits for them; they find the model closed

    def __init__(self, port: int, llm: LLM) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.llm = llm
        self.clients: set[socket.socket] = set()

    def get_request(self) -> tuple[socket.socket, object]:
        """Accept a client."""
        client, address = super().get_request()
        self.clients.add(client)
        return client, address

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        """Disconnect a client."""
        if isinstance(request, socket.socket):
            self.clients.discard(request)
        super().shutdown_request(request)

    def stop_reading(self) -> None:
        """Stop waiting for clients that send nothing, or only part of a request."""
        for client in list(self.clients):
            with contextlib.suppress(OSError):  # it hung up
                client.shutdown(socket.SHUT_RD)


class Handler(BaseHTTPRequestHandler):
    """Answers one client."""

    server: Server
    protocol_version = "HTTP/1.1"
    timeout = 10.0  # for clients that send or read nothing

    def do_POST(self) -> None:
        """Stream the text that continues the body."""
        try:
            self.answer()
        except (OSError, PowerInferError) as error:
            # The client hung up or sent nothing for too long, or the model was closed.
            self.log_error("not finished: %s", error)
            self.close_connection = True

    def answer(self) -> None:
        """Read the prompt, then send the text piece by piece."""
        try:
            stream = self.server.llm.stream(self.read_prompt(), PARAMS)
        except (ValueError, PromptError) as error:
            self.send_error(400, "bad prompt", str(error))
            return
        except PowerInferError as error:
            self.send_error(503, "the server ends", str(error))
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")  # an idle client must not delay the end
        self.end_headers()
        # Leaving the block ends the text, even if the client has hung up.
        with stream:
            for piece in stream:
                self.send_chunk(piece.encode())
        self.send_chunk(b"")

    def read_prompt(self) -> bytes:
        """Read the body; raises ValueError if it is no prompt, OSError if it does not come."""
        length = int(self.headers.get("Content-Length", 0))
        if not 0 < length <= LONGEST_PROMPT:
            raise ValueError("a prompt of 1 byte to 1 MiB is needed")
        body = self.rfile.read(length)
        if len(body) < length:
            raise ConnectionError(f"{len(body)} of {length} bytes came")
        return body

    def send_chunk(self, data: bytes) -> None:
        """Send one part; an empty one is the last."""
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()


def main(model: str | None, port: int) -> None:
    """Serve until a signal comes."""
    with LLM(model) as llm, Server(port, llm) as server:

        def stop(*_: object) -> None:
            # Not in this thread, which serves and would wait for itself.
            threading.Thread(target=server.shutdown).start()

        signal.signal(signal.SIGINT, stop)
        signal.signal(signal.SIGTERM, stop)
        print("listening on port", server.server_address[1], flush=True)
        server.serve_forever()
        # Ends the texts in progress, so that their threads end.
        llm.close()
        server.stop_reading()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--port", type=int, default=8809, help="0 takes any that is free")
    arguments = parser.parse_args()
    main(arguments.model, arguments.port)
