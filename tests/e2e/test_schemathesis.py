"""Requests that schemathesis makes up from `/openapi.json`: none may end in an error of ours."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from patience import PATIENCE_S
from powerinfer.store.default_model import default_model_path
from serving import Server, serving

pytestmark = pytest.mark.slow

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")

# The context is short, so that no made-up request computes for long.
FLAGS = ("-t", "1", "-np", "4", "-c", "64")
# What a client may get: an answer, or what is wrong with the request.
EXPECTED = (200, 400, 404, 405, 413)


@pytest.fixture(scope="module", params=["one", pytest.param("several", marks=pytest.mark.thorough)])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    models = ["--alias", "model"]
    if request.param == "several":
        folder = tmp_path_factory.mktemp("models")
        paths = [folder / name for name in ("other.gguf", "model.gguf")]
        for path in paths:
            path.symlink_to(default_model_path())
        models = [part for path in paths for part in ("-m", str(path))]
    with serving(*FLAGS, *models) as running:
        yield running
        assert running.process.poll() is None, running.lines[-50:]
        assert running.works()
        assert not [line for line in running.lines if "Traceback" in line]


@pytest.fixture(scope="module")
def operations(server: Server) -> dict[str, Any]:
    """Every route, by method and path."""
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    found = [result.ok() for result in schema.get_all_operations()]
    return {operation.label: operation for operation in found}


BODIES = (
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /v1/embeddings",
    "POST /v1/responses",
    "POST /v1/messages",
    "POST /v1/messages/count_tokens",
    "POST /completion",
    "POST /tokenize",
    "POST /detokenize",
    "POST /api/chat",
    "POST /api/generate",
    "POST /api/embed",
    "POST /api/show",
)

# Made-up chats are seldom chats: half of them are replaced by one that is.
MESSAGES = [{"role": "user", "content": "Once"}]
PLAIN = (
    "model",
    "prompt",
    "input",
    "content",
    "tokens",
    "max_tokens",
    "n_predict",
    "stream",
    "temperature",
)


def with_limits(body: Any) -> Any:
    """The body with few texts: a hundred of them are slow, and nothing new."""
    if isinstance(body, dict):
        for name in ("n", "n_cmpl", "best_of"):
            if isinstance(body.get(name), int):
                body[name] = min(body[name], 2)
        if isinstance(body.get("model"), str):
            body["model"] = "model"
    return body


def plain(body: dict[str, Any]) -> dict[str, Any]:
    """The body with few fields, most of which nothing forbids."""
    kept = {name: value for name, value in body.items() if name in PLAIN}
    return kept | ({"messages": MESSAGES} if "messages" in body else {})


@pytest.fixture(scope="module")
def examples(pytestconfig: pytest.Config) -> int:
    """How many requests to a route are made up."""
    return 40 if pytestconfig.getoption("--all") else 10


def statuses(operation: Any, mode: str, examples: int) -> set[int]:
    """What made-up requests to a route are answered with."""
    kind = schemathesis.GenerationMode(mode)
    found: set[int] = set()

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def call(data: st.DataObject) -> None:
        case = data.draw(operation.as_strategy(generation_mode=kind))
        case.body = with_limits(case.body)
        if mode == "positive" and isinstance(case.body, dict) and data.draw(st.booleans()):
            case.body = plain(case.body)
        answer = case.call(timeout=PATIENCE_S)
        assert answer.status_code in EXPECTED, answer.text
        found.add(answer.status_code)

    call()
    return found


@pytest.mark.parametrize("label", BODIES)
def test_requests_as_described(operations: dict[str, Any], label: str, examples: int) -> None:
    assert 200 in statuses(operations[label], "positive", examples)


@pytest.mark.parametrize("label", BODIES)
def test_requests_with_mistakes(operations: dict[str, Any], label: str, examples: int) -> None:
    assert 400 in statuses(operations[label], "negative", examples)


def test_all_other_routes(operations: dict[str, Any]) -> None:
    others = [label for label in operations if label not in BODIES]
    assert all(label.startswith(("GET ", "DELETE ")) for label in others)
    for label in others:
        statuses(operations[label], "positive", examples=10)
