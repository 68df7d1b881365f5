"""Bodies, keys, hosts, places and times: what the server refuses, and how it says so."""

import asyncio
import gzip
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from api_client import Api, events, running_api
from fake_engine import FakeEngine
from patience import PATIENCE_S
from powerinfer.serve.bodies import parse_object
from powerinfer.serve.errors import ApiError
from powerinfer.serve.security import is_loopback

JSON = {"content-type": "application/json"}
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}


def chat(api: Api, **options: Any) -> Any:
    return api.post("/v1/chat/completions", json=HELLO, **options)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "Expecting value"),
        (b"{", "Expecting property name"),
        (b'{"a": 1} x', "Extra data"),
        (b'{"a": "\xff"}', "byte 7 is not UTF-8"),
        (b"\xff\xfe{\x00}\x00", "byte 0 is not UTF-8"),
        (b'{"a": NaN}', "NaN is no number"),
        (b'{"a": -Infinity}', "-Infinity is no number"),
        (b'{"a": 1e999}', "1e999 is too large"),
        (b'{"a": ' + b"9" * 5000 + b"}", "a number has 5000 digits"),
        (b'{"a": 1, "a": 2}', "'a' stands twice"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"a": ' + b"[" * 65 + b"]" * 65 + b"}", "nested more than 64"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested more than 64"),
        (b'{"a":' * 100_000, "nested more than 64"),
    ],
)
def test_bodies_that_are_no_json(body: bytes, reason: str) -> None:
    with running_api() as api:
        answer = api.post("/v1/chat/completions", content=body, headers=JSON)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["code"] == "invalid_json"
        assert reason in error["message"]
        assert len(error["message"]) < 300
        assert chat(api).status_code == 200


def test_compressed_bodies_are_refused_by_name() -> None:
    body = gzip.compress(json.dumps(HELLO).encode())
    with running_api() as api:
        for encoding in ("gzip", "GZIP, identity", "br"):
            headers = {**JSON, "content-encoding": encoding}
            answer = api.post("/v1/chat/completions", content=body, headers=headers)
            assert answer.status_code == 415
            assert answer.headers["accept-encoding"] == "identity"
            error = answer.json()["error"]
            assert error["code"] == "unsupported_content_encoding"
            assert encoding.lower() in error["message"]
        assert chat(api, headers={"content-encoding": "identity"}).status_code == 200


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/chat/completions", HELLO, "messages"),
        ("/v1/completions", {"prompt": "one two three four"}, "prompt"),
        ("/completion", {"prompt": "one two three four"}, "prompt"),
    ],
)
def test_prompts_beyond_the_memory_of_all_texts(
    path: str, fields: dict[str, Any], param: str
) -> None:
    """They fit the context, but not `--kv-tokens`, which the engine finds out."""
    with running_api(fake=FakeEngine(kv_tokens=2)) as api:
        answer = api.post(path, json=fields)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert error["message"] == "the prompt does not fit"


def test_paths_that_are_too_long() -> None:
    with running_api() as api:
        for target in ("/" + "a" * 60_000, "/health?" + "a" * 8192):
            answer = api.get(target)
            assert answer.status_code == 414
            assert answer.json()["error"]["code"] == "uri_too_long"
            assert len(answer.text) < 300
        assert api.get("/health?" + "a" * 8000).status_code == 200


@pytest.mark.parametrize("body", [b"[]", b"null", b"3", b'"text"'])
def test_bodies_that_are_no_object(body: bytes) -> None:
    with pytest.raises(ApiError, match="must be a JSON object"):
        parse_object(body)


def test_bodies_that_are_fine() -> None:
    assert parse_object(b'\xef\xbb\xbf{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}
    deep = b'{"a": ' + b"[" * 60 + b"]" * 60 + b"}"
    assert "a" in parse_object(deep)


def test_bodies_that_are_too_large() -> None:
    with running_api(max_body_bytes=1000) as api:
        declared = chat(api, headers={**JSON, "content-length": "1001"})

        def chunks() -> Iterator[bytes]:
            yield from [b"x" * 600] * 2

        endless = api.post("/v1/completions", content=chunks(), headers=JSON)
        assert chat(api).status_code == 200
    for answer in (declared, endless):
        assert answer.status_code == 413
        assert "1000 bytes" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "Bearer "},
        {"authorization": "Basic secret"},
        {"authorization": "secret"},
        {"authorization": "Bearer secre"},
        {"authorization": "Bearer secret1"},
        {"x-api-key": "wrong"},
    ],
)
def test_wrong_keys(headers: dict[str, str]) -> None:
    with running_api(api_keys=("secret", "other")) as api:
        for answer in (
            chat(api, headers=headers),
            api.get("/v1/models", headers=headers),
            api.get("/metrics", headers=headers),
            api.get("/none", headers=headers),
        ):
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"
            assert answer.headers["www-authenticate"] == "Bearer"
        assert api.get("/health", headers=headers).status_code == 200
        assert not api.fake.submitted


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer secret"},
        {"authorization": "bearer other"},
        {"x-api-key": "other"},
        {"authorization": "Bearer schl\u00fcssel".encode()},
    ],
)
def test_right_keys(headers: dict[str, Any]) -> None:
    with running_api(api_keys=("secret", "other", "schl\u00fcssel")) as api:
        assert chat(api, headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("bound", "host", "status"),
    [
        ("127.0.0.1", "127.0.0.1:8080", 200),
        ("127.0.0.1", "localhost", 200),
        ("127.0.0.1", "LOCALHOST:1", 200),
        ("127.0.0.1", "[::1]:8080", 200),
        ("127.0.0.1", "evil.example:8080", 403),
        ("127.0.0.1", "127.0.0.1.evil.example", 403),
        ("127.0.0.1", "", 403),
        ("localhost", "evil.example", 403),
        ("::1", "evil.example", 403),
        ("0.0.0.0", "evil.example", 200),
        ("box.example", "evil.example", 200),
    ],
)
def test_foreign_hosts(bound: str, host: str, status: int) -> None:
    with running_api(host=bound) as api:
        answer = api.get("/v1/models", headers={"host": host})
    assert answer.status_code == status
    if status == 403:
        assert answer.json()["error"]["code"] == "forbidden_host"


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("example.org", False),
    ],
)
def test_addresses_of_this_machine(host: str, is_ours: bool) -> None:
    assert is_loopback(host) is is_ours


def _held(fake: FakeEngine) -> FakeEngine:
    fake.gate.clear()
    return fake


def _wait_for(condition: Any) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


def test_a_full_queue() -> None:
    fake = _held(FakeEngine())
    with running_api(fake=fake, parallel=1, max_queue=2) as api:
        answers: list[Any] = []
        threads = [threading.Thread(target=lambda: answers.append(chat(api))) for _ in range(3)]
        for thread in threads:
            thread.start()
        _wait_for(lambda: len(fake.submitted) == 3)
        refused = chat(api)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) > 0
        assert refused.json()["error"]["code"] == "queue_full"
        assert "2 others wait" in refused.json()["error"]["message"]
        fake.gate.set()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert [each.status_code for each in answers] == [200] * 3
        assert chat(api).status_code == 200


def test_a_time_limit() -> None:
    slow = ["x"] * 10_000
    with running_api(
        slow, fake=FakeEngine(slow, context_length=20_000), request_timeout_s=0.2
    ) as api:
        whole = chat(api)
        assert whole.status_code == 504
        assert whole.json()["error"]["code"] == "timeout"
        assert whole.headers["x-should-retry"] == "false"
        stream = api.post("/v1/chat/completions", json={**HELLO, "stream": True})
        assert "took longer" in events(stream.text)[-1]
        _wait_for(lambda: not api.fake.has_work)
        assert all(handle.is_cancelled for handle in api.fake.submitted)


def test_new_requests_are_refused_while_the_server_ends() -> None:
    with running_api() as api:
        api.context.drain()
        assert api.get("/health").status_code == 503
        answer = chat(api)
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "shutting_down"


@pytest.mark.parametrize("streams", [False, True])
def test_requests_that_run_when_the_time_is_over_end_with_an_error(streams: bool) -> None:
    fake = _held(FakeEngine())
    answers: list[Any] = []
    with running_api(fake=fake) as api:

        def ask() -> None:
            body = {**HELLO, "stream": streams}
            answers.append(api.post("/v1/chat/completions", json=body))

        async def end() -> bool:
            api.context.end_requests()
            return api.model.engine.num_open == 1

        asking = threading.Thread(target=ask)
        asking.start()
        assert api.portal is not None
        portal = api.portal
        _wait_for(lambda: portal.call(end))
        asking.join(PATIENCE_S)
        fake.gate.set()
    if streams:
        assert "shutting down" in events(answers[0].text)[-1]
    else:
        assert answers[0].status_code == 503


def test_no_tickets_are_left_when_nobody_waits_for_them() -> None:
    """A client that goes away while its request is submitted."""
    from concurrent.futures import ThreadPoolExecutor

    from powerinfer.engine.request import Request
    from powerinfer.sampling.sampling_params import SamplingParams
    from powerinfer.serve.engine_thread import EngineThread
    from powerinfer.serve.metrics import ServerMetrics
    from powerinfer.serve.running_engine import Unread

    class SlowSubmit(FakeEngine):
        def submit(self, request: Request) -> Any:
            time.sleep(0.1)
            return super().submit(request)

    async def go() -> FakeEngine:
        fake = SlowSubmit(["x"] * 500)
        with ThreadPoolExecutor(1) as pool:
            thread = EngineThread(pool)
            thread.start()
            running = thread.add(fake, ServerMetrics().of("model"))
            request = Request(prompt_ids=[1], params=SamplingParams(max_tokens=None))

            async def read() -> None:
                unread = Unread()
                async with running.open(request, unread):
                    while True:
                        await unread.get()

            task = asyncio.create_task(read())
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while not fake.submitted or fake.has_work:
                await asyncio.sleep(0.01)
            thread.close()
            assert thread.join(5)
        return fake

    fake = asyncio.run(go())
    assert fake.submitted[0].is_cancelled
