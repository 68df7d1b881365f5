"""What Open WebUI asks of a server of OpenAI's or Ollama's API: models, chats, small tasks."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from patience import PATIENCE_S
from serving import Server, serving

HEADERS = {
    "Authorization": "Bearer secret",
    "X-OpenWebUI-User-Name": "Ann",
    "X-OpenWebUI-User-Id": "1",
}
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Tell stories."},
    {"role": "user", "content": [{"type": "text", "text": "Once upon a time"}]},
    {"role": "assistant", "content": "there was a cat."},
    {"role": "user", "content": "The cat"},
]
TITLE = (
    "### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat history.\n"
    '### Output:\nJSON format: { "title": "your concise title here" }\n'
    "### Chat History:\n<chat_history>\nUSER: The cat\n</chat_history>"
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("-t", "1", "-np", "2", "-c", "512", "--api-key", "secret") as running:
        yield running


@pytest.fixture
def session(server: Server) -> Iterator[httpx.Client]:
    url = f"{server.url}/v1"
    with httpx.Client(base_url=url, headers=HEADERS, timeout=PATIENCE_S) as made:
        yield made


def model_of(session: httpx.Client) -> str:
    answer = session.get("/models")
    assert answer.status_code == 200
    # It merges the lists of all its servers by these.
    body = answer.json()
    assert "error" not in body
    return str(body["data"][0]["id"])


def chat(session: httpx.Client, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The chunks of a streamed answer, read as it does."""
    body = {
        "model": model_of(session),
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.7,
        "top_p": 0.9,
        "max_tokens": 16,
        "frequency_penalty": 0.1,
        "presence_penalty": 0,
        "seed": 3,
        "stop": ["###"],
        "logit_bias": {"5": -1},
        # Sent by the versions before 0.6 and by filters.
        "chat_id": "c",
        "session_id": "s",
        "features": {"web_search": False},
    }
    with session.stream("POST", "/chat/completions", json=body) as response:
        assert response.status_code == 200
        assert "text/event-stream" in response.headers["content-type"]
        lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def task(session: httpx.Client, prompt: str, **fields: Any) -> str:
    """What a small task beside the chat gives."""
    messages = [{"role": "user", "content": prompt}]
    body = {"model": model_of(session), "messages": messages, "stream": False, **fields}
    answer = session.post("/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def test_a_connection_is_checked(server: Server, session: httpx.Client) -> None:
    assert model_of(session) == "powerinfer-story"
    wrong = httpx.get(f"{server.url}/v1/models", headers={"Authorization": "Bearer x"})
    assert wrong.status_code == 401
    assert wrong.json()["error"]["message"]


def test_a_chat_and_the_tasks_behind_it(session: httpx.Client) -> None:
    chunks = chat(session, TALK)
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])
    assert text
    assert [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]][-1]
    assert chunks[-1]["usage"]["total_tokens"] > 0
    # The next question, while title, tags and what to ask next are generated.
    talk = [*TALK, {"role": "assistant", "content": text}, {"role": "user", "content": "And?"}]
    with ThreadPoolExecutor() as pool:
        title = pool.submit(task, session, TITLE, max_completion_tokens=30)
        tags = pool.submit(task, session, TITLE.replace("title", "tags"), max_tokens=30)
        assert chat(session, talk)
        assert isinstance(title.result(PATIENCE_S), str)
        assert isinstance(tags.result(PATIENCE_S), str)


def test_the_same_server_as_one_of_ollama(server: Server) -> None:
    """What it asks of Ollama's API: models, which are loaded, a version, and chats."""
    with httpx.Client(base_url=server.url, headers=HEADERS, timeout=PATIENCE_S) as session:
        (model,) = session.get("/api/tags").json()["models"]
        assert model["model"] == "powerinfer-story:latest"
        (loaded,) = session.get("/api/ps").json()["models"]
        assert loaded["digest"] == model["digest"]
        assert session.get("/api/version").json()["version"]
        options = {"temperature": 0, "num_predict": 8}
        body = {"model": model["model"], "messages": TALK[2:], "stream": True, "options": options}
        with session.stream("POST", "/api/chat", json=body) as response:
            assert response.headers["content-type"] == "application/x-ndjson"
            *pieces, last = map(json.loads, response.iter_lines())
    assert "".join(each["message"]["content"] for each in pieces)
    assert (last["done"], last["eval_count"]) == (True, 8)
    wrong = httpx.get(f"{server.url}/api/tags")
    assert (wrong.status_code, list(wrong.json())) == (401, ["error"])
