"""Ollama's embeddings with a tiny model that computes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from powerinfer import LLM
from powerinfer.serve.app import build_app
from powerinfer.serve.context import ServerContext
from powerinfer.serve.loading import load_served
from powerinfer.serve.settings import ServerSettings

CONTEXT = 32


@pytest.fixture(scope="module")
def api(shared_models: Path) -> Iterator[TestClient]:
    context = ServerContext(ServerSettings(model_name="tiny"))
    served = load_served(shared_models / "tiny.gguf", {"threads": 1, "context_length": CONTEXT})

    async def start() -> None:
        context.start(served)

    with TestClient(build_app(context), base_url="http://localhost") as client:
        assert client.portal is not None
        client.portal.call(start)
        yield client


def embed(api: TestClient, path: str = "/api/embed", **fields: Any) -> Any:
    answer = api.post(path, json={"model": "tiny:latest", **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_vectors_are_those_of_python(api: TestClient, tiny: Path) -> None:
    texts = ["a cat", "dogs and cats"]
    with LLM(tiny, threads=1) as llm:
        wanted = llm.embed(texts)
        wanted_raw = llm.embed(texts[0], normalize=False)
        num_tokens = sum(len(llm.encode(text)) for text in texts)
    found = embed(api, input=texts, keep_alive="5m")
    np.testing.assert_array_equal(np.array(found["embeddings"], np.float32), wanted)
    assert (found["model"], found["prompt_eval_count"]) == ("tiny:latest", num_tokens)
    assert 0 <= found["load_duration"] <= found["total_duration"]
    alone = embed(api, input=texts[0])["embeddings"]
    np.testing.assert_array_equal(np.array(alone, np.float32), wanted[:1])
    raw = embed(api, "/api/embeddings", prompt=texts[0])
    np.testing.assert_array_equal(np.array([raw["embedding"]], np.float32), wanted_raw)


@pytest.mark.parametrize("fields", [{}, {"input": ""}, {"input": []}])
def test_without_a_text_the_model_is_loaded(api: TestClient, fields: dict[str, Any]) -> None:
    assert embed(api, **fields)["embeddings"] == []
    assert embed(api, "/api/embeddings", prompt="")["embedding"] == []


def test_long_texts_are_cut_or_refused(api: TestClient) -> None:
    text = "word " * 200
    assert embed(api, input=text)["prompt_eval_count"] == CONTEXT
    answer = api.post("/api/embed", json={"model": "tiny", "input": text, "truncate": False})
    assert answer.status_code == 400
    assert str(CONTEXT) in answer.json()["error"]


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"input": 5}, "input must be a text or a list of texts"),
        ({"input": ["a", ""]}, "input has a text that is empty"),
        ({"input": ["a"] * 2049}, "at most 2048 texts"),
        ({"dimensions": 8}, "dimensions is not supported"),
        ({"options": {"num_ctx": 99}}, "options.num_ctx must be at most 32"),
    ],
)
def test_what_cannot_be_embedded(api: TestClient, fields: dict[str, Any], wanted: str) -> None:
    answer = api.post("/api/embed", json={"model": "tiny", "input": "a", **fields})
    assert answer.status_code == 400
    assert wanted in answer.json()["error"]
