"""The application of the server: health, figures, errors of paths and methods."""

import pytest

from api_client import running_api
from powerinfer.errors import ContextLengthError, NumericsError
from powerinfer.serve.errors import error_body, from_engine


def test_health_follows_the_model() -> None:
    with running_api(is_loading=True) as api:
        answer = api.get("/health")
        assert (answer.status_code, answer.json()) == (503, {"status": "loading"})
    with running_api() as api:
        answer = api.get("/health")
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


@pytest.mark.parametrize("path", ["/health", "/v1/health"])
def test_probes_may_ask_for_the_head_alone(path: str) -> None:
    with running_api(is_loading=True) as api:
        assert api.head(path).status_code == 503
    with running_api() as api:
        answer = api.head(path)
        assert (answer.status_code, answer.content) == (200, b"")


def test_figures_are_there_from_the_start() -> None:
    with running_api() as api:
        text = api.get("/metrics").text
    assert "powerinfer_requests_running 0.0" in text
    assert "powerinfer_requests_waiting 0.0" in text


@pytest.mark.parametrize("path", ["/nothing", "/v1/images"])
def test_unknown_paths(path: str) -> None:
    with running_api() as api:
        answer = api.post(path, json={})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"
    assert path in answer.json()["error"]["message"]


def test_unknown_methods() -> None:
    with running_api() as api:
        answer = api.delete("/health")
    assert answer.status_code == 405
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD"}
    assert "/health takes GET, HEAD, not DELETE" in answer.json()["error"]["message"]


def test_errors_of_the_engine() -> None:
    error = from_engine(ContextLengthError("too long", remedy="{context_length}"), "prompt")
    assert error.status == 400
    assert error_body(error)["error"] == {
        "message": "too long",
        "type": "invalid_request_error",
        "param": "prompt",
        "code": "context_length_exceeded",
    }
    assert from_engine(NumericsError("NaN")).status == 500
