"""What Ollama's API tells of models, and how it loads and unloads them."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from api_client import Api, running_api
from fake_models import FakeModel, running_pool
from powerinfer.errors import PromptError
from powerinfer.gguf import model_identity, open_gguf
from powerinfer.serve.ollama.cards import card_of
from powerinfer.store.default_model import default_model_path
from serving import wait_for


@pytest.fixture
def models(tmp_path: Path) -> list[FakeModel]:
    """Two models: the file of one is a model, that of the other is damaged."""
    made = [FakeModel(name, tmp_path / name) for name in ("one", "hf:org/two:Q4_0")]
    made[0].path.unlink()
    made[0].path.symlink_to(default_model_path())
    return made


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path) -> None:
    (tmp_path / "hf:org").mkdir()


def names(api: Api, path: str) -> list[str]:
    return [each["name"] for each in api.get(path).json()["models"]]


def generate(api: Api, model: FakeModel, prompt: str = "", **fields: Any) -> Any:
    body = {"model": model.name, "prompt": prompt, "stream": False, **fields}
    answer = api.post("/api/generate", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def leaves_in(api: Api) -> timedelta:
    (listed,) = api.get("/api/ps").json()["models"]
    return datetime.fromisoformat(listed["expires_at"]) - datetime.now(UTC)


def test_the_list(models: list[FakeModel]) -> None:
    file = open_gguf(default_model_path())
    with running_pool(models) as api:
        one, two = api.get("/api/tags").json()["models"]
        assert api.head("/api/tags").status_code == 200
    assert datetime.fromisoformat(one.pop("modified_at")) <= datetime.now(UTC)
    assert one == {
        "name": "one:latest",
        "model": "one:latest",
        "size": file.num_bytes,
        "digest": model_identity(file),
        "details": {
            "parent_model": "",
            "format": "gguf",
            "family": "llama",
            "families": ["llama"],
            "parameter_size": f"{sum(t.num_elements for t in file.tensors.values()) / 1e6:.2f}M",
            "quantization_level": "F16",
        },
    }
    assert two["name"] == "hf:org/two:Q4_0"
    assert (two["size"], two["details"]["families"]) == (0, [])
    assert not any(model.engines for model in models)


def test_a_description(models: list[FakeModel]) -> None:
    with running_pool(models, model_name="x") as api:
        for body in ({"model": "one"}, {"name": "one:latest"}):
            answer = api.post("/api/show", json=body)
            assert answer.status_code == 200
        found = answer.json()
        assert found["capabilities"] == ["completion"]
        assert found["model_info"]["general.architecture"] == "llama"
        assert found["model_info"]["llama.context_length"] == 512, "what is served"
        assert found["model_info"]["tokenizer.ggml.tokens"] is None
        assert "num_ctx                        512\n" in found["parameters"]
        assert found["modelfile"].startswith(f"FROM {models[0].path}\nPARAMETER num_ctx 512\n")
        assert api.post("/api/show", json={"model": models[1].name}).status_code == 200
        assert api.post("/api/show", json={"model": "four"}).status_code == 404
        assert api.post("/api/show", json={}).json() == {"error": "model is missing"}
        card = card_of(api.pooled(models[0]))
    assert card.details()["family"] == "llama"


def test_loading_and_unloading(models: list[FakeModel]) -> None:
    one, two = models
    with running_pool(models, keep_alive_s=300) as api:
        assert names(api, "/api/ps") == []
        loaded = generate(api, one)
        assert (loaded["response"], loaded["done"], loaded["done_reason"]) == ("", True, "load")
        assert names(api, "/api/ps") == ["one:latest"]
        assert timedelta(minutes=4) < leaves_in(api) < timedelta(minutes=6)
        assert generate(api, one, "Hi", keep_alive="1h")["response"].startswith("one1 ")
        assert leaves_in(api) > timedelta(minutes=50)
        assert generate(api, one, keep_alive=-1)["done_reason"] == "load"
        assert leaves_in(api) > timedelta(days=36500)
        listed = api.get("/api/ps").json()["models"][0]
        assert (listed["size_vram"], listed["context_length"]) == (0, 512)
        gone = generate(api, one, keep_alive=0)
        assert (gone["response"], gone["done_reason"]) == ("", "unload")
        assert names(api, "/api/ps") == []
        assert one.engine.is_closed
        chat = {"model": two.name, "messages": [], "keep_alive": "0s"}
        answer = api.post("/api/chat", json=chat).json()
        assert answer["message"] == {"role": "assistant", "content": ""}
        assert answer["done_reason"] == "unload"
        assert (
            api.post("/api/chat", json={**chat, "keep_alive": "5m"}).json()["done_reason"] == "load"
        )
    assert (len(one.engines), len(two.engines)) == (1, 1)


def test_a_model_that_is_kept_for_no_time_leaves_after_its_answer(models: list[FakeModel]) -> None:
    with running_pool(models, keep_alive_s=300) as api:
        assert generate(api, models[0], "Hi", keep_alive=0)["response"]
        wait_for(lambda: not names(api, "/api/ps"))


def test_a_model_in_use_is_unloaded_after_its_answer(models: list[FakeModel]) -> None:
    one = models[0]
    with running_pool(models) as api:
        generate(api, one)
        resident = api.pooled(one).resident
        assert resident is not None
        resident.num_users += 1
        resident.is_idle.clear()
        assert generate(api, one, keep_alive=0)["done_reason"] == "unload"
        assert not one.engine.is_closed
        assert api.portal is not None
        api.portal.call(api.context.models._leave, api.pooled(one), resident)
        wait_for(lambda: one.engine.is_closed)


def test_a_model_that_cannot_be_loaded(models: list[FakeModel]) -> None:
    models[0].error = PromptError("too little memory")
    with running_pool(models) as api:
        answer = api.post("/api/chat", json={"model": "one", "messages": []})
        assert answer.status_code == 400
        assert answer.json() == {"error": "the model 'one' cannot be loaded: too little memory"}


def test_the_only_model_stays() -> None:
    with running_api() as api:
        (listed,) = api.get("/api/ps").json()["models"]
        assert listed["name"] == "test-model:latest"
        body = {"model": "test-model", "messages": []}
        assert api.post("/api/chat", json=body).json()["done_reason"] == "load"
        answer = api.post("/api/chat", json={**body, "keep_alive": 0})
        assert answer.status_code == 400
        assert "--keep-alive" in answer.json()["error"]


def test_versions_and_the_page() -> None:
    with running_api() as api:
        assert set(api.get("/api/version").json()) == {"version", "powerinfer"}
        assert api.head("/").status_code == api.head("/api/version").status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "wanted"),
    [
        ("POST", "/api/push", "publishes no models"),
        ("POST", "/api/create", "powerinfer serve"),
        ("POST", "/api/copy", "--alias"),
        ("DELETE", "/api/delete", "powerinfer rm"),
    ],
)
def test_what_changes_models_is_refused(method: str, path: str, wanted: str) -> None:
    with running_api() as api:
        answer = api.request(method, path, json={"model": "test-model"})
    assert answer.status_code == 400
    assert list(answer.json()) == ["error"]
    assert wanted in answer.json()["error"]


def test_models_that_are_here_count_as_pulled() -> None:
    with running_api() as api:
        assert api.post("/api/pull", json={"model": "test-model"}).json() == {"status": "success"}
        answer = api.post("/api/pull", json={"name": "other"})
        assert answer.status_code == 404
        assert "powerinfer pull" in answer.json()["error"]
        assert api.get("/api/nothing").json() == {"error": "there is no GET /api/nothing"}
        assert api.post("/api/chat", content=b"{").status_code == 400
