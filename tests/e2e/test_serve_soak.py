"""Clients that come and go for a while: no error, no lost block, no memory that grows.

Four seconds in CI, ten with `--all`; SOAK_S=600 takes the ten minutes that show a slow leak.
"""

import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from patience import PATIENCE_S
from serving import Server, serving, wait_for

NUM_CLIENTS = 8
STORY = "once upon a time there was a little dog who liked to play in the park with his ball"


def _resident_bytes(server: Server) -> int:
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def _client(server: Server, seed: int, until: float, errors: list[Any]) -> None:
    draw = random.Random(seed)
    while time.monotonic() < until and not errors:
        request: dict[str, Any] = {
            "prompt": " ".join(draw.choices(STORY.split(), k=draw.randint(1, 60))),
            "max_tokens": draw.choice([1, 5, 20, 80]),
            "n": draw.choice([1, 1, 2]),
            "temperature": draw.choice([0, 1]),
            "logprobs": draw.choice([None, 2]),
            "stream": draw.random() < 0.5,
        }
        if draw.random() < 0.15:
            connection = server.stream(**request | {"stream": True})
            connection.recv(200)
            connection.close()
            continue
        answer = server.post("/v1/completions", request)
        if answer.status_code != 200 or '"error"' in answer.text:
            errors.append(answer.text)


@pytest.mark.slow
def test_clients_that_come_and_go(pytestconfig: pytest.Config) -> None:
    usual_s = 10 if pytestconfig.getoption("--all") else 4
    soak_s = float(os.environ.get("SOAK_S", usual_s))
    with serving("-c", "256", "-t", "1", "-np", "4") as server:
        errors: list[Any] = []
        samples: list[int] = []
        until = time.monotonic() + soak_s
        clients = [
            threading.Thread(target=_client, args=(server, seed, until, errors))
            for seed in range(NUM_CLIENTS)
        ]
        for client in clients:
            client.start()
        while time.monotonic() < until:
            time.sleep(soak_s / 40)
            samples.append(_resident_bytes(server))
        for client in clients:
            client.join(PATIENCE_S)
        assert errors == []
        wait_for(lambda: server.figure("powerinfer_requests_running") == 0)
        assert server.figure("powerinfer_requests_waiting") == 0
        assert server.figure("powerinfer_kv_blocks_used") == 0
        # The pool is touched, and allocators are warm, after a quarter of the time.
        middle, end = samples[len(samples) // 4], samples[-1]
        print("MiB", [size >> 20 for size in samples])
        if soak_s >= 60:
            assert end <= middle * 1.02
        assert server.works()
        assert server.stop() == 0
