"""Files of requests: what becomes of each line, and that kills lose and double none."""

import contextlib
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import batch_program
from batch_program import script, served
from fake_engine import FakeEngine
from patience import PATIENCE_S
from powerinfer.engine.request import Request
from powerinfer.errors import NumericsError, PowerInferError, PromptError
from powerinfer.serve.batch import AnswerFile, read_requests, run_batch
from powerinfer.serve.settings import ServerSettings

MOST_KILLS = 6


def line(custom_id: str, prompt: str = "Once", **changes: Any) -> dict[str, Any]:
    return {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/completions",
        "body": {"prompt": prompt, "max_tokens": 50},
        **changes,
    }


def write_lines(path: Path, *lines: object) -> Path:
    path.write_bytes(
        b"".join(
            (each if isinstance(each, bytes) else json.dumps(each).encode()) + b"\n"
            for each in lines
        )
    )
    return path


def answer(
    source: Path, target: Path, engine: FakeEngine | None = None
) -> dict[str | None, dict[str, Any]]:
    """Run a batch; returns what stands in the file of answers by custom_id."""
    settings = ServerSettings(parallel=4, max_queue=4, is_story_model=True)
    with AnswerFile(target) as answers:
        run_batch(
            read_requests(source),
            answers,
            settings,
            lambda: served(engine or FakeEngine(script)),
            lambda *_: None,
        )
    return read_answers(target)


def read_answers(path: Path) -> dict[str | None, dict[str, Any]]:
    records = [json.loads(each) for each in path.read_text().splitlines()]
    found = {record["custom_id"]: record for record in records}
    assert len(found) == len(records), "an answer is doubled"
    return found


def test_each_line_gets_what_its_route_answers(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Once"}]
    source = write_lines(
        tmp_path / "in.jsonl",
        line("a", body={"prompt": "Once", "model": "gpt-4o-mini"}),
        line("b", url="/v1/chat/completions", body={"messages": messages}),
    )
    found = answer(source, tmp_path / "out.jsonl", FakeEngine(("Hi", " there")))
    assert set(found) == {"a", "b"}
    for record in found.values():
        assert set(record) == {"id", "custom_id", "response", "error"}
        assert record["error"] is None
        assert record["response"]["status_code"] == 200
        assert record["response"]["request_id"].startswith("req_")
    assert found["a"]["response"]["body"]["choices"][0]["text"] == "Hi there"
    message = found["b"]["response"]["body"]["choices"][0]["message"]
    assert message["content"] == "Hi there"


def test_requests_run_side_by_side(tmp_path: Path) -> None:
    engine = FakeEngine(script)
    most = 0

    class Watching(FakeEngine):
        def step(self) -> Any:
            nonlocal most
            most = max(most, self.statistics().running + self.statistics().waiting)
            return super().step()

    engine = Watching(script)
    lines = [line(str(number), "Once upon a time " * 4) for number in range(20)]
    answer(write_lines(tmp_path / "in.jsonl", *lines), tmp_path / "out.jsonl", engine)
    assert most == 8


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[1]", "must be a JSON object"),
        (b"[" * 100_000, "levels deep"),
        ({"custom_id": 7}, "custom_id must be a text"),
        ({"custom_id": ""}, "custom_id must be a text"),
        (line("x", method="GET"), "method must be 'POST'"),
        (line("x", url="/v1/embeddings"), "url must be /v1/chat/completions or /v1/completions"),
        (line("x", body="text"), "body must be an object"),
        (line("x", body={"prompt": "a", "stream": True}), "cannot be streamed"),
    ],
)
def test_a_bad_line_becomes_an_error_line(tmp_path: Path, bad: object, reason: str) -> None:
    source = write_lines(tmp_path / "in.jsonl", line("a"), bad, line("b"))
    found = answer(source, tmp_path / "out.jsonl")
    assert found.pop("a")["error"] is None
    assert found.pop("b")["error"] is None
    (record,) = found.values()
    assert record["id"] == "batch_req_2"
    assert record["response"] is None
    assert reason in record["error"]["message"]
    # Nothing is left: no model is loaded, and nothing is written twice.
    assert set(answer_without_model(source, tmp_path / "out.jsonl")) == {"a", "b", *found}


def answer_without_model(source: Path, target: Path) -> dict[str | None, dict[str, Any]]:
    def load() -> Any:
        raise AssertionError("nothing is to be computed")

    with AnswerFile(target) as answers:
        run_batch(read_requests(source), answers, ServerSettings(), load, lambda *_: None)
    return read_answers(target)


def test_a_refused_body_keeps_status_and_reason(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", line("a", body={"prompt": "a", "temperature": 9}))
    response = answer(source, tmp_path / "out.jsonl")["a"]["response"]
    assert response["status_code"] == 400
    assert "temperature" in response["body"]["error"]["message"]


def test_an_answer_that_fails_does_not_end_the_others(tmp_path: Path) -> None:
    def pieces(request: Request, _index: int) -> list[str | PowerInferError]:
        return ["a", NumericsError("NaN")] if len(request.prompt_ids) > 9 else ["b"]

    lines = [line("bad", "Once upon a time there was a little girl and a dog"), line("good", "O")]
    source = write_lines(tmp_path / "in.jsonl", *lines)
    found = answer(source, tmp_path / "out.jsonl", FakeEngine(pieces))
    assert found["bad"]["response"]["status_code"] == 500
    assert found["good"]["response"]["status_code"] == 200


def test_equal_custom_ids_are_an_error_before_anything_runs(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", line("a"), line("b"), line("a"))
    with pytest.raises(PromptError, match="lines 1 and 3 both have the custom_id 'a'"):
        read_requests(source)


def test_empty_lines_and_a_byte_order_mark_are_left_out(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"\xef\xbb\xbf" + json.dumps(line("a")).encode() + b"\r\n\n \n")
    assert [request.custom_id for request in read_requests(source)] == ["a"]


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="no such file"):
        read_requests(tmp_path / "none")
    with pytest.raises(PromptError, match="not a regular file"):
        read_requests(tmp_path)


@pytest.mark.parametrize(
    "content", [b"my notes", b"my notes\n", b'{"id": "x"}\n', b"[]\n", b'{"id": "batch_req_1"}\n']
)
def test_a_file_that_holds_something_else_is_not_touched(tmp_path: Path, content: bytes) -> None:
    target = tmp_path / "out.jsonl"
    target.write_bytes(content)
    with pytest.raises(PromptError, match="line 1 is no answer of a batch"), AnswerFile(target):
        pass
    assert target.read_bytes() == content


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    with (
        AnswerFile(target),
        pytest.raises(PromptError, match="another process writes to it"),
        AnswerFile(target),
    ):
        pass


def test_a_full_disk_is_an_error_of_one_line(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", line("a"))
    with AnswerFile(tmp_path / "out.jsonl") as answers:
        answers._file.close()
        answers._file = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115
        with pytest.raises(PowerInferError, match="cannot write: No space left"):
            run_batch(
                read_requests(source),
                answers,
                ServerSettings(is_story_model=True),
                lambda: served(FakeEngine(script)),
                lambda *_: None,
            )


@given(data=st.data())
def test_a_file_cut_anywhere_goes_on(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    source = write_lines(folder / "in.jsonl", line("ä"), b"{", line("b", "Once upon"), line("c"))
    target = folder / "out.jsonl"
    whole = answer(source, target)
    content = target.read_bytes()
    target.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    again = answer(source, target)
    assert set(again) == set(whole)
    texts = [
        {
            custom_id: record["response"] and record["response"]["body"]["choices"]
            for custom_id, record in found.items()
        }
        for found in (whole, again)
    ]
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_kills_at_random_moments_lose_and_double_nothing(tmp_path: Path) -> None:
    source = write_lines(
        tmp_path / "in.jsonl",
        *(line(f"request {n}", "Once upon a time " * (1 + n % 7)) for n in range(60)),
        b"no request",
    )
    target = tmp_path / "out.jsonl"
    randomness = random.Random(7)
    command = [sys.executable, batch_program.__file__, str(source), str(target)]
    num_kills = 0
    while True:
        with subprocess.Popen(command) as process:
            # Without the wait few kills would hit the writing.
            _wait_for_growth(target, process)
            patience = randomness.uniform(0.0, 0.1) if num_kills < MOST_KILLS else PATIENCE_S
            with contextlib.suppress(subprocess.TimeoutExpired):
                assert process.wait(patience) == 0
                break
            process.kill()
            num_kills += 1
    assert num_kills > 1
    assert set(read_answers(target)) == {*(f"request {n}" for n in range(60)), None}


def _wait_for_growth(target: Path, process: "subprocess.Popen[bytes]") -> None:
    before = target.stat().st_size if target.exists() else 0
    deadline = time.monotonic() + PATIENCE_S
    while process.poll() is None and not (target.exists() and target.stat().st_size > before):
        assert time.monotonic() < deadline
        time.sleep(0.002)
