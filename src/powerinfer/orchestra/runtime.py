"""Runs a task: the policy decides, workers work side by side, and every step is counted.

A subtask waits for those that it depends on and gets their results; it starts as soon as it is
routed and they are done.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

from powerinfer.errors import PowerInferError
from powerinfer.orchestra.actions import Action, Obs, Route
from powerinfer.orchestra.ledger import POLICY, Ledger, Step
from powerinfer.orchestra.policy import Policy
from powerinfer.orchestra.pool import Pool, leaves_machine, offers
from powerinfer.orchestra.primitives.primitive import (
    Asking,
    Call,
    Observation,
    Permissions,
    Primitive,
)
from powerinfer.orchestra.state import Next, State
from powerinfer.orchestra.workers.worker import Question, Worker, WorkerError

__all__ = ["Acted", "Event", "Observed", "Outcome", "Players", "Tell", "run_task"]

_log = logging.getLogger(__name__)

_LONGEST_OBSERVATION = 16_000


@dataclass(frozen=True, slots=True)
class Acted:
    """The policy has decided."""

    action: Action
    step: Step


@dataclass(frozen=True, slots=True)
class Observed:
    """A route has its result."""

    route: Route
    observation: Observation
    step: Step


Event: TypeAlias = Acted | Observed
Tell: TypeAlias = Callable[[Event], None]


@dataclass(frozen=True, kw_only=True)
class Players:
    """Everyone who takes part.

    Attributes:
        workers: models by name; tools have none.
    """

    pool: Pool
    policy: Policy
    workers: Mapping[str, Worker]
    primitives: Mapping[str, Primitive]
    permissions: Permissions = field(default_factory=Permissions)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a task.

    Attributes:
        answer: empty if `error` is not.
        state: all actions and observations.
        seconds: from the task to the answer.
        error: why there is no answer.
    """

    task: str
    answer: str
    state: State
    ledger: Ledger
    seconds: float
    error: str = ""


async def run_task(task: str, players: Players, tell: Tell = lambda _: None) -> Outcome:
    """Do a task.

    Errors of workers become observations. If the policy fails, there is an outcome without answer.

    Args:
        tell: called with each event as it happens.
    """
    return await _Run(task, players, tell).outcome()


class _Run:
    """One task in progress; `_calls` are the results of routes, by subtask."""

    def __init__(self, task: str, players: Players, tell: Tell) -> None:
        self._task = task
        self._players = players
        self._tell = tell
        self._state = State()
        self._steps: list[Step] = []
        self._calls: dict[int, asyncio.Task[Observation]] = {}

    async def outcome(self) -> Outcome:
        started = time.monotonic()
        error = ""
        try:
            while self._state.answer is None:
                await self._advance()
        except PowerInferError as problem:
            error = f"the policy failed: {problem.message or problem}"
        finally:
            await self._cancel_calls()
        answer = self._state.answer
        return Outcome(
            task=self._task,
            answer=answer.text if answer else "",
            state=self._state,
            ledger=Ledger(tuple(self._steps)),
            seconds=time.monotonic() - started,
            error=error,
        )

    async def _advance(self) -> None:
        """Take the observations that are due, or else let the policy act."""
        players = self._players
        offered = offers(players.pool, players.primitives, players.permissions, self._state)
        if self._state.next(offered) == Next():
            for route in self._state.unobserved:
                found = await self._calls[route.subtask]
                obs = Obs(route.subtask, found.text if found.ok else f"error: {found.text}")
                self._state = self._state.observed(obs, is_tainted=found.untrusted)
            return
        started = time.monotonic()
        decision = await players.policy.decide(self._task, self._state, offered)
        self._state = self._state.after(decision.action, offered)
        step = self._step(
            players.pool.policy, POLICY, decision.prompt_tokens, decision.tokens, started
        )
        self._tell(Acted(decision.action, step))
        if isinstance(decision.action, Route):
            work = self._work(decision.action, has_seen_untrusted=bool(self._state.tainted))
            self._calls[decision.action.subtask] = asyncio.create_task(work)

    async def _work(self, route: Route, *, has_seen_untrusted: bool) -> Observation:
        """Wait for what a route depends on, do it, and count it."""
        depends_on = self._state.subtasks[route.subtask].depends_on
        results = {each: await self._calls[each] for each in depends_on}
        started = time.monotonic()
        meter = _Meter()
        is_untrusted = has_seen_untrusted or any(each.untrusted for each in results.values())
        inputs = {number: each.text for number, each in results.items()}
        found = await self._observe(route, inputs, meter, is_untrusted=is_untrusted)
        step = self._step(
            route.worker,
            route.primitive,
            meter.prompt_tokens,
            meter.tokens,
            started,
            subtask=route.subtask,
            ok=found.ok,
        )
        self._tell(Observed(route, found, step))
        return found

    async def _observe(
        self, route: Route, inputs: Mapping[int, str], meter: "_Meter", *, is_untrusted: bool
    ) -> Observation:
        """Do a route; whatever goes wrong is an observation."""
        players = self._players
        entry, primitive = players.pool[route.worker], players.primitives[route.primitive]
        may_leave = players.permissions.let_data_leave or not is_untrusted
        if not may_leave and leaves_machine(entry, primitive):
            reason = "this could carry untrusted data out of the machine, which is not allowed"
            return Observation(reason, ok=False, untrusted=True)
        worker = players.workers.get(route.worker)
        call = Call(
            query=route.query,
            inputs=inputs,
            ask=None if worker is None else _asking(worker, meter),
            permissions=players.permissions,
            has_untrusted_input=is_untrusted,
        )
        try:
            async with asyncio.timeout(entry.timeout_s):
                found = await primitive.run(call)
        except TimeoutError:
            found = Observation(f"no result within {entry.timeout_s:g} s", ok=False)
        except PowerInferError as error:
            # What an address or a command has answered may be in it.
            reason = _one_line(error.message or str(error))
            found = Observation(reason, ok=False, untrusted=primitive.leaves_machine)
        except Exception as error:  # noqa: BLE001  a worker's fault must not end the run
            _log.exception("%s with %s failed", route.worker, route.primitive)
            found = Observation(f"it failed: {type(error).__name__}", ok=False)
        return Observation(_clean(found.text), found.ok, found.untrusted or is_untrusted)

    def _step(
        self,
        worker: str,
        primitive: str,
        prompt_tokens: int,
        tokens: int,
        started: float,
        *,
        subtask: int | None = None,
        ok: bool = True,
    ) -> Step:
        cost = self._players.pool[worker].cost
        step = Step(
            worker=worker,
            primitive=primitive,
            subtask=subtask,
            prompt_tokens=prompt_tokens,
            tokens=tokens,
            seconds=time.monotonic() - started,
            price=cost.price(prompt_tokens, tokens),
            joules=cost.joules_per_token * tokens,
            ok=ok,
        )
        self._steps.append(step)
        return step

    async def _cancel_calls(self) -> None:
        for call in self._calls.values():
            call.cancel()
        for call in self._calls.values():
            with suppress(asyncio.CancelledError):
                await call


@dataclass
class _Meter:
    """Tokens of one route's questions."""

    prompt_tokens: int = 0
    tokens: int = 0


def _asking(worker: Worker, meter: _Meter) -> Asking:
    async def ask(
        message: str,
        *,
        system: str | None = None,
        max_tokens: int = 512,
        json_schema: Mapping[str, object] | None = None,
    ) -> str:
        messages = [] if system is None else [{"role": "system", "content": system}]
        messages.append({"role": "user", "content": message})
        answer = await worker.answer(
            Question(messages=messages, max_tokens=max_tokens, json_schema=json_schema)
        )
        meter.prompt_tokens += answer.prompt_tokens
        meter.tokens += answer.tokens
        if not answer.text.strip():
            raise WorkerError("the worker said nothing")
        return answer.text

    return ask


def _clean(text: str) -> str:
    """Bound a text, which is valid Unicode afterwards."""
    valid = (
        text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\N{REPLACEMENT CHARACTER}")
    )
    if len(valid) <= _LONGEST_OBSERVATION:
        return valid
    return f"{valid[:_LONGEST_OBSERVATION]} ... ({len(valid)} characters, cut)"


def _one_line(text: str) -> str:
    return " ".join(text.split())[:500]
