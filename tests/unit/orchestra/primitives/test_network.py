"""`call_api` and `search`: which addresses are asked, and what may go out."""

import asyncio
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerinfer.orchestra.primitives import call_api, search
from powerinfer.orchestra.primitives._addresses import is_public, public_address
from powerinfer.orchestra.primitives.primitive import Observation, Permissions, PrimitiveError
from primitive_calls import call, run


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0"),
        *("100.64.0.1", "192.0.2.1", "224.0.0.1", "240.0.0.1", "255.255.255.255"),
        *("::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "ff02::1", "2001:db8::1"),
        # IPv4 inside: mapped, compatible, NAT64, 6to4, Teredo.
        *("::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::"),
        *("2001:0:7f00:1::", "localhost", "", "1.2.3", "0x7f.1"),
    ],
)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111"])
def test_public_addresses(address: str) -> None:
    assert is_public(address)


@given(st.ip_addresses(v=4, network="127.0.0.0/8") | st.ip_addresses(v=4, network="10.0.0.0/8"))
def test_no_form_of_a_private_address_is_public(address: object) -> None:
    assert not is_public(str(address))
    assert not is_public(f"::ffff:{address}")


def _resolving(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Make names lead to these addresses, a list for each look-up; returns what was looked up."""
    asked: list[str] = []
    left = list(answers)

    def look_up(host: str, port: int, *_: object, **__: object) -> list[object]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in left.pop(0)]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return asked


def test_one_private_address_among_others_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    _resolving(monkeypatch, ["8.8.8.8", "10.0.0.1"], ["8.8.8.8"], [])
    with pytest.raises(PrimitiveError, match=r"has an address that is not public: 10\.0\.0\.1"):
        asyncio.run(public_address("api.example", 443))
    assert asyncio.run(public_address("api.example", 443)) == "8.8.8.8"
    with pytest.raises(PrimitiveError, match="not public"):
        asyncio.run(public_address("api.example", 443))


def _ask(query: str, *hosts: str, **options: bool) -> Observation:
    permissions = Permissions(
        hosts=frozenset(hosts), let_data_leave=options.get("let_data_leave", False)
    )
    made = call(query, permissions=permissions, has_untrusted_input=options.get("untrusted", False))
    return run("call_api", made)


@contextmanager
def _server(answer: bytes, received: list[bytes]) -> Iterator[int]:
    """A server on this machine that answers each connection with the same bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    data = connection.recv(65_536)
                    while data.startswith(b"POST") and not data.endswith(b"}"):
                        data += connection.recv(65_536)
                    received.append(data)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets `call_api` connect to this machine, as if its address were public."""
    pytest.importorskip("httpx", reason="httpx is not installed")
    public = {"127.0.0.1"}
    monkeypatch.setattr("powerinfer.orchestra.primitives._addresses.is_public", public.__contains__)


def _http(status: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join((*lines, "", "")).encode() + body


@pytest.mark.usefixtures("here")
def test_the_address_that_was_checked_is_asked_under_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name that leads elsewhere when it is looked up again (DNS rebinding) is not looked up."""
    looked_up = _resolving(monkeypatch, ["127.0.0.1"])
    received: list[bytes] = []
    with _server(_http("200 OK", b'{"a": 1}'), received) as port:
        host = f"api.example:{port}"
        found = _ask(f'POST http://{host}/v1?q=2#part\n{{"b": 3}}', host)
    assert found == Observation('{"a": 1}', untrusted=True)
    assert looked_up == ["api.example"]
    lines = received[0].decode().split("\r\n")
    assert lines[0] == "POST /v1?q=2 HTTP/1.1"
    assert f"Host: {host}" in lines
    assert lines[-1] == '{"b": 3}'


@pytest.mark.usefixtures("here")
def test_tls_names_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    _resolving(monkeypatch, ["127.0.0.1"])
    received: list[bytes] = []
    with _server(b"no TLS", received) as port:
        host = f"api.example:{port}"
        with pytest.raises(PrimitiveError, match="cannot be asked") as raised:
            _ask(f"https://{host}/", host)
    assert b"api.example" in received[0]
    assert "\n" not in str(raised.value)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (_http("302 Found", b"", "Location: http://10.0.0.1/"), "redirects to 'http://10.0.0.1/'"),
        (_http("200 OK", b"x" * 300_000), "answers with more than 262,144 bytes"),
        (_http("200 OK", b"x", "Content-Encoding: gzip"), "answers in a packed form"),
        (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 90_000, "cannot be asked"),
        (b"nonsense\r\n\r\n", "cannot be asked"),
        (b"", "cannot be asked"),
    ],
)
def test_answers_that_are_refused(
    monkeypatch: pytest.MonkeyPatch, answer: bytes, message: str
) -> None:
    _resolving(monkeypatch, ["127.0.0.1"])
    with _server(answer, []) as port, pytest.raises(PrimitiveError, match=message):
        _ask(f"http://api.example:{port}/", f"api.example:{port}")


@pytest.mark.usefixtures("here")
def test_errors_of_the_host_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    _resolving(monkeypatch, ["127.0.0.1"])
    with _server(_http("404 Not Found", b"no such thing\0"), []) as port:
        found = _ask(f"GET http://api.example:{port}", f"api.example:{port}")
    assert found == Observation("[status 404]\nno such thing\ufffd", ok=False, untrusted=True)


@pytest.mark.usefixtures("here")
def test_a_host_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    _resolving(monkeypatch, ["127.0.0.1"])
    monkeypatch.setattr(call_api, "_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = f"api.example:{silent.getsockname()[1]}"
        with pytest.raises(PrimitiveError, match=r"did not answer within 0.1 s|cannot be asked"):
            _ask(f"http://{host}/", host)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("https://other.example/", "the host other.example is not allowed; allowed: api.example"),
        ("https://api.example:8443/", "the host api.example:8443 is not allowed"),
        ("https://api.example.evil.example/", "is not allowed"),
        ("https://api.example@evil.example/", "not an address of http or https"),
        ("file:///etc/passwd", "not an address of http or https"),
        ("ftp://api.example/", "not an address of http or https"),
        ("https://[::1", "not an address"),
        ("https://api.example:99999/", "not an address"),
        ("https://a%00.example/", "not an address"),
        ("https://" + "a" * 99 + ".example", "not an address"),
        ("api.example", "not an address of http or https"),
        ("", "expected 'URL', 'GET URL' or 'POST URL BODY'"),
    ],
)
def test_queries_that_ask_nobody(monkeypatch: pytest.MonkeyPatch, query: str, message: str) -> None:
    asked = _resolving(monkeypatch)
    with pytest.raises(PrimitiveError, match=message):
        _ask(query, "api.example")
    assert asked == []


def test_an_allowed_name_that_leads_into_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    _resolving(monkeypatch, ["169.254.169.254"])
    with pytest.raises(PrimitiveError, match=r"api.example has an address that is not public"):
        _ask("https://api.example/latest/meta-data", "api.example")


@pytest.mark.parametrize("name", ["call_api", "search"])
def test_data_from_untrusted_text_stay_here(name: str) -> None:
    made = call("https://api.example/?q=secret", has_untrusted_input=True)
    with pytest.raises(PrimitiveError, match=f"{name} may not carry data out of the machine"):
        run(name, made)
    with pytest.raises(PrimitiveError, match="is not allowed"):
        _ask("https://api.example/", untrusted=True, let_data_leave=True)


_ECHO = (
    sys.executable,
    "-I",
    "-S",
    "-c",
    "import os, sys; print(sys.argv[1:], 'KEY' in os.environ)",
)


def _search(query: str, **commands: tuple[str, ...]) -> Observation:
    return run("search", call(query, permissions=Permissions(commands=commands)))


def test_words_are_one_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "sesame")
    assert (
        _search("--config=x $(id); 'a'\n b", web=_ECHO).text
        == """["config=x $(id); 'a' b"] False"""
    )
    named = (*_ECHO, "--words={query}", "--json")
    assert _search("other: a b", web=_ECHO, other=named).text == "['--words=a b', '--json'] False"
    assert _search("a: b", web=_ECHO).text == "['a: b'] False"


def _program(code: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", code)


def test_commands_that_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PrimitiveError, match="no search command is configured"):
        _search("words")
    with pytest.raises(PrimitiveError, match="search has no words"):
        _search("web: --", web=_ECHO)
    with pytest.raises(PrimitiveError, match="the command of web cannot be started: No such file"):
        _search("words", web=("/no/such/program",))
    with pytest.raises(PrimitiveError, match="the command of web ended with 1: no luck"):
        _search("words", web=_program("import sys; sys.exit('no luck')"))
    monkeypatch.setattr(search, "_SECONDS", 0.2)
    with pytest.raises(PrimitiveError, match=r"the command of web takes more than 0\.2 s"):
        _search("words", web=_program("while True: pass"))


def test_a_flood_of_results_is_cut() -> None:
    found = _search("words", web=_program("while True: print('x' * 9999)"))
    assert len(found.text) < 9_000
    assert found.untrusted
