"""`/v1/embeddings` with an engine that plays a script."""

import asyncio
import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from api_client import Api, embedded_tokenizer, running_api
from fake_engine import FakeEngine
from powerinfer.errors import NumericsError
from powerinfer.serve.embeddings.answer import EmbeddingsAnswer
from powerinfer.serve.embeddings.computing import Input
from powerinfer.serve.embeddings.request import EmbeddingsRequest
from powerinfer.serve.engine_thread import EngineThread
from powerinfer.serve.metrics import ServerMetrics
from powerinfer.serve.served_model import ModelContext, ServedModel
from powerinfer.serve.settings import ServerSettings

BOS = embedded_tokenizer().bos_id


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with running_api() as running:
        yield running


def embed(api: Api, given: Any, **fields: Any) -> Any:
    answer = api.post("/v1/embeddings", json={"input": given, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def vectors(answer: Any) -> Any:
    return np.array([each["embedding"] for each in answer["data"]])


def unit(row: list[Any]) -> Any:
    return np.array(row) / np.linalg.norm(row)


def test_a_text(api: Api) -> None:
    ids = embedded_tokenizer().encode("Once upon")
    answer = embed(api, "Once upon")
    assert answer["object"] == "list"
    assert answer["model"] == "test-model"
    assert answer["usage"] == {"prompt_tokens": len(ids), "total_tokens": len(ids)}
    (item,) = answer["data"]
    assert (item["object"], item["index"]) == ("embedding", 0)
    assert ids[0] == BOS
    np.testing.assert_allclose(item["embedding"], unit([np.mean(ids[1:]), 3, 4]), rtol=1e-6)
    request = api.fake.submitted[-1].request
    assert request.params.max_tokens == 0
    assert not request.reuses_prefix


@pytest.mark.parametrize(
    ("given", "num"), [("a", 1), (["a", "b"], 2), ([300, 301], 1), ([[300], [301], [302]], 3)]
)
def test_forms_of_inputs(api: Api, given: Any, num: int) -> None:
    answer = embed(api, given)
    assert [each["index"] for each in answer["data"]] == list(range(num))


def test_pooling_of_the_last_token(api: Api) -> None:
    found = vectors(embed(api, [300, 301], pooling="last"))
    np.testing.assert_allclose(found[0], unit([301, 3, 4]), rtol=1e-6)


def test_base64_has_the_same_bits(api: Api) -> None:
    plain = vectors(embed(api, [[300], [301]], encoding_format="float")).astype("<f4")
    coded = embed(api, [[300], [301]], encoding_format="base64")
    for row, item in zip(plain, coded["data"], strict=True):
        assert base64.b64decode(item["embedding"]) == row.tobytes()


def test_more_texts_than_the_window_come_in_order() -> None:
    with running_api(parallel=1, fake=FakeEngine(parallel=3)) as api:
        found = vectors(embed(api, [[300 + number] for number in range(9)]))
    expected = [unit([300 + number, 3, 4]) for number in range(9)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": None}, "input", "missing_required_parameter"),
        ({"input": []}, "input", "empty_array"),
        ({"input": ""}, "input", "invalid_value"),
        ({"input": ["a", ""]}, "input[1]", "invalid_value"),
        ({"input": [BOS]}, "input", "invalid_value"),
        ({"input": [[300], [1 << 40]]}, "input[1]", "invalid_value"),
        ({"input": {"text": "a"}}, "input", "invalid_type"),
        ({"input": "a", "dimensions": 256}, "dimensions", "unsupported_parameter"),
        ({"input": "a", "dimensions": 0}, "dimensions", "unsupported_parameter"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "invalid_value"),
        ({"input": "a", "pooling": "cls"}, "pooling", "invalid_value"),
        ({"input": ["a", "long " * 600]}, "input[1]", "context_length_exceeded"),
        ({"input": ["a", [300] * 600]}, "input[1]", "context_length_exceeded"),
    ],
)
def test_what_is_refused(api: Api, fields: dict[str, Any], param: str, code: str) -> None:
    answer = api.post("/v1/embeddings", json=fields)
    error = answer.json()["error"]
    assert answer.status_code == 400, answer.text
    assert (error["param"], error["code"]) == (param, code)
    assert error["message"].startswith(param)


def test_a_text_that_the_engine_has_no_room_for_is_named() -> None:
    with running_api(fake=FakeEngine(kv_tokens=4)) as api:
        answer = api.post("/v1/embeddings", json={"input": [[300], [300] * 5, [301]]})
        assert answer.json()["error"]["param"] == "input[1]"
        assert answer.status_code == 400
        assert embed(api, [300])


def test_a_step_that_fails_is_an_error_of_the_server() -> None:
    with running_api() as api:
        api.fake.step_error = NumericsError("NaN")
        answer = api.post("/v1/embeddings", json={"input": [[300], [301]]})
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "numerics_error"


def test_a_client_that_leaves_cancels_its_texts() -> None:
    fake = FakeEngine()
    fake.gate.clear()
    texts = [Input("input", [300]), Input("input", [301])]
    nobody: Any = None

    async def go() -> None:
        with ThreadPoolExecutor(2) as pool:
            thread = EngineThread(pool)
            thread.start()
            context = ModelContext(
                settings=ServerSettings(),
                model=ServedModel(engine=fake, tokenizer=embedded_tokenizer(), context_length=9),
                engine=thread.add(fake, ServerMetrics().of("model")),
                workers=nobody,
            )
            answer = EmbeddingsAnswer(
                context, EmbeddingsRequest("model", texts, "mean", is_base64=False)
            )
            answering = asyncio.ensure_future(answer(nobody))
            while context.engine.num_open < len(texts):
                await asyncio.sleep(0)
            answering.cancel()
            await asyncio.wait((answering,))
            assert answering.cancelled()
            assert context.engine.num_open == 0
            assert all(handle.is_cancelled for handle in fake.submitted)
            fake.gate.set()
            thread.close()
            assert thread.join(10)

    asyncio.run(go())
