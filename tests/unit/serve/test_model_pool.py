"""Several models on one server: which one answers, when it is loaded, and when it leaves."""

import asyncio
import itertools
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from api_client import running_api
from fake_engine import FakeEngine
from fake_models import FakeModel, PoolApi, running_pool
from powerinfer.engine.request import Request
from powerinfer.errors import GGUFError, PromptError
from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.serve.engine_thread import EngineThread
from powerinfer.serve.metrics import ServerMetrics
from powerinfer.serve.model_source import ModelSource
from serving import wait_for

HELLO = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def models(tmp_path: Path) -> list[FakeModel]:
    return [FakeModel(name, tmp_path / name) for name in ("one", "two", "three")]


def _start(call: Callable[[], Any]) -> "Future[Any]":
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001  the test raises it
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


class TestChoice:
    def test_the_model_of_a_request_answers_it(self, models: list[FakeModel]) -> None:
        one, two, _ = models
        with running_pool(models) as api:
            assert api.ask(two) == "two1"
            assert api.ask("three.gguf") == "three1"
            assert not one.engines
            assert api.ask() == "one1"
            assert api.ask("") == "one1"
            assert api.ask(two) == "two1"
            body = {"model": "two", "messages": HELLO, "max_tokens": 1}
            answer = api.post("/v1/chat/completions", json=body).json()
            assert answer["model"] == "two"
            assert answer["choices"][0]["message"]["content"].startswith("two1")
            answer = api.post("/v1/messages", json=body).json()
            assert answer["content"][0]["text"].startswith("two1")
            answer = api.post("/completion", json={"model": "three", "prompt": "a"}).json()
            assert (answer["model"], answer["content"].split()[0]) == ("three", "three1")
            router = api.get("/props").json()
            assert (router["role"], router["max_instances"]) == ("router", 3)
            assert api.get("/props?model=two").json()["model_alias"] == "two"
            for path, fields in (
                ("/tokenize", {"content": "a"}),
                ("/detokenize", {"tokens": [300]}),
                ("/v1/messages/count_tokens", {"messages": HELLO}),
            ):
                assert api.post(path, json={"model": "two", **fields}).status_code == 200
        assert [len(model.engines) for model in models] == [1, 1, 1]

    @pytest.mark.parametrize(
        ("path", "fields"),
        [
            ("/v1/chat/completions", {"messages": HELLO}),
            ("/v1/completions", {"prompt": "a"}),
            ("/v1/messages", {"messages": HELLO, "max_tokens": 1}),
            ("/v1/messages/count_tokens", {"messages": HELLO}),
            ("/completion", {"prompt": "a"}),
            ("/tokenize", {"content": "a"}),
            ("/detokenize", {"tokens": [300]}),
        ],
    )
    def test_unknown_names(
        self, models: list[FakeModel], path: str, fields: dict[str, Any]
    ) -> None:
        with running_pool(models) as api:
            answer = api.post(path, json={"model": "four", **fields})
            assert answer.status_code == 404
            message = answer.json()["error"]["message"]
            assert message == "there is no model 'four'; this server has 'one', 'two', 'three'"
            if path == "/v1/messages":
                assert answer.json()["error"]["type"] == "not_found_error"
            answer = api.post(path, json={"model": 4, **fields})
            assert answer.status_code == 400
            assert "model" in answer.json()["error"]["message"]
            for other in ("/v1/models/four", "/props?model=four", "/panel?model=four"):
                assert api.get(other).status_code == 404
        assert not any(model.engines for model in models)

    def test_the_list_has_state_size_and_context(self, models: list[FakeModel]) -> None:
        one, two, three = models
        three.error = GGUFError("the file is damaged")
        with running_pool(models) as api:
            api.ask(two)
            assert api.complete(three).status_code == 503
            listed = api.get("/v1/models").json()["data"]
            assert [each["id"] for each in listed] == ["one", "two", "three"]
            assert [each["status"]["value"] for each in listed] == ["unloaded", "loaded", "failed"]
            assert listed[0]["meta"] == {"n_ctx": 512, "n_ctx_train": 999, "size": 7}
            assert listed[1]["meta"]["n_ctx"] == 512
            assert "the file is damaged" in listed[2]["status"]["error"]
            assert api.get("/v1/models/one.gguf").json() == listed[0]
        assert not one.engines


class TestLoading:
    def test_requests_wait_for_their_model(self, models: list[FakeModel]) -> None:
        two = models[1]
        two.may_load.clear()
        with running_pool(models) as api:
            waiting = [_start(lambda: api.ask(two)) for _ in range(3)]
            wait_for(lambda: len(api.pooled(two).waiters) == 3)
            wait_for(lambda: api.pooled(two).progress)
            health = api.get("/health")
            assert health.status_code == 200
            assert health.json() == {
                "status": "ok",
                "models": {
                    "one": {"status": "unloaded"},
                    "two": {"status": "loading", "progress": 0.5},
                    "three": {"status": "unloaded"},
                },
            }
            two.may_load.set()
            assert [each.result() for each in waiting] == ["two1"] * 3
            assert api.state(two) == "loaded"

    def test_a_request_waits_no_longer_than_it_may(self, models: list[FakeModel]) -> None:
        one = models[0]
        one.may_load.clear()
        with running_pool(models) as api:
            api.context.models.longest_wait_s = 0.01
            answer = api.complete(one)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
            assert answer.json()["error"]["code"] == "loading"
            assert "'one' is still loading" in answer.json()["error"]["message"]
            one.may_load.set()
            wait_for(lambda: api.state(one) == "loaded")
            assert api.ask(one) == "one1"

    def test_a_client_that_leaves_while_it_waits(self, models: list[FakeModel]) -> None:
        one = models[0]
        one.may_load.clear()
        with running_pool(models, request_timeout_s=0.05) as api:
            assert api.complete(one).status_code == 504
            assert not api.pooled(one).waiters
            one.may_load.set()
            wait_for(lambda: api.state(one) == "loaded")
            resident = api.pooled(one).resident
            assert resident is not None
            assert resident.num_users == 0

    @pytest.mark.parametrize(
        ("error", "status", "shown"),
        [
            (GGUFError("the file ends too early", remedy="{model}"), 503, "ends too early"),
            (PromptError("keys and values do not fit"), 400, "keys and values do not fit"),
            (ZeroDivisionError("x"), 503, "ZeroDivisionError"),
        ],
    )
    def test_a_model_that_cannot_be_loaded(
        self, models: list[FakeModel], error: Exception, status: int, shown: str
    ) -> None:
        one, two, _ = models
        one.error = error
        with running_pool(models) as api:
            for _ in range(2):
                answer = api.complete(one)
                assert answer.status_code == status
                assert shown in answer.json()["error"]["message"]
                assert "{" not in answer.json()["error"]["message"]
            # It needs no key, so it has no path of a file.
            assert api.get("/health").json()["models"]["one"] == {"status": "failed"}
            assert api.ask(two) == "two1"
            one.error = None
            assert api.ask(one) == "one1"
            assert "error" not in api.get("/v1/models/one").json()["status"]

    def test_a_server_that_ends_answers_those_who_wait(self, models: list[FakeModel]) -> None:
        one, two, _ = models
        one.may_load.clear()
        with running_pool(models) as api:
            assert api.ask(two) == "two1"
            waiting = _start(lambda: api.complete(one))
            wait_for(lambda: api.pooled(one).waiters)
            assert api.portal is not None
            api.portal.call(api.context.drain)
            for answer in (waiting.result(), api.complete(one), api.complete(two)):
                assert answer.status_code == 503
                assert answer.json()["error"]["code"] == "shutting_down"
            one.may_load.set()

    def test_a_file_that_changes_is_loaded_anew(self, models: list[FakeModel]) -> None:
        one = models[0]
        with running_pool(models, keep_alive_s=None) as api:
            assert [api.ask(one), api.ask(one)] == ["one1", "one1"]
            one.path.write_text("another text")
            assert [api.ask(one), api.ask(one)] == ["one2", "one2"]
            assert one.engines[0].is_closed
            # What was loaded needs no file.
            one.path.unlink()
            assert api.ask(one) == "one2"


class TestLeaving:
    def test_an_unused_model_leaves(self, models: list[FakeModel]) -> None:
        one = models[0]
        with running_pool(models, keep_alive_s=0) as api:
            assert api.ask(one) == "one1"
            wait_for(lambda: api.state(one) == "unloaded")
            wait_for(lambda: one.engines[0].is_closed)
            assert api.ask(one) == "one2"

    def test_a_model_that_nobody_waits_for_any_more_leaves(self, models: list[FakeModel]) -> None:
        one = models[0]
        one.may_load.clear()
        with running_pool(models, keep_alive_s=0, request_timeout_s=0.02) as api:
            assert api.complete(one).status_code == 504
            one.may_load.set()
            wait_for(lambda: one.engines and one.engine.is_closed)

    def test_time_begins_with_the_last_request(self, models: list[FakeModel]) -> None:
        one = models[0]
        with running_pool(models, keep_alive_s=1000) as api:
            api.ask(one)
            resident = api.pooled(one).resident
            assert resident is not None
            first = resident.leaving
            assert first is not None
            api.ask(one)
            assert first.cancelled()
            assert resident.leaving is not first

    def test_the_one_used_longest_ago_makes_room(self, models: list[FakeModel]) -> None:
        one, two, three = models
        with running_pool(models, memory_bytes=2) as api:
            for model in (one, two, one, three):
                api.ask(model)
            assert [api.state(each) for each in models] == ["loaded", "unloaded", "loaded"]
            assert two.engine.is_closed
            assert api.ask(two) == "two2"
            assert [api.state(each) for each in models] == ["unloaded", "loaded", "loaded"]

    def test_running_requests_finish_first(self, models: list[FakeModel]) -> None:
        one, two, _ = models
        with running_pool(models, keep_alive_s=1000, memory_bytes=1) as api:
            api.ask(one)
            resident = api.pooled(one).resident
            assert resident is not None
            one.engine.gate.clear()
            running = _start(lambda: api.ask(one))
            wait_for(lambda: one.engine.has_work)
            waiting = _start(lambda: api.ask(two))
            wait_for(lambda: api.pooled(one).resident is None)
            # It takes no more requests before the other one had its turn.
            later = _start(lambda: api.ask(one))
            wait_for(lambda: api.pooled(one).waiters)
            assert not two.engines
            one.engine.gate.set()
            assert running.result() == "one1"
            assert waiting.result() == "two1"
            assert later.result() == "one2"
            # A timer would keep its memory.
            assert resident.leaving is None

    def test_what_cannot_fit_is_refused_and_changes_nothing(self, models: list[FakeModel]) -> None:
        one, two, three = models
        three.needed_bytes = 5 << 20
        with running_pool(models, memory_bytes=3 << 20) as api:
            api.ask(one)
            answer = api.complete(three)
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "model_too_large"
            message = answer.json()["error"]["message"]
            assert "5.0 MiB" in message
            assert "2.0 MiB are missing" in message
            assert api.state(one) == "loaded"
            assert not three.engines
            api.ask(two)

    def test_places_are_shared(self, models: list[FakeModel]) -> None:
        one, two, _ = models
        with running_pool(models, parallel=1, max_queue=0) as api:
            api.ask(one)
            one.engine.gate.clear()
            running = _start(lambda: api.ask(one))
            wait_for(lambda: one.engine.has_work)
            assert api.complete(two).status_code == 429
            one.engine.gate.set()
            running.result()


class TestModelsThatComeAndGo:
    @pytest.fixture
    def api(self, models: list[FakeModel]) -> Iterator[PoolApi]:
        """A server of two of the models, which serves all that the list `models` has."""
        (one, two, _), models[:] = models, models[:2]
        with running_pool([one, two], keep_alive_s=1000) as api:
            pool = api.context.models
            pool.look_every_s = 0
            pool.find_sources = lambda: [each.source() for each in models]
            yield api

    def test_a_model_that_is_added(self, api: PoolApi, models: list[FakeModel]) -> None:
        assert api.complete("three").status_code == 404
        three = FakeModel("three", models[0].path.with_name("three"))
        models.insert(1, three)
        assert api.ask(three) == "three1"
        listed = [each["id"] for each in api.get("/v1/models").json()["data"]]
        assert listed == ["one", "three", "two"]
        assert 'powerinfer_model_loaded{model="three"} 1.0' in api.get("/metrics").text

    @pytest.mark.parametrize(
        ("path", "shown"),
        [
            ("/v1/models", '"three"'),
            ("/v1/models/three", '"three"'),
            ("/api/tags", '"three:latest"'),
        ],
    )
    def test_where_it_is_seen(
        self, api: PoolApi, models: list[FakeModel], path: str, shown: str
    ) -> None:
        models.append(FakeModel("three", models[0].path.with_name("three")))
        assert shown in api.get(path).text

    def test_a_model_that_is_removed(self, api: PoolApi, models: list[FakeModel]) -> None:
        one, two = models
        lines: list[str] = []
        api.context.models.tell = lines.append
        assert [api.ask(one), api.ask(two)] == ["one1", "two1"]
        two.engine.gate.clear()
        running = _start(lambda: api.ask(two))
        wait_for(lambda: two.engine.has_work)
        del models[1]
        assert [each["id"] for each in api.get("/v1/models").json()["data"]] == ["one"]
        assert api.complete(two).status_code == 404
        two.engine.gate.set()
        assert running.result() == "two1"
        wait_for(lambda: "unloaded two: it was removed" in lines)
        assert two.engine.is_closed
        # And is there again.
        models.append(two)
        assert api.ask(two) == "two2"

    def test_a_model_that_is_removed_while_it_loads(
        self, api: PoolApi, models: list[FakeModel]
    ) -> None:
        two = models[1]
        two.may_load.clear()
        waiting = _start(lambda: api.ask(two))
        wait_for(lambda: api.pooled(two).progress)
        del models[1]
        assert len(api.get("/v1/models").json()["data"]) == 2
        two.may_load.set()
        assert waiting.result() == "two1"
        assert len(api.get("/v1/models").json()["data"]) == 1
        wait_for(lambda: two.engine.is_closed)

    def test_it_looks_seldom(self, api: PoolApi, models: list[FakeModel]) -> None:
        looks: list[int] = []

        def find() -> list[ModelSource]:
            looks.append(len(looks))
            return [each.source() for each in models]

        api.context.models.find_sources = find
        api.context.models.look_every_s = 1000
        api.ask("one")
        # A model that is loaded needs no look.
        api.context.models.look_every_s = 0
        api.ask("one")
        assert looks == [0]
        api.context.models.look_every_s = 1000
        for _ in range(3):
            api.get("/v1/models")
            assert api.complete("four").status_code == 404
        assert looks == [0]

    def test_a_store_that_cannot_be_read(self, api: PoolApi) -> None:
        def find() -> list[ModelSource]:
            raise PermissionError("not yours")

        lines: list[str] = []
        api.context.models.tell = lines.append
        api.context.models.find_sources = find
        assert api.ask("one") == "one1"
        assert lines[0] == "cannot look for models: not yours"

    def test_the_only_model_is_joined_by_others(self, models: list[FakeModel]) -> None:
        one, two, _ = models
        served = [one]
        with running_api(["x"], model_name="one", is_story_model=True) as api:
            pool = api.context.models
            pool.look_every_s = 0
            pool.find_sources = lambda: [each.source() for each in served]
            body = {"prompt": "Hi", "max_tokens": 1}
            assert api.post("/v1/completions", json=body).status_code == 200
            assert "status" not in api.get("/v1/models").json()["data"][0]
            assert "powerinfer_generated_tokens_total 1.0" in api.get("/metrics").text
            assert "How does the story begin?" in api.get("/").text
            served.insert(0, two)
            assert "What would you like to know?" in api.get("/").text
            answer = api.post("/v1/completions", json={**body, "model": "two"})
            assert answer.json()["choices"][0]["text"] == "two1 "
            assert api.get("/health").json()["models"] == {
                "two": {"status": "loaded"},
                "one": {"status": "loaded"},
            }
            text = api.get("/metrics").text
            assert 'powerinfer_model_loaded{model="one"} 1.0' in text
            assert 'powerinfer_generated_tokens_total{model="two"} 1.0' in text
            answer = api.post("/v1/completions", json={**body, "model": "one"})
            assert answer.json()["choices"][0]["text"] == "x"
            # It may be unloaded now, and loaded again.
            assert api.post("/api/generate", json={"model": "one", "keep_alive": 0}).is_success
            assert api.get("/health").json()["models"]["one"] == {"status": "unloaded"}
            answer = api.post("/v1/completions", json={**body, "model": "one"})
            assert answer.json()["choices"][0]["text"] == "one1 "


def test_the_log_says_when_a_model_comes_and_why_it_goes(models: list[FakeModel]) -> None:
    one, two, three = models
    lines: list[str] = []
    with running_pool(models, keep_alive_s=1000, memory_bytes=1) as api:
        api.context.models.tell = lambda line: lines.append(re.sub(r"[\d.]+ s", "# s", line))
        api.ask(one)
        api.ask(two)
        two.path.write_text("another text")
        api.ask(two)
        three.error = GGUFError("the file is damaged")
        api.complete(three)
        three.error = None
        api.ask(three)
        api.post("/api/generate", json={"model": "three", "keep_alive": 0})
        body = {"model": "one", "keep_alive": 0, "prompt": "a", "stream": False}
        assert api.post("/api/generate", json=body).is_success
        wait_for(lambda: len(lines) == 11)
    assert lines == [
        "loaded one in # s",
        "unloaded one: room for two",
        "loaded two in # s",
        "unloaded two: its file has changed",
        "loaded two in # s",
        "unloaded two: room for three",
        "the model 'three' cannot be loaded: the file is damaged",
        "loaded three in # s",
        "unloaded three: a client asked for it",
        "loaded one in # s",
        "unloaded one: unused for # s",
    ]


class TestFigures:
    def test_metrics_by_model(self, models: list[FakeModel]) -> None:
        one = models[0]
        with running_pool(models) as api:
            text = api.get("/metrics").text
            assert 'powerinfer_requests_running{model="two"} 0.0' in text
            api.ask(one)
            text = api.get("/metrics").text
            assert 'powerinfer_generated_tokens_total{model="one"} 2.0' in text
            assert 'powerinfer_generated_tokens_total{model="two"} 0.0' in text
            assert 'powerinfer_model_loaded{model="one"} 1.0' in text
            assert 'powerinfer_model_loads_total{model="one"} 1.0' in text
            assert 'powerinfer_kv_blocks{model="one"} 64.0' in text

    def test_figures_of_a_model_that_has_left(self, models: list[FakeModel]) -> None:
        one = models[0]
        with running_pool(models, keep_alive_s=0) as api:
            api.ask(one)
            api.get("/metrics")
            wait_for(lambda: one.engine.is_closed)
            wait_for(lambda: 'powerinfer_model_loaded{model="one"} 0.0' in api.get("/metrics").text)
            text = api.get("/metrics").text
            assert 'powerinfer_kv_blocks{model="one"} 0.0' in text
            assert 'powerinfer_generated_tokens_total{model="one"} 2.0' in text

    def test_the_panel_shows_a_model_without_loading_it(self, models: list[FakeModel]) -> None:
        one, two, _ = models
        with running_pool(models) as api:
            figures = api.get("/panel?model=two").json()
            assert (figures["model"], figures["running"]) == ("two", None)
            assert not two.engines
            api.ask(one)
            figures = api.get("/panel").json()
            assert (figures["model"], figures["running"]) == ("one", 0)


class TestTurns:
    """Which engine the thread steps next."""

    @staticmethod
    def _order(
        costs: Sequence[float],
        num_steps: int,
        is_last_busy: Callable[[int], bool] = lambda _number: True,
    ) -> list[int]:
        """Engines by number in the order of their steps.

        Args:
            costs: seconds of a step of each engine.
            num_steps: how many are taken.
            is_last_busy: tells before which steps the last engine has work.
        """

        async def go() -> list[int]:
            with ThreadPoolExecutor(1) as pool:
                thread = EngineThread(pool)
                metrics = ServerMetrics().of("model")
                engines = [FakeEngine(["x"]) for _ in costs]
                running = [thread.add(engine, metrics) for engine in engines]
                order: list[int] = []
                for number in range(num_steps):
                    for engine in engines if is_last_busy(number) else engines[:-1]:
                        if not engine.has_work:
                            engine.submit(Request(prompt_ids=[1], params=SamplingParams()))
                    chosen = thread._choose()
                    assert chosen is not None
                    order.append(running.index(chosen))
                    chosen.turn_s += costs[order[-1]]
                    while engines[-1].has_work and not is_last_busy(number + 1):
                        engines[-1].step()
                return order

        return asyncio.run(go())

    @pytest.mark.parametrize("costs", [(1.0, 1.0), (1.0, 10.0), (0.005, 0.001), (0.001, 0.1)])
    def test_busy_ones_have_equal_times(self, costs: tuple[float, float]) -> None:
        order = self._order(costs, 400)
        first, second = (order.count(number) * costs[number] for number in (0, 1))
        assert abs(first - second) <= max(costs) + 0.01

    def test_turns_are_of_several_steps_and_short(self) -> None:
        costs = (0.005, 0.001, 0.001)
        order = self._order(costs, 400)
        turns = [costs[each] * len(list(steps)) for each, steps in itertools.groupby(order)][1:-1]
        assert min(turns) > 0.0099
        assert max(turns) < 0.0251

    def test_an_idle_one_saves_no_time_up(self) -> None:
        order = self._order((1.0, 1.0), 20, lambda number: number >= 10)
        assert order[:10] == [0] * 10
        assert 4 <= sum(order[10:]) <= 6

    def test_one_that_pauses_between_requests_keeps_its_share(self) -> None:
        """Its turns may end early, as soon as a request has ended."""
        costs = (0.005, 0.001)
        order = self._order(costs, 2000, lambda number: number % 50 not in (10, 11))
        first, second = (order.count(number) * costs[number] for number in (0, 1))
        assert abs(first - second) <= 0.06


def test_one_model_is_as_it_was() -> None:
    with running_api() as api:
        assert api.get("/health").json() == {"status": "ok"}
        (described,) = api.get("/v1/models").json()["data"]
        assert "status" not in described
        # llama-server ignores the name, too.
        assert api.post("/completion", json={"model": "x", "prompt": "a"}).status_code == 200
        for path in ("/panel", "/panel?model=x"):
            assert api.get(path).json()["model"] == "test-model"
        assert api.get("/props?model=x").json()["model_alias"] == "test-model"
