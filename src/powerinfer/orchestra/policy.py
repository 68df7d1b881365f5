"""What decides: a model that writes one action after the other, within their grammar."""

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Protocol

from powerinfer.orchestra.actions import (
    Action,
    Element,
    FinalAnswer,
    Obs,
    Plan,
    ProtocolError,
    Route,
    Subtask,
    Turn,
    Verify,
    parse_elements,
    text_of,
)
from powerinfer.orchestra.grammar import action_grammar
from powerinfer.orchestra.pool import Pool
from powerinfer.orchestra.primitives.primitive import Permissions, Primitive
from powerinfer.orchestra.rules import Offers
from powerinfer.orchestra.state import State
from powerinfer.orchestra.workers.worker import Question, Worker, WorkerError

__all__ = ["Decision", "ModelPolicy", "Policy", "system_prompt"]

# An action has no more tokens; the longest is a final answer of 2000 characters.
_MOST_TOKENS = 2500
# Characters of each observation that the policy reads, and how long its own texts may be; the
# later ones are for contexts that are too small for the first. In the last it reads the task alone.
_SIZES = ((4000, 1.0), (1000, 0.5), (300, 0.2), (0, 0.1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """An action, and the tokens that it took."""

    action: Action
    prompt_tokens: int = 0
    tokens: int = 0


class Policy(Protocol):
    """Decides what comes next."""

    async def decide(self, task: str, state: State, offers: Offers) -> Decision:
        """Choose the next action.

        Args:
            state: one in which an action is due.
            offers: who may be routed to now.

        Raises:
            WorkerError: the model cannot answer.
        """
        ...


class ModelPolicy:
    """Any chat model as the policy.

    It cannot break the protocol, because a grammar made for each action bounds its form. Whether
    it decides well is another matter.
    """

    def __init__(
        self,
        worker: Worker,
        pool: Pool,
        primitives: Mapping[str, Primitive],
        permissions: Permissions | None = None,
        *,
        temperature: float = 0.0,
        seed: int | None = None,
    ) -> None:
        """Let a model of this machine decide.

        Args:
            worker: the model.
            permissions: tell it which documents, databases, hosts and commands there are.
            temperature: 0 takes the likeliest action.
        """
        self._worker = worker
        self._pool = pool
        self._primitives = primitives
        self._permissions = permissions or Permissions()
        self._temperature = temperature
        self._seed = seed

    def told(self, permissions: Permissions) -> "ModelPolicy":
        """Return the same policy, told of other documents, databases, hosts and commands."""
        other = copy(self)
        other._permissions = permissions
        return other

    async def decide(self, task: str, state: State, offers: Offers) -> Decision:
        """Choose the next action; see `Policy`.

        Raises:
            WorkerError: the model cannot answer, or its context is too small for the task.
        """
        system = system_prompt(self._pool, self._primitives, offers, self._permissions)
        for length, scale in _SIZES:
            grammar = action_grammar(state.next(offers), offers, scale)
            turns = _shortened(state, length) if length else []
            question = self._question(system if length else "", task, turns, grammar)
            try:
                answer = await self._worker.answer(question)
                action = _only_action(answer.text)
            except WorkerError as error:
                if not error.is_too_long:
                    raise
            except ProtocolError:
                # The end of the context has cut it.
                if not answer.is_cut:
                    raise
            else:
                return Decision(
                    action=action,
                    prompt_tokens=answer.prompt_tokens,
                    tokens=answer.tokens,
                )
        raise WorkerError("the task and its observations are longer than the policy's context")

    def _question(self, system: str, task: str, turns: list[Turn], grammar: str) -> Question:
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": task})
        begun = turns.pop().text + "\n" if turns and turns[-1].role == "assistant" else ""
        for turn in turns:
            # Few chat templates know a role for tools without calls.
            role = "assistant" if turn.role == "assistant" else "user"
            messages.append({"role": role, "content": turn.text})
        return Question(
            messages=messages,
            prefill=begun,
            grammar=grammar,
            max_tokens=_MOST_TOKENS,
            temperature=self._temperature,
            seed=self._seed,
        )


def _only_action(text: str) -> Action:
    elements = parse_elements(text)
    if len(elements) != 1 or isinstance(elements[0], Obs):
        raise ProtocolError(f"expected one action, got {text!r:.60}")
    return elements[0]


def system_prompt(
    pool: Pool, primitives: Mapping[str, Primitive], offers: Offers, permissions: Permissions
) -> str:
    """Explain the protocol, the workers and the primitives to the policy."""
    skills = sorted({name for offered in offers.values() for name in offered})
    return "\n".join(
        [
            "You lead a team. Answer the task at once if you are sure. Otherwise plan subtasks, "
            "route each to a worker that suffices and costs least, check the results, then answer.",
            "Workers, cheapest first:",
            *_workers(pool, offers),
            "Skills:",
            *(f"- {name}: {primitives[name].summary}" for name in skills),
            *_names(permissions),
            *_examples(offers),
        ]
    )


def _names(permissions: Permissions) -> Iterator[str]:
    """What queries may name."""
    for what, names in (
        ("Documents", sorted(each.name for each in permissions.documents)),
        ("Databases", sorted(each.name for each in permissions.databases)),
        ("Hosts", sorted(permissions.hosts)),
        ("Search commands", sorted(permissions.commands)),
    ):
        if names:
            yield f"{what}: {', '.join(names)}"


# Small models imitate rather than understand: a task, a query and its result, by primitive.
_EXAMPLES = {
    "direct_answer": ("Who wrote Hamlet?", "Name the author of Hamlet.", "William Shakespeare"),
    "symbolic_math": ("What is 3 times 4, plus 1?", "3*4 + 1", "13"),
}


def _examples(offers: Offers) -> Iterator[str]:
    for primitive, (task, query, result) in _EXAMPLES.items():
        able = [name for name, offered in offers.items() if primitive in offered]
        if not able:
            continue
        yield f"Example: {task}"
        yield text_of(Plan(1, (Subtask(1, (), query),)))
        yield text_of(Route(1, 1, able[0], primitive, query))
        yield f"The result {text_of(Obs(1, result))} follows. Then:"
        yield text_of(Verify(1, (), "it answers the task"))
        yield text_of(FinalAnswer(result))


def _workers(pool: Pool, offers: Offers) -> Iterator[str]:
    for worker in sorted(pool.workers, key=lambda each: each.cost.rank):
        offered = offers.get(worker.name, ())
        if offered:
            cost = worker.cost
            price = f", price {cost.price_per_million_tokens:g}" if cost.rank[0] else ""
            seconds = f", {cost.seconds_per_token:.3g} s/token" if cost.seconds_per_token else ""
            yield f"- {worker.name}: {', '.join(offered)}{seconds}{price}"


def _shortened(state: State, length: int) -> list[Turn]:
    return [
        Turn(turn.role, tuple(_short(each, length) for each in turn.elements))
        for turn in state.turns
    ]


def _short(element: Element, length: int) -> Element:
    if not isinstance(element, Obs) or len(element.text) <= length:
        return element
    return Obs(element.subtask, f"{element.text[:length]} ... (cut)")
