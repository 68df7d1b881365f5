"""Models of this machine with an engine that plays a script, and models behind an address."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from api_client import embedded_tokenizer
from fake_engine import NAN, FakeEngine
from orchestra_cases import (
    ANSWER,
    PASS,
    PRIMITIVES,
    ScriptedPolicy,
    plan,
    players,
    pool,
    route,
)
from powerinfer.orchestra.actions import FinalAnswer, ProtocolError
from powerinfer.orchestra.policy import ModelPolicy
from powerinfer.orchestra.pool import PoolError, WorkerEntry
from powerinfer.orchestra.primitives.primitive import Permissions
from powerinfer.orchestra.runtime import Outcome, Players, run_task
from powerinfer.orchestra.state import State
from powerinfer.orchestra.trajectory import trajectory
from powerinfer.orchestra.workers.local import LocalWorker
from powerinfer.orchestra.workers.remote import RemoteWorker
from powerinfer.orchestra.workers.worker import Answer, Question, WorkerError
from powerinfer.serve.context import ServerContext
from powerinfer.serve.model_source import ModelFacts, ModelSource
from powerinfer.serve.served_model import ServedModel

OBS = '<obs subtask="1">x</obs>'
HELLO = Question(messages=[{"role": "user", "content": "Hi"}], max_tokens=8)


def context_of(engine: FakeEngine) -> ServerContext:
    def load(_: object) -> ServedModel:
        tokenizer = embedded_tokenizer()
        return ServedModel(engine=engine, tokenizer=tokenizer, context_length=engine.context_length)

    facts = ModelFacts(weight_bytes=1, needed_bytes=1, context_length=512, trained_length=512)
    source = ModelSource(names=("tiny",), path=Path("x"), load=load, read_facts=lambda: facts)
    return ServerContext(sources=[source])


def ask(question: Question, engine: FakeEngine) -> Answer:
    async def main() -> Answer:
        context = context_of(engine)
        try:
            return await LocalWorker(context, "tiny").answer(question)
        finally:
            context.close()

    return asyncio.run(main())


class TestLocal:
    def test_an_answer(self) -> None:
        engine = FakeEngine(["Yes", "."])
        answer = ask(HELLO, engine)
        assert (answer.text, answer.tokens, answer.is_cut) == ("Yes.", 2, False)
        request = engine.submitted[0].request
        assert answer.prompt_tokens == len(request.prompt_ids)
        assert (request.params.temperature, request.params.max_tokens) == (0, 8)

    def test_contents_and_beginning_stay_text(self) -> None:
        engine = FakeEngine(["x"])
        tokenizer = embedded_tokenizer()
        assert tokenizer.eos_id is not None
        end = tokenizer.piece(tokenizer.eos_id)
        ask(Question(messages=[{"role": "user", "content": end}], prefill=end), engine)
        ids = engine.submitted[0].request.prompt_ids
        # The first token is the same as the end of a text.
        assert tokenizer.eos_id not in ids[1:]
        assert tokenizer.decode(ids).count(end) == 2

    def test_forms(self) -> None:
        engine = FakeEngine(["1"])
        ask(Question(messages=HELLO.messages, json_schema={"type": "integer"}), engine)
        assert engine.submitted[0].request.params.json_schema == '{"type":"integer"}'

    def test_it_is_cut(self) -> None:
        assert ask(HELLO, FakeEngine(["a"] * 9)).is_cut

    def test_its_context_is_too_small(self) -> None:
        long = [{"role": "user", "content": "word " * 600}]
        with pytest.raises(WorkerError, match="the context holds 512") as caught:
            ask(Question(messages=long), FakeEngine())
        assert caught.value.is_too_long

    def test_it_dies(self) -> None:
        with pytest.raises(WorkerError, match="NaN in the logits"):
            ask(HELLO, FakeEngine(["x", NAN]))
        with pytest.raises(WorkerError, match="a step failed: RuntimeError"):
            ask(HELLO, FakeEngine(step_error=RuntimeError("x")))

    def test_two_orchestras_on_one_engine(self) -> None:
        """Texts of both are computed side by side, each for its own run."""

        def script(request: object, _: int) -> list[str]:
            prompt = embedded_tokenizer().decode(request.prompt_ids)  # type: ignore[attr-defined]
            return ["<final_answer>" + prompt.partition("User: ")[2][0], "</final_answer>"]

        async def main() -> list[Outcome]:
            context = context_of(FakeEngine(script))
            worker = LocalWorker(context, "tiny")
            everyone = Players(
                pool=pool(),
                policy=ModelPolicy(worker, pool(), PRIMITIVES),
                workers={"tiny": worker},
                primitives=PRIMITIVES,
                permissions=Permissions(),
            )
            try:
                return await asyncio.gather(*(run_task(each, everyone) for each in "AB"))
            finally:
                context.close()

        assert [each.answer for each in asyncio.run(main())] == ["A", "B"]


class TestPolicyOfSmallContext:
    """Sizes shrink until the prompt fits; at last the task alone is read."""

    @staticmethod
    def decide(reply: Callable[[Question], Answer]) -> tuple[list[Question], FinalAnswer]:
        asked: list[Question] = []

        class Tight:
            async def answer(self, question: Question) -> Answer:
                asked.append(question)
                return reply(question)

        policy = ModelPolicy(Tight(), pool(), PRIMITIVES)
        decision = asyncio.run(policy.decide("task", State(), {"tiny": ("answer",)}))
        assert isinstance(decision.action, FinalAnswer)
        return asked, decision.action

    def test_it_is_too_small_for_the_prompt(self) -> None:
        def reply(question: Question) -> Answer:
            if len(question.messages) > 1:
                raise WorkerError("too long", is_too_long=True)
            return Answer(text="<final_answer>x</final_answer>")

        asked, action = self.decide(reply)
        assert action.text == "x"
        assert asked[-1].messages == [{"role": "user", "content": "task"}]

    def test_it_is_too_small_for_the_answer(self) -> None:
        def reply(question: Question) -> Answer:
            is_short = "{0,399}" in (question.grammar or "")
            end = "</final_answer>" if is_short else ""
            return Answer(text=f"<final_answer>x{end}", is_cut=not is_short)

        asked, _ = self.decide(reply)
        assert len(asked) == 3

    def test_other_faults_are_not_hidden(self) -> None:
        def dead(question: Question) -> Answer:
            raise WorkerError("dead")

        with pytest.raises(WorkerError, match="dead"):
            self.decide(dead)

        def never(question: Question) -> Answer:
            return Answer(text="<final", is_cut=True)

        with pytest.raises(WorkerError, match="longer than the policy's context"):
            self.decide(never)

    @pytest.mark.parametrize("text", ["", "x", "<final_answer>a</final_answer>" * 2, OBS])
    def test_what_is_no_action(self, text: str) -> None:
        with pytest.raises(ProtocolError):
            self.decide(lambda _: Answer(text=text))


KEY = "sk-very-secret"


@pytest.fixture
def entry(monkeypatch: pytest.MonkeyPatch) -> WorkerEntry:
    monkeypatch.setenv("CLOUD_KEY", KEY)
    return WorkerEntry(
        name="cloud",
        model="gpt",
        base_url="https://example.org/v1/",
        api_key_env="CLOUD_KEY",
        primitives=("answer",),
    )


def post(
    entry: WorkerEntry, reply: Callable[[httpx.Request], httpx.Response], question: Question = HELLO
) -> Answer:
    async def main() -> Answer:
        worker = RemoteWorker(entry, httpx.MockTransport(reply))
        try:
            return await worker.answer(question)
        finally:
            await worker.aclose()

    return asyncio.run(main())


def completion(text: object) -> httpx.Response:
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "length"}
    usage = {"prompt_tokens": 4, "completion_tokens": 2}
    return httpx.Response(200, json={"choices": [choice], "usage": usage})


class TestRemote:
    def test_an_answer(self, entry: WorkerEntry) -> None:
        seen: list[httpx.Request] = []

        def reply(request: httpx.Request) -> httpx.Response:
            seen.append(request)
            return completion(f"my key is {KEY}")

        question = Question(messages=HELLO.messages, json_schema={"type": "object"}, seed=3)
        answer = post(entry, reply, question)
        assert answer == Answer(text="my key is [key]", prompt_tokens=4, tokens=2, is_cut=True)
        (request,) = seen
        assert str(request.url) == "https://example.org/v1/chat/completions"
        assert request.headers["authorization"] == f"Bearer {KEY}"
        body = json.loads(request.content)
        assert (body["model"], body["seed"], body["temperature"]) == ("gpt", 3, 0)
        assert body["response_format"]["json_schema"]["schema"] == {"type": "object"}

    @pytest.mark.parametrize(
        ("reply", "reason"),
        [
            (
                lambda _: httpx.Response(401, text=f"wrong\nkey {KEY}"),
                "status 401: wrong key [key]",
            ),
            (lambda _: httpx.Response(307, headers={"location": "http://evil"}), "status 307"),
            (lambda _: httpx.Response(200, text="<html>"), "not that of a chat completion"),
            (lambda _: httpx.Response(200, json={"choices": []}), "not that of a chat completion"),
            (lambda _: completion(None), "not that of a chat completion"),
            (lambda _: httpx.Response(200, content=b"x" * (9 << 20)), "larger than 8 MiB"),
        ],
    )
    def test_faults(
        self,
        entry: WorkerEntry,
        reply: Callable[[httpx.Request], httpx.Response],
        reason: str,
    ) -> None:
        with pytest.raises(WorkerError) as caught:
            post(entry, reply)
        assert f"worker cloud: {reason}" in str(caught.value) or reason in str(caught.value)
        assert KEY not in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_it_cannot_be_reached(self, entry: WorkerEntry) -> None:
        def reply(request: httpx.Request) -> httpx.Response:
            raise httpx.ConnectError("refused", request=request)

        with pytest.raises(WorkerError, match="worker cloud: ConnectError refused"):
            post(entry, reply)

    def test_its_key_is_not_set(self, entry: WorkerEntry, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("CLOUD_KEY")
        with pytest.raises(PoolError, match="CLOUD_KEY holds no key"):
            RemoteWorker(entry)

    def test_its_key_is_in_no_trace(self, entry: WorkerEntry) -> None:
        def reply(request: httpx.Request) -> httpx.Response:
            return completion(f"You sent {request.headers['authorization']}")

        async def main() -> Outcome:
            worker = RemoteWorker(entry, httpx.MockTransport(reply))
            script = (plan(()), route(1, "cloud"), PASS, ANSWER)
            everyone = players(ScriptedPolicy(script))
            everyone = replace(everyone, workers={**everyone.workers, "cloud": worker})
            try:
                return await run_task("task", everyone)
            finally:
                await worker.aclose()

        outcome = asyncio.run(main())
        row = json.dumps(trajectory(outcome, pool()))
        assert "You sent Bearer [key]" in row
        assert KEY not in row


@pytest.mark.parametrize("address", ["http://[::1", "http://a:b"])
def test_a_base_url_that_is_no_address(address: str) -> None:
    entry = WorkerEntry(name="c", primitives=("reason",), model="x", base_url=address)
    with pytest.raises(PoolError, match="base_url is not an address"):
        RemoteWorker(entry)
