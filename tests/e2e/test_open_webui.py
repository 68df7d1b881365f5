"""What Open WebUI asks of a server of OpenAI's or Ollama's API, as it was recorded.

`tests/golden/clients/open_webui.json` has the requests that the package sent while its page in a
browser listed models, chatted, and was stopped, and its API verified connections, embedded
documents and looked after models; its version is in the file.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from patience import PATIENCE_S
from powerinfer.store.default_model import default_model_path
from serving import Server, serving, wait_for

RECORDED: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "golden/clients/open_webui.json").read_text()
)
CONTEXT = 512
STOPPED = "message whose answer is stopped"
CASES = [
    pytest.param(each, id=f"{api}: {each['what']}, {each['path']}")
    for api in ("ollama", "openai")
    for each in RECORDED[api]
    if each["what"] != STOPPED
]
CHATS = ("/api/chat", "/v1/chat/completions")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two models, of which one has the name that stands in the recording."""
    paths = [tmp_path_factory.mktemp("models") / f"{name}.gguf" for name in ("MODEL", "other")]
    for path in paths:
        path.symlink_to(default_model_path())
    models = [part for path in paths for part in ("-m", str(path))]
    flags = ("-t", "1", "-np", "4", "-c", str(CONTEXT), "--api-key", "secret")
    with serving(*flags, *models) as running:
        yield running


@pytest.fixture(scope="module")
def session(server: Server) -> Iterator[httpx.Client]:
    # Sent to Ollama's API as well, where the connection has a key.
    key = {"Authorization": "Bearer secret"}
    with httpx.Client(base_url=server.url, headers=key, timeout=PATIENCE_S) as made:
        yield made


def recorded(what: str) -> list[Any]:
    """Requests of both APIs."""
    return [each for api in ("ollama", "openai") for each in RECORDED[api] if each["what"] == what]


def request(session: httpx.Client, asked: dict[str, Any]) -> httpx.Request:
    body = asked.get("body")
    if body is not None and "num_ctx" in body.get("options", {}):
        # A larger one than the server's is refused.
        body = {**body, "options": {**body["options"], "num_ctx": CONTEXT}}
    return session.build_request(
        asked["method"], asked["path"], headers=asked["headers"], json=body
    )


def text_of(answer: httpx.Response) -> str:
    """The text of a whole or streamed answer to a chat, read as Open WebUI does."""
    if answer.headers["content-type"] == "application/x-ndjson":
        *pieces, last = map(json.loads, answer.text.splitlines())
        assert last["done"]
        assert last["eval_count"] > 0
        return "".join(each["message"]["content"] for each in [*pieces, last])
    if "text/event-stream" in answer.headers["content-type"]:
        lines = [line for line in answer.text.splitlines() if line]
        assert all(line.startswith("data: ") for line in lines)
        assert lines[-1] == "data: [DONE]"
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
        return "".join(delta.get("content") or "" for delta in deltas)
    body = answer.json()
    message = body["message"] if "message" in body else body["choices"][0]["message"]
    return str(message["content"])


def vectors_of(body: Any) -> list[list[float]]:
    return (
        body["embeddings"] if "embeddings" in body else [each["embedding"] for each in body["data"]]
    )


@pytest.mark.parametrize("asked", CASES)
def test_every_recorded_request_is_answered(session: httpx.Client, asked: dict[str, Any]) -> None:
    answer = session.send(request(session, asked))
    assert answer.status_code == 200, answer.text
    if asked["path"] in CHATS:
        assert isinstance(text_of(answer), str)
    elif asked["path"] in ("/api/embed", "/v1/embeddings"):
        vectors = vectors_of(answer.json())
        assert len(vectors) == len(asked["body"]["input"])
        assert all(len(vector) == len(vectors[0]) > 1 for vector in vectors)
    else:
        body = answer.json()
        assert "error" not in body
        # It merges the models of all its servers by these.
        if asked["path"] == "/v1/models":
            assert [each["id"] for each in body["data"]] == ["MODEL", "other"]
        if asked["path"] == "/api/tags":
            assert [each["model"] for each in body["models"]] == ["MODEL:latest", "other:latest"]


@pytest.mark.parametrize("asked", recorded("message with counts of tokens"))
def test_counts_of_tokens(session: httpx.Client, asked: dict[str, Any]) -> None:
    lines = session.send(request(session, asked)).text.replace("data: ", "").split("\n")
    last = [json.loads(line) for line in lines if line not in ("", "[DONE]")][-1]
    counts = last.get("usage", last)
    assert 8 in (counts.get("completion_tokens"), counts.get("eval_count"))


@pytest.mark.parametrize("asked", recorded(STOPPED))
def test_a_stopped_answer_frees_its_place(
    server: Server, session: httpx.Client, asked: dict[str, Any]
) -> None:
    answer = session.send(request(session, asked), stream=True)
    next(answer.iter_lines())
    answer.close()

    def rests() -> bool:
        figures = session.get("/metrics").text
        return 'powerinfer_requests_running{model="MODEL"} 0.0' in figures

    wait_for(rests)


@pytest.mark.parametrize("asked", [RECORDED["openai"][0], RECORDED["ollama"][0]])
def test_a_wrong_key_is_told(server: Server, asked: dict[str, Any]) -> None:
    answer = httpx.get(server.url + asked["path"], headers={"Authorization": "Bearer x"})
    assert answer.status_code == 401
    assert answer.json()["error"]


def test_a_chat_beside_the_tasks_that_follow_another(session: httpx.Client) -> None:
    """Title, tags and follow-ups of both APIs are generated while the next message is answered."""
    asked = [
        each
        for what in ("title", "tags", "follow-ups", "second message")
        for each in recorded(what)
    ]
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(session.send, [request(session, each) for each in asked]))
    assert [answer.status_code for answer in answers] == [200] * 7
    assert all(isinstance(text_of(answer), str) for answer in answers)
