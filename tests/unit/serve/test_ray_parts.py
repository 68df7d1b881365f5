"""What decides on Ray, without Ray: keys of prompts, choice of replicas, lost replicas."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from importlib.util import find_spec
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerinfer.errors import UnsupportedError
from powerinfer.serve.errors import ApiError, error_body
from powerinfer.serve.ray import RayOptions, build
from powerinfer.serve.ray.prefix import preferred, prefix_key
from powerinfer.serve.ray.relay import relay


class LostError(Exception):
    pass


def key(**fields: Any) -> str | None:
    return prefix_key(json.dumps(fields).encode())


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def test_later_turns_have_the_key_of_the_first() -> None:
    first = [message("system", "Be brief."), message("user", "Hello")]
    later = [*first, message("assistant", "Hi"), message("user", "Tell me more")]
    assert key(messages=first) == key(messages=later)
    assert key(messages=first) != key(messages=[message("user", "Hello")])


def test_a_long_common_beginning_is_enough() -> None:
    system = message("system", "Rules. " * 200)
    one, other = ([system, message("user", text)] for text in ("Hello", "Bye"))
    assert key(messages=one) == key(messages=other)
    assert key(prompt="a" * 600 + "b") == key(prompt="a" * 600 + "c")
    assert key(prompt=list(range(900))) == key(prompt=list(range(800)))
    assert key(prompt="b") != key(prompt="c")


@given(st.one_of(st.binary(), st.from_regex(rb'\A\{"(messages|prompt)":[^}]{0,9}\}\Z')))
def test_any_body_has_a_key_or_none(body: bytes) -> None:
    found = prefix_key(body)
    assert found is None or len(found) == 64


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"{", b'{"input": "a"}', b"[" * 100_000])
def test_bodies_without_a_prompt_have_no_key(body: bytes) -> None:
    assert prefix_key(body) is None


@given(names=st.sets(st.text(min_size=1), min_size=2, max_size=8), key=st.text())
def test_a_replica_that_goes_moves_its_own_keys_only(names: set[str], key: str) -> None:
    order = preferred(key, names)
    assert set(order) == names
    for gone in names:
        assert preferred(key, names - {gone}) == [name for name in order if name != gone]


def test_keys_are_spread_over_replicas() -> None:
    firsts = [preferred(str(number), "abcd")[0] for number in range(400)]
    assert all(firsts.count(name) > 60 for name in "abcd")


START = {"type": "http.response.start", "status": 200}
EVENTS = {**START, "headers": [(b"content-type", b"text/event-stream; charset=utf-8")]}
WHOLE = {**START, "headers": [(b"content-type", b"application/json")]}


def body_of(text: str) -> dict[str, Any]:
    return {"type": "http.response.body", "body": text.encode()}


def relayed(
    *answers: list[Any], error_body: Callable[[ApiError], dict[str, Any]] = error_body
) -> tuple[int, str]:
    """What a client gets if replicas answer so, one after the other; "lost" is a death."""
    waiting = iter(answers)

    async def ask() -> AsyncIterator[Any]:
        for each in next(waiting):
            if each == "lost":
                raise LostError
            yield each

    async def run() -> tuple[int, str]:
        response = await relay(ask, error_body, lambda: asyncio.sleep(0), (LostError,))
        chunks = [cast("bytes", chunk) async for chunk in response.body_iterator]
        return response.status_code, b"".join(chunks).decode()

    return asyncio.run(run())


def test_a_stream_that_is_lost_ends_with_an_error_event() -> None:
    status, text = relayed([EVENTS, body_of("data: 1\n\n"), "lost"])
    assert status == 200
    first, last = text.strip().split("\n\n")
    assert first == "data: 1"
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "replica_lost"


def test_an_api_whose_errors_have_a_type_gets_a_named_event() -> None:
    def shaped(error: ApiError) -> dict[str, Any]:
        return {"type": "error", "error": {"message": error.message}}

    _, text = relayed([EVENTS, body_of("data: 1\n\n"), "lost"], error_body=shaped)
    assert text.split("\n\n")[1].startswith('event: error\ndata: {"type": "error"')


@pytest.mark.parametrize("before", [["lost"], [EVENTS, "lost"]])
def test_what_was_not_begun_is_asked_again(before: list[Any]) -> None:
    assert relayed(before, before, [WHOLE, body_of("{}")]) == (200, "{}")


def test_it_is_not_asked_forever() -> None:
    with pytest.raises(ApiError) as raised:
        relayed(["lost"], ["lost"], ["lost"], [WHOLE, body_of("{}")])
    assert raised.value.status == 503


def test_half_a_body_without_events_is_no_answer() -> None:
    with pytest.raises(LostError):
        relayed([WHOLE, body_of("{"), "lost"])


def test_a_stream_that_ends_is_passed_on_as_it_is() -> None:
    parts = [body_of("data: 1\n\n"), body_of("data: [DONE]\n\n"), body_of("")]
    assert relayed([EVENTS, *parts]) == (200, "data: 1\n\ndata: [DONE]\n\n")


@pytest.mark.skipif(find_spec("ray") is not None, reason="ray is installed here")
def test_without_ray_an_error_says_how_to_install_it() -> None:
    with pytest.raises(UnsupportedError, match="install the extra ray"):
        build(RayOptions())
