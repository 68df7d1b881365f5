"""Two real models on one server: loads, evictions, files that change; the bits of each alone.

Clients come and go for three seconds in CI, twenty with `--all`; SOAK_S=600 takes ten minutes.
"""

import os
import random
import shutil
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from powerinfer import LLM, SamplingParams
from powerinfer.serve.loading import facts_reader
from powerinfer.store.default_model import default_model_path
from serving import Server, serving, wait_for
from tiny_models import TINY_MODELS, wide, write_model

pytestmark = pytest.mark.slow

TIGHT = (sys.executable, str(Path(__file__).parent.parent / "support" / "tight_server.py"))
NUM_CLIENTS = 8
CONTEXT = 256
FLAGS = ("-c", str(CONTEXT), "-t", "2", "-np", "4")
PROMPTS = ("Once upon a time", "The dog", "One day a little girl went to the park and saw")


@dataclass(frozen=True)
class Asked:
    """A request to a model, and what it alone answers: ids and log probabilities."""

    body: dict[str, Any]
    ids: list[int]
    logprobs: list[float]

    def check(self, server: Server, answer: Any) -> None:
        assert answer.status_code == 200, (answer.text, server.lines[-5:])
        logprobs = answer.json()["choices"][0]["logprobs"]
        assert logprobs["token_ids"] == self.ids
        assert logprobs["token_logprobs"] == self.logprobs


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The embedded model, and one with random weights in another architecture and format."""
    folder = tmp_path_factory.mktemp("models")
    story = folder / "story.gguf"
    shutil.copyfile(default_model_path(), story)
    return [story, write_model(folder / "random.gguf", wide(TINY_MODELS["qwen2"], "q8_0"))]


@pytest.fixture(scope="module")
def asked(paths: list[Path]) -> list[Asked]:
    found = []
    for path in paths:
        with LLM(path, context_length=CONTEXT, threads=2) as llm:
            for number, prompt in enumerate(PROMPTS):
                fields: Any = {
                    "max_tokens": 20 * number + 4,
                    "temperature": number % 2,
                    "seed": number,
                }
                (alone,) = llm.generate(prompt, SamplingParams(logprobs=0, **fields))
                assert alone.logprobs is not None
                body = {"model": path.stem, "prompt": prompt, "logprobs": 0, **fields}
                logprobs = [each.logprob for each in alone.logprobs]
                found.append(Asked(body, list(alone.token_ids), logprobs))
    return found


def _named(paths: list[Path]) -> list[str]:
    return [part for path in paths for part in ("-m", str(path))]


def _resident_bytes(server: Server) -> int:
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def _client(
    server: Server, asked: list[Asked], seed: int, until: float, errors: list[Exception]
) -> None:
    draw = random.Random(seed)
    while time.monotonic() < until and not errors:
        each = draw.choice(asked)
        try:
            if draw.random() < 0.1:
                connection = server.stream(**each.body | {"max_tokens": 100})
                connection.recv(100)
                connection.close()
            else:
                each.check(server, server.post("/v1/completions", each.body))
            # Now and then nobody asks, so that models leave for that.
            if draw.random() < 0.1:
                time.sleep(draw.random() / 10)
        except Exception as error:  # noqa: BLE001  the test raises it
            errors.append(error)


def _run_clients(server: Server, asked: list[Asked], seconds: float) -> None:
    """Eight clients, each asking one thing after the other; no answer may differ."""
    errors: list[Exception] = []
    until = time.monotonic() + seconds
    clients = [
        threading.Thread(target=_client, args=(server, asked, seed, until, errors))
        for seed in range(NUM_CLIENTS)
    ]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    if errors:
        raise errors[0]


def _loads(server: Server) -> int:
    text = server.get("/metrics").text
    lines = [line for line in text.splitlines() if line.startswith("powerinfer_model_loads_total")]
    return sum(int(float(line.split()[-1])) for line in lines)


def _is_empty(server: Server) -> bool:
    models = server.get("/health").json()["models"]
    return all(model["status"] == "unloaded" for model in models.values())


@pytest.mark.parametrize("room", [1, 2])
def test_clients_get_the_bits_of_each_model_alone(
    paths: list[Path],
    asked: list[Asked],
    monkeypatch: pytest.MonkeyPatch,
    pytestconfig: pytest.Config,
    room: int,
) -> None:
    """With room for one of them, each takes the other's place, again and again."""
    usual_s = 10 if pytestconfig.getoption("--all") else 1.5
    soak_s = float(os.environ.get("SOAK_S", 2 * usual_s)) / 2
    options: Any = {"context_length": CONTEXT, "parallel": 4}
    needed = [facts_reader(path, options)().needed_bytes for path in paths]
    monkeypatch.setenv("ROOM_BYTES", str(max(needed) if room == 1 else sum(needed)))
    stay = "10m" if room == 1 else "0.02"
    with serving(*FLAGS, *_named(paths), "--keep-alive", stay, command=TIGHT) as server:
        for each in asked:
            each.check(server, server.post("/v1/completions", each.body))
        held = _resident_bytes(server)
        _run_clients(server, asked, soak_s)
        assert _loads(server) >= 4
        if room == 2:
            wait_for(lambda: _is_empty(server))
        assert _resident_bytes(server) < held + (64 << 20)
        assert not [line for line in server.lines if "Traceback" in line]
        print(f"room {room}: {_loads(server)} loads, {soak_s:g} s, no difference")
        assert server.stop() == 0


def test_files_that_are_replaced_removed_and_damaged(
    tmp_path: Path, paths: list[Path], asked: list[Asked]
) -> None:
    story, other = (tmp_path / path.name for path in paths)
    for path in paths:
        shutil.copyfile(path, tmp_path / path.name)
    first, second = asked[0], asked[len(PROMPTS)]
    with serving(*FLAGS, *_named([story, other]), "--keep-alive", "-1") as server:

        def is_story(each: Asked) -> None:
            each.check(server, server.post("/v1/completions", each.body | {"model": "story"}))

        is_story(first)
        # Replaced by the other model, and written over while nothing uses it.
        shutil.copyfile(paths[1], tmp_path / "new")
        (tmp_path / "new").rename(story)
        is_story(second)
        shutil.copyfile(paths[0], story)
        is_story(first)
        malformed = b"GGUF\x03\x00\x00\x00" + b"\xff" * 100
        for damage in (malformed, paths[0].read_bytes()[:100_000], None):
            story.unlink()
            if damage is not None:
                story.write_bytes(damage)
            answer = server.post("/v1/completions", first.body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_failed")
            assert "story.gguf" in answer.json()["error"]["message"]
            assert server.get("/v1/models").status_code == 200
            second.check(server, server.post("/v1/completions", second.body))
        shutil.copyfile(paths[0], story)
        is_story(first)
        # What is loaded needs no file.
        story.unlink()
        is_story(first)
        assert server.stop() == 0


def test_a_model_that_is_pulled_and_removed_while_the_server_runs(
    paths: list[Path], asked: list[Asked], cache_folder: Path
) -> None:
    story, other = asked[0], asked[len(PROMPTS)]
    folder = cache_folder / "powerinfer" / "hub" / "org" / "name" / ("0" * 40)
    with serving(*FLAGS) as server:
        assert server.get("/health").json() == {"status": "ok"}
        folder.mkdir(parents=True)
        (pulled := folder / paths[1].name).symlink_to(paths[1])
        try:
            other.check(server, server.post("/v1/completions", other.body))
            name, story_name = (each["id"] for each in server.get("/v1/models").json()["data"])
            assert (name[:11], story_name) == ("hf:org/name", "powerinfer-story")
        finally:
            pulled.unlink()
        # The server looks once a second.
        wait_for(lambda: server.post("/v1/completions", other.body).status_code == 404)
        wait_for(lambda: f"unloaded {name}: it was removed" in server.lines)
        body = story.body | {"model": "powerinfer-story"}
        story.check(server, server.post("/v1/completions", body))
        assert server.stop() == 0


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGTERM, marks=pytest.mark.thorough), signal.SIGKILL]
)
def test_a_server_that_ends_during_a_load_leaves_nothing(
    paths: list[Path], cache_folder: Path, tmp_path: Path, number: int
) -> None:
    models = [tmp_path / path.name for path in paths]
    for source, path in zip(paths, models, strict=True):
        path.symlink_to(source)
    before = {path for folder in (cache_folder, tmp_path) for path in folder.rglob("*")}
    with serving(*FLAGS, *_named(models)) as server:
        body = b'{"prompt": "a"}'
        headers = {"Content_Type": "application/json", "Content_Length": str(len(body))}
        server.send("POST /v1/completions HTTP/1.1", body, **headers)
        wait_for(lambda: any(line.startswith("loading story") for line in server.lines))
        assert server.stop(number) == (0 if number == signal.SIGTERM else -number)
        assert not [line for line in server.lines if "Traceback" in line]
    after = {path for folder in (cache_folder, tmp_path) for path in folder.rglob("*")}
    assert not [path for path in after - before if path.suffix in ("", ".tmp", ".part")]
