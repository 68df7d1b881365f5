"""What web pages of other origins may ask of the server, and what anybody else may send."""

import json
from typing import Any

import pytest

from api_client import Api, running_api

HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
OTHER_TYPES = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None)
ANSWERING = [
    ("/v1/chat/completions", HELLO),
    ("/completion", {"prompt": "Hi"}),
    ("/api/chat", {**HELLO, "model": "test-model"}),
    ("/api/generate", {"prompt": "Hi", "model": "test-model"}),
]


@pytest.mark.parametrize("media_type", OTHER_TYPES)
def test_bodies_of_any_type_are_read_as_json(media_type: str | None) -> None:
    """As `curl -d` sends them, and pages of the server's own origin."""
    headers = {} if media_type is None else {"content-type": media_type}
    own = {"origin": "http://localhost:8080", "host": "localhost:8080"}
    with running_api() as api:
        for path, body in ANSWERING:
            content = json.dumps(body).encode()
            for more in ({}, own, {**own, "sec-fetch-site": "same-origin"}):
                answer = api.post(path, content=content, headers={**headers, **more})
                assert answer.status_code == 200
        assert api.post("/api/chat", content=b"a=b", headers=headers).status_code == 400


@pytest.mark.parametrize("media_type", OTHER_TYPES)
@pytest.mark.parametrize(
    "page",
    [
        {"origin": "https://a.example"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://localhost:3000", "host": "localhost:8080"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site", "origin": "http://localhost", "host": "localhost"},
    ],
)
def test_pages_of_other_origins_need_a_preflight(
    media_type: str | None, page: dict[str, str]
) -> None:
    headers = page if media_type is None else {**page, "content-type": media_type}
    with running_api() as api:
        for path, body in ANSWERING:
            answer = api.post(path, content=json.dumps(body).encode(), headers=headers)
            assert answer.status_code == 403
            assert "allow that origin" in answer.text
        assert not api.fake.submitted
        # A browser sends these only after a preflight request that allows it.
        typed = {**page, "content-type": "application/json; charset=utf-8"}
        assert chat(api, headers=typed).status_code == 200


@pytest.mark.parametrize("allowed", ["*", "https://a.example"])
def test_pages_of_allowed_origins_send_any_type(allowed: str) -> None:
    headers = {"origin": "https://a.example", "content-type": "text/plain"}
    content = json.dumps(HELLO).encode()
    with running_api(cors_origins=(allowed,)) as api:
        answer = api.post("/v1/chat/completions", content=content, headers=headers)
    assert answer.status_code == 200


def chat(api: Api, **options: Any) -> Any:
    return api.post("/v1/chat/completions", json=HELLO, **options)


def test_other_origins_are_allowed_on_request_only() -> None:
    origin = {"origin": "https://a.example"}
    asking = {**origin, "access-control-request-method": "POST"}
    with running_api() as api:
        assert "access-control-allow-origin" not in chat(api, headers=origin).headers
    with running_api(cors_origins=("https://a.example",), api_keys=("k",)) as api:
        asked = api.options("/v1/chat/completions", headers=asking)
        assert asked.status_code == 200
        assert asked.headers["access-control-allow-origin"] == "https://a.example"
        # Pages may read errors, too.
        refused = chat(api, headers=origin)
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://a.example"
        stainless = {**asking, "access-control-request-headers": "x-stainless-lang"}
        assert api.options("/v1/chat/completions", headers=stainless).status_code == 200
        other = chat(api, headers={"origin": "https://b.example"})
        assert "access-control-allow-origin" not in other.headers
