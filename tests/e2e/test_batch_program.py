"""`powerinfer batch` as users run it: interrupted, killed, begun again."""

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from command_line import assert_error, invoke
from patience import PATIENCE_S

NUM_REQUESTS = 20


def write_requests(path: Path) -> Path:
    lines = [
        {
            "custom_id": f"request {number}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {
                "prompt": "Once upon a time",
                "max_tokens": 70 + number,
                "seed": number,
                "ignore_eos": True,
            },
        }
        for number in range(NUM_REQUESTS)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def start(source: Path, target: Path) -> "subprocess.Popen[bytes]":
    arguments = ["batch", "-i", str(source), "-o", str(target), "-np", "2", "--json"]
    command = [sys.executable, "-m", "powerinfer", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def texts(path: Path) -> dict[str, str]:
    records = [json.loads(each) for each in path.read_text().splitlines()]
    found = {
        record["custom_id"]: record["response"]["body"]["choices"][0]["text"] for record in records
    }
    assert len(found) == len(records), "an answer is doubled"
    return found


def wait_for_answers(target: Path, process: "subprocess.Popen[bytes]", count: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not target.exists() or target.read_bytes().count(b"\n") < count:
        assert process.poll() is None, "it ended too early"
        assert time.monotonic() < deadline
        time.sleep(0.01)


def finish(process: "subprocess.Popen[bytes]") -> tuple[int, bytes, bytes]:
    timer = threading.Timer(PATIENCE_S, process.kill)
    timer.start()
    out, err = process.communicate()
    timer.cancel()
    return process.returncode, out, err


@pytest.mark.slow
def test_what_was_interrupted_and_killed_ends_as_if_nothing_had_been(tmp_path: Path) -> None:
    source, target = write_requests(tmp_path / "in.jsonl"), tmp_path / "out.jsonl"
    interrupted = start(source, target)
    wait_for_answers(target, interrupted, 2)
    interrupted.send_signal(signal.SIGINT)
    code, _, err = finish(interrupted)
    assert code == 130
    assert b"Traceback" not in err
    num_kept = len(texts(target))
    assert 2 <= num_kept < NUM_REQUESTS

    killed = start(source, target)
    wait_for_answers(target, killed, num_kept + 2)
    killed.kill()
    finish(killed)

    code, out, _ = finish(start(source, target))
    assert code == 0
    report = json.loads(out)
    assert report["requests"] == NUM_REQUESTS
    assert num_kept + 2 <= report["answered_before"] < NUM_REQUESTS
    assert report["failed"] == 0

    whole = tmp_path / "whole.jsonl"
    assert finish(start(source, whole))[0] == 0
    assert texts(target) == texts(whole)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    return {"source": write_requests(tmp_path / "in.jsonl"), "target": tmp_path / "out.jsonl"}


def test_the_file_of_requests_is_never_written_to(files: dict[str, Any]) -> None:
    before = files["source"].read_bytes()
    result = invoke("batch", "-i", files["source"], "-o", files["source"])
    assert_error(result, "same file")
    assert files["source"].read_bytes() == before


def test_a_missing_file_of_requests_is_an_error(files: dict[str, Any]) -> None:
    files["source"].unlink()
    assert_error(invoke("batch", "-i", files["source"], "-o", files["target"]), "no such file")
    assert not files["target"].exists()
