"""What clients and signals can do to a server; after each the next request works."""

import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from patience import PATIENCE_S
from serving import Server, receive, serving, wait_for

TIMEOUT_S = 4
ENDLESS: dict[str, Any] = {"ignore_eos": True, "max_tokens": 4000}
FLAGS = ("-c", "4096", "-t", "1", "-np", "4", "-to", str(TIMEOUT_S))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(*FLAGS) as running:
        yield running
        assert running.stop() == 0


@pytest.fixture(autouse=True)
def _works_afterwards(server: Server) -> Iterator[None]:
    yield
    assert server.works()
    assert not [line for line in server.lines if "Traceback" in line]


def is_idle(server: Server) -> bool:
    names = ("powerinfer_requests_running", "powerinfer_requests_waiting")
    return all(server.figure(name) == 0 for name in names)


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has ended a connection; reads what it sent before."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    return True


JSON: dict[str, Any] = {"Content_Type": "application/json"}


@pytest.mark.slow
def test_half_a_body(server: Server) -> None:
    connection = server.send(
        "POST /v1/completions HTTP/1.1", b'{"prompt": "On', Content_Length="1000", **JSON
    )
    answer = receive(connection)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"did not arrive" in answer
    assert is_closed(connection)


def test_half_a_body_of_a_client_that_leaves(server: Server) -> None:
    server.send(
        "POST /v1/completions HTTP/1.1", b'{"prompt": "On', Content_Length="1000", **JSON
    ).close()


@pytest.mark.slow
def test_an_endless_body(server: Server) -> None:
    connection = server.send("POST /v1/completions HTTP/1.1", Transfer_Encoding="chunked", **JSON)
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    with pytest.raises(ConnectionError):
        for _ in range(10_000):
            connection.sendall(chunk)
            time.sleep(0.0005)


def test_a_body_that_says_it_is_too_long(server: Server) -> None:
    connection = server.send("POST /v1/completions HTTP/1.1", Content_Length=str(9 << 20), **JSON)
    assert receive(connection).startswith(b"HTTP/1.1 413 ")


def test_a_body_of_almost_the_largest_size(server: Server) -> None:
    """Its prompt is refused before all of it is tokenized."""
    answer = server.post("/v1/completions", {"prompt": "word " * ((8 << 20) // 5 - 100)})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"prompt": "\xff"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"seed": 1e999}',
        b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}",
        b'{"prompt": {"a": 1}}',
        b'{"prompt": "x", "n": 1e300}',
        b'{"prompt": "x", "max_tokens": 99999999999999999999}',
    ],
    ids=lambda body: body[:20].decode("latin1"),
)
def test_bad_bodies(server: Server, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    answer = server.post("/v1/completions", content=body, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"HELLO\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 200_000,
    ],
    ids=lambda sent: sent[:20].decode("latin1"),
)
def test_what_is_no_http(server: Server, sent: bytes) -> None:
    connection = server.connect()
    connection.sendall(sent)
    answer = receive(connection)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"code": "invalid_http"' in answer
    assert is_closed(connection)


@pytest.mark.slow
def test_heads_that_are_half_sent(server: Server) -> None:
    started = time.monotonic()
    connections = [server.connect() for _ in range(300)]
    for connection in connections:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: loc")
    assert server.works()
    assert all(is_closed(connection) for connection in connections)
    assert time.monotonic() - started >= TIMEOUT_S


@pytest.mark.slow
def test_a_half_sent_head_after_a_whole_request(server: Server) -> None:
    connection = server.send("GET /health HTTP/1.1")
    assert receive(connection).startswith(b"HTTP/1.1 200 ")
    connection.sendall(b"GET /health HT")
    assert is_closed(connection)


@pytest.mark.slow
def test_many_requests_at_once(server: Server) -> None:
    def ask(number: int) -> tuple[int, int]:
        body = {"prompt": "Once", "max_tokens": 1 + number % 5, "ignore_eos": True}
        answer = server.post("/v1/completions", body)
        if answer.status_code == 200:
            assert answer.json()["usage"]["completion_tokens"] == 1 + number % 5
        else:
            assert int(answer.headers["retry-after"]) > 0
        return answer.status_code, number

    with ThreadPoolExecutor(300) as pool:
        statuses = [status for status, _ in pool.map(ask, range(300))]
    assert set(statuses) <= {200, 429}
    # Four run and 64 wait; others may have come when those had their answers.
    assert statuses.count(200) >= 4 + 64


@pytest.mark.parametrize("is_stream", [True, False])
def test_clients_that_leave(server: Server, is_stream: bool) -> None:
    connections = [server.stream(**{**ENDLESS, "stream": is_stream}) for _ in range(4)]
    wait_for(lambda: server.figure("powerinfer_requests_running") == 4)
    for connection in connections:
        connection.close()
    wait_for(lambda: is_idle(server))


def test_clients_that_leave_before_their_turn(server: Server) -> None:
    connections = [server.stream(**ENDLESS) for _ in range(12)]
    wait_for(lambda: server.figure("powerinfer_requests_waiting") >= 8)
    for connection in reversed(connections):
        connection.close()
    wait_for(lambda: is_idle(server))


@pytest.mark.slow
def test_a_reader_that_does_not_read(server: Server) -> None:
    connection = server.stream(**ENDLESS, n=4, logprobs=5)
    wait_for(lambda: server.figure("powerinfer_requests_running") > 0)
    # Another one is not disturbed meanwhile.
    assert server.works()
    wait_for(lambda: is_idle(server))
    received = b""
    with pytest.raises(ConnectionError):
        while True:
            received += connection.recv(1 << 20) or _end()
    assert b"[DONE]" not in received


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_how_events_are_framed(server: Server, version: str) -> None:
    body = json.dumps({"prompt": "Once", "stream": True, "max_tokens": 3, "ignore_eos": True})
    connection = server.send(
        f"POST /v1/completions HTTP/{version}",
        body.encode(),
        Content_Length=str(len(body)),
        Connection="close",
        **JSON,
    )
    head, _, rest = b"".join(iter(lambda: connection.recv(1 << 16), b"")).partition(b"\r\n\r\n")
    assert (b"chunked" in head.lower()) == (version == "1.1")
    events = rest
    if version == "1.1":
        events = b""
        while (size := int(rest.partition(b"\r\n")[0], 16)) > 0:
            part = rest.partition(b"\r\n")[2]
            events, rest = events + part[:size], part[size:].removeprefix(b"\r\n")
        assert rest == b"0\r\n\r\n"
    assert events.endswith(b"data: [DONE]\n\n")
    assert events.count(b"data: {") == 3


def _end() -> bytes:
    raise ConnectionError


def test_figures_tell_of_it(server: Server) -> None:
    assert server.figure("powerinfer_kv_blocks_used") == 0
    assert server.figure("powerinfer_generated_tokens_total") > 0
    assert server.figure("powerinfer_time_to_first_token_seconds_count") > 0
    assert server.figure("powerinfer_token_gap_seconds_count") > 0


def test_prompts_are_in_no_log(server: Server) -> None:
    server.complete("xylophone", max_tokens=2)
    server.post("/v1/completions", {"prompt": "xylophone", "n": "x"})
    assert "xylophone" not in "\n".join(server.lines)
    assert "xylophone" not in server.get("/metrics").text


# A second SIGINT is met below.
@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.thorough)]
)
def test_a_signal_lets_requests_finish(number: int) -> None:
    with serving(*FLAGS) as server:
        answers: list[Any] = []
        asking = threading.Thread(
            target=lambda: answers.append(server.complete(ignore_eos=True, max_tokens=1000))
        )
        asking.start()
        wait_for(lambda: server.figure("powerinfer_requests_running") == 1)
        server.process.send_signal(number)
        wait_for(lambda: server.get("/health").status_code == 503)
        assert server.get("/health").json() == {"status": "shutting down"}
        refused = server.post("/v1/completions", {"prompt": "a"})
        assert refused.status_code == 503
        asking.join(PATIENCE_S)
        assert answers[0]["usage"]["completion_tokens"] == 1000
        code = server.process.wait(PATIENCE_S)
        assert code == (0 if number == signal.SIGTERM else 130)
        assert not [line for line in server.lines if "Traceback" in line]


@pytest.mark.slow
def test_requests_that_take_too_long_end_with_an_error() -> None:
    with serving(*FLAGS, "--drain-timeout", "0.3") as server:
        connection = server.stream(**ENDLESS)
        wait_for(lambda: server.figure("powerinfer_requests_running") == 1)
        server.process.send_signal(signal.SIGTERM)
        received = b""
        while chunk := connection.recv(1 << 16):
            received += chunk
        assert server.process.wait(PATIENCE_S) == 0
    last = [line for line in received.decode().splitlines() if line.startswith("data: ")][-1]
    assert "shutting down" in json.loads(last.removeprefix("data: "))["error"]["message"]
    assert b"[DONE]" not in received


@pytest.mark.slow
def test_a_second_signal_ends_at_once() -> None:
    with serving(*FLAGS) as server:
        connection = server.stream(**ENDLESS)
        answers: list[Any] = []
        body = {"prompt": "a", **ENDLESS}
        asking = threading.Thread(
            target=lambda: answers.append(server.post("/v1/completions", body))
        )
        asking.start()
        wait_for(lambda: server.figure("powerinfer_requests_running") == 2)
        server.process.send_signal(signal.SIGINT)
        wait_for(lambda: server.get("/health").status_code == 503)
        started = time.monotonic()
        assert server.stop(signal.SIGINT) == 130
        assert time.monotonic() - started < 20
        asking.join(PATIENCE_S)
        assert answers[0].status_code == 503
        received = b""
        while chunk := connection.recv(1 << 16):
            received += chunk
        assert b"shutting_down" in received
        assert not [line for line in server.lines if "Traceback" in line]
