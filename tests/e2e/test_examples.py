"""The example servers: several clients at once, one that hangs up, a clean end."""

import http.client
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from patience import PATIENCE_S
from powerinfer import LLM, SamplingParams

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
PROMPTS = ["Once upon a time", "The little dog", "A robot", "Once upon a time"]


@pytest.fixture(scope="module")
def wanted() -> dict[str, str]:
    """What the embedded model says, alone."""
    with LLM() as llm:
        params = SamplingParams(max_tokens=64, seed=1)
        return {prompt: llm.generate(prompt, params)[0].text for prompt in PROMPTS}


@contextmanager
def running(name: str | Path) -> Iterator[tuple[int, "subprocess.Popen[str]"]]:
    """A server, and the port where it listens; in the end nothing of it is left."""
    command = [sys.executable, str(EXAMPLES / name), "--port", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("listening on port "), process.communicate()
        yield int(line.split()[-1]), process
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def http_port(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[int, "subprocess.Popen[str]"]]:
    """The HTTP server, but that it waits a second for silent clients, not ten."""
    source = (EXAMPLES / "http_server.py").read_text(encoding="utf-8")
    assert source.count("timeout = 10.0") == 1
    copy = tmp_path_factory.mktemp("examples") / "http_server.py"
    copy.write_text(source.replace("timeout = 10.0", "timeout = 1.0"), encoding="utf-8")
    with running(copy) as found:
        yield found


def ask_lines(port: int, prompt: str) -> str:
    """The text that the line server answers."""
    pieces = []
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as client:
        client.sendall(prompt.encode() + b"\n")
        for line in client.makefile("rb"):
            if line == b"\n":
                break
            pieces.append(json.loads(line))
    return "".join(pieces)


def ask_http(port: int, prompt: str) -> str:
    """The text that the HTTP server answers."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    client.request("POST", "/", prompt.encode())
    response = client.getresponse()
    assert response.status == 200
    return response.read().decode()


def hang_up_on_lines(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as client:
        client.sendall(b"Once upon a time\n")
        assert client.recv(1)


def hang_up_on_http(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as client:
        client.sendall(b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nOnce")
        assert client.recv(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("line_server.py", signal.SIGINT),
        pytest.param("http_server.py", signal.SIGINT, marks=pytest.mark.thorough),
        pytest.param("line_server.py", signal.SIGTERM, marks=pytest.mark.thorough),
        ("http_server.py", signal.SIGTERM),
    ],
)
def test_servers_answer_several_clients_and_end(
    name: str, number: signal.Signals, wanted: dict[str, str]
) -> None:
    lines = name == "line_server.py"
    ask, hang_up = (ask_lines, hang_up_on_lines) if lines else (ask_http, hang_up_on_http)
    with running(name) as (port, process):
        with ThreadPoolExecutor(len(PROMPTS)) as pool:
            found = list(pool.map(lambda prompt: ask(port, prompt), PROMPTS))
        assert found == [wanted[prompt] for prompt in PROMPTS]
        hang_up(port)
        assert ask(port, PROMPTS[0]) == wanted[PROMPTS[0]]
        # A client in the middle of a text holds nothing up.
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as idle:
            request = "x\n" if lines else "POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\nx"
            idle.sendall(request.encode())
            assert idle.recv(1)
            process.send_signal(number)
            assert process.wait(PATIENCE_S) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (b"POST / HTTP/1.1\r\nContent-Length: many\r\n\r\n", b"HTTP/1.1 400 "),
        (b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 400 "),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"HTTP/1.1 400 "),
        (b"POST / HTTP/1.1\r\n\r\n", b"HTTP/1.1 400 "),
        # Less than was announced, then nothing more.
        (b"POST / HTTP/1.1\r\nContent-Length: 100\r\n\r\nOnce", b""),
    ],
    ids=["no-number", "empty", "negative", "no-length", "cut-off"],
)
def test_the_http_server_outlives_bad_requests(
    http_port: tuple[int, "subprocess.Popen[str]"], request_: bytes, answer: bytes
) -> None:
    port, _ = http_port
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as client:
        client.sendall(request_)
        client.shutdown(socket.SHUT_WR)
        assert client.recv(len(answer) or 1) == answer


@pytest.mark.slow
def test_the_http_server_reports_nothing_but_lines(
    http_port: tuple[int, "subprocess.Popen[str]"], wanted: dict[str, str]
) -> None:
    """A client that is silent is left after a while; the others are served."""
    port, process = http_port
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as client:
        client.sendall(b"POST / HTTP/1.1\r\nContent-Length: 100\r\n\r\nOnce")
        assert ask_http(port, PROMPTS[0]) == wanted[PROMPTS[0]]
        assert client.recv(1) == b""
    process.terminate()
    assert process.wait(PATIENCE_S) == 0
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()


@pytest.mark.slow
@pytest.mark.parametrize("sent", [b"", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nx"])
def test_the_http_server_does_not_wait_for_clients_that_send_nothing(sent: bytes) -> None:
    """At its end; a client has 10 s otherwise."""
    with running("http_server.py") as (port, process):
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as idle:
            idle.sendall(sent)
            assert ask_http(port, PROMPTS[0])  # the idle one has been taken on
            process.send_signal(signal.SIGINT)
            assert process.wait(8) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_the_line_server_says_that_a_line_is_too_long() -> None:
    with (
        running("line_server.py") as (port, _),
        socket.create_connection(("127.0.0.1", port), PATIENCE_S) as client,
    ):
        client.sendall(b"a" * 300_000)
        client.shutdown(socket.SHUT_WR)
        answer = json.loads(client.makefile("rb").readline())
    assert "longer than 65536 bytes" in answer["error"]


def test_the_first_example_ends_well_if_nobody_reads_on_or_the_model_is_missing() -> None:
    command = [sys.executable, str(EXAMPLES / "generate.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    done = subprocess.run(
        [*command, "no.gguf"], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stderr) == (1, "error: no.gguf: no such file\n")
