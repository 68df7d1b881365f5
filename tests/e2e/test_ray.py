"""Replicas on Ray Serve: one API before them, the same replica for a prefix, death is no end."""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import httpx
import pytest

from patience import PATIENCE_S
from powerinfer.serve.ray.build import RayOptions, application
from powerinfer.serve.settings import ServerSettings
from ray_models import load_slow

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed"),
    # Ray's own.
    pytest.mark.filterwarnings("ignore"),
]

NUM_REPLICAS = 2


@pytest.fixture(scope="module")
def api() -> Iterator[httpx.Client]:
    """A client of two replicas that play a script."""
    import ray
    from ray import serve

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ray.init(num_cpus=NUM_REPLICAS, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    options = RayOptions(
        min_replicas=NUM_REPLICAS, max_replicas=NUM_REPLICAS, num_cpus=1, parallel=2
    )
    settings = ServerSettings(model_name="scripted", host="0.0.0.0", parallel=2)
    serve.run(application(options, settings, load_slow))
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as client:
        yield client
    serve.shutdown()
    ray.shutdown()


def completion(prompt: str, **fields: Any) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": 1, **fields}


def answer(api: httpx.Client, prompt: str, **fields: Any) -> str:
    response = api.post("/v1/completions", json=completion(prompt, **fields))
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


def wait_for_replicas(api: httpx.Client) -> set[str]:
    """The processes of both replicas, once both answer."""
    found: set[str] = set()
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < NUM_REPLICAS:
        assert time.monotonic() < deadline
        found |= {answer(api, f"prompt {number}") for number in range(16)}
    return found


def test_the_api_is_that_of_one_server(api: httpx.Client) -> None:
    assert api.get("/health").status_code == 200
    assert api.get("/v1/models").json()["data"][0]["id"] == "scripted"
    refused = api.post("/v1/completions", json=completion("a", temperature=9))
    assert refused.status_code == 400
    assert "temperature" in refused.json()["error"]["message"]
    assert api.get("/v1/nothing").json()["error"]["code"] == "not_found"


def test_prompts_that_begin_alike_go_to_one_replica(api: httpx.Client) -> None:
    wait_for_replicas(api)
    beginning = "Once upon a time there was a girl. " * 20
    assert len({answer(api, beginning + str(number)) for number in range(8)}) == 1


def test_a_full_replica_gives_what_is_too_much_to_others(api: httpx.Client) -> None:
    wait_for_replicas(api)
    found: list[str] = []

    def ask() -> None:
        found.append(answer(api, "the same prompt", max_tokens=20).split()[0])

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(found) == 8
    assert len(set(found)) == NUM_REPLICAS


def test_the_stream_of_a_killed_replica_ends_with_an_error(api: httpx.Client) -> None:
    wait_for_replicas(api)
    body = completion("Once", max_tokens=500, stream=True)
    lines = []
    with api.stream("POST", "/v1/completions", json=body) as response:
        for line in response.iter_lines():
            if not line:
                continue
            lines.append(line.removeprefix("data: "))
            if len(lines) == 3:
                process = int(json.loads(lines[0])["choices"][0]["text"])
                os.kill(process, signal.SIGKILL)
    assert "[DONE]" not in lines
    error = json.loads(lines[-1])["error"]
    assert error["code"] == "replica_lost"
    assert answer(api, "Once") != str(process)


def test_a_request_is_asked_again_where_nothing_was_sent(api: httpx.Client) -> None:
    wait_for_replicas(api)
    first = answer(api, "again")
    texts: list[str] = []
    asking = threading.Thread(target=lambda: texts.append(answer(api, "again", max_tokens=40)))
    asking.start()
    time.sleep(0.5)
    os.kill(int(first), signal.SIGKILL)
    asking.join(PATIENCE_S)
    assert texts[0].split()[0] != first
    assert texts[0].count("word") == 39
