"""Decode speed with and without drafts, in turns, on tasks that answers copy from and on prose."""

import importlib.resources
import math
import statistics
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TypedDict

import numpy as np

from powerinfer.bench.machine import Machine, describe_machine
from powerinfer.engine.calls import run_all, text_request
from powerinfer.engine.drafts.drafter import Draft, Drafter, may_draft
from powerinfer.engine.engine import Engine
from powerinfer.engine.llm import LLM
from powerinfer.engine.text_stream import Generation
from powerinfer.errors import PowerInferError, UnsupportedError
from powerinfer.loading.loader import LoadedModel
from powerinfer.options.option_kinds import DRAFT_OFF
from powerinfer.sampling.sampling_params import SamplingParams

__all__ = [
    "DraftPlan",
    "DraftReport",
    "DraftResult",
    "DraftTask",
    "measure_drafts",
    "read_draft_tasks",
]

_FILE = "draft_tasks.toml"
_SYSTEM = {"role": "system", "content": "You are a helpful assistant."}


@dataclass(frozen=True, slots=True)
class DraftTask:
    """One message to a chat model.

    Attributes:
        kind: `rewriting`, `code`, `json` or `prose`; a good answer of the first three copies most
            of the message.
    """

    kind: str
    name: str
    prompt: str


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """What to measure.

    Attributes:
        setting: the option `draft` that is compared with none.
        acceptance: probability that a drafted token is right, of a drafter that knows the answers;
            None: the setting's own drafts.
        num_tokens: most tokens of an answer.
        repeats: measured rounds, after one that only computes the answers.
    """

    setting: str
    acceptance: float | None = None
    num_tokens: int = 256
    repeats: int = 3


class TaskReport(TypedDict):
    """Figures of one task as JSON values: medians, and the least and the greatest ratio."""

    kind: str
    task: str
    tokens: int
    tokens_per_s: float
    drafts_tokens_per_s: float
    ratio: float
    ratio_min: float
    ratio_max: float
    draft_accepted_share: float | None
    tokens_per_step: float


class DraftReport(TypedDict):
    """Figures as JSON values; `ratios` has the mean over the tasks of each kind."""

    model: str
    draft: str
    draft_acceptance: float | None
    sparsity: str
    threads: int
    kernels: str
    tasks: list[TaskReport]
    ratios: dict[str, float]
    machine: Machine


@dataclass(slots=True)
class TaskResult:
    """Samples of one task: decode speeds in tokens/s, without and with drafts, by round."""

    task: DraftTask
    num_tokens: int
    plain: list[float] = field(default_factory=list)
    drafted: list[float] = field(default_factory=list)
    accepted: list[float] = field(default_factory=list)
    per_step: list[float] = field(default_factory=list)

    def report(self) -> TaskReport:
        """Summarize the samples."""
        ratios = [ours / plain for plain, ours in zip(self.plain, self.drafted, strict=True)]
        return {
            "kind": self.task.kind,
            "task": self.task.name,
            "tokens": self.num_tokens,
            "tokens_per_s": statistics.median(self.plain),
            "drafts_tokens_per_s": statistics.median(self.drafted),
            "ratio": statistics.median(ratios),
            "ratio_min": min(ratios),
            "ratio_max": max(ratios),
            "draft_accepted_share": statistics.median(self.accepted) if self.accepted else None,
            "tokens_per_step": statistics.median(self.per_step),
        }


@dataclass(slots=True)
class DraftResult:
    """Samples of every task."""

    plan: DraftPlan
    tasks: list[TaskResult]

    def report(self, llm: LLM) -> DraftReport:
        """Summarize the samples."""
        loaded = llm.loaded
        tasks = [task.report() for task in self.tasks]
        kinds = dict.fromkeys(task["kind"] for task in tasks)
        return {
            "model": loaded.path.name,
            "draft": self.plan.setting,
            "draft_acceptance": self.plan.acceptance,
            "sparsity": loaded.model.sparsity,
            "threads": loaded.threads,
            "kernels": loaded.kernels,
            "tasks": tasks,
            "ratios": {
                kind: statistics.mean(task["ratio"] for task in tasks if task["kind"] == kind)
                for kind in kinds
            },
            "machine": describe_machine(),
        }


class ImperfectDrafter:
    """Knows how a text goes on, and is wrong at random.

    It serves as a dial: speed at an acceptance can be compared without a text that has it.
    """

    def __init__(
        self, token_ids: Sequence[int], acceptance: float, vocab_size: int, seed: int = 0
    ) -> None:
        """Prepare for one text.

        Args:
            token_ids: its prompt and its answer.
            acceptance: probability that a token is right, if those before it are.
        """
        self._token_ids = token_ids
        self._acceptance, self._vocab_size = acceptance, vocab_size
        self._random = np.random.default_rng(seed)

    def propose(self, token_ids: Sequence[int], most: int) -> Draft:
        """See `powerinfer.engine.drafts.drafter.Drafter.propose`."""
        coming = self._token_ids[len(token_ids) : len(token_ids) + most]
        is_right = self._random.random(len(coming)) < self._acceptance
        guesses = (
            token_id if right else (token_id + 1) % self._vocab_size
            for token_id, right in zip(coming, is_right, strict=True)
        )
        return Draft(tuple(guesses), range(1, 1 + len(coming)))


class _Side:
    """Greedy answers of a model, each computed alone, with keys and values of its own."""

    def __init__(self, loaded: LoadedModel, num_tokens: int) -> None:
        self._loaded, self._engine = loaded, Engine(loaded)
        self._params = SamplingParams(temperature=0.0, max_tokens=num_tokens)

    def close(self) -> None:
        self._engine.close()

    def answer(self, prompt_ids: list[int], setting: str, drafter: Drafter | None) -> Generation:
        """Answer a prompt with drafts of a setting, or of a drafter."""
        params = replace(self._params, draft=setting)
        request = replace(text_request(self._loaded, prompt_ids, params), drafter=drafter)
        ((generation,),) = run_all(
            self._engine, [request], lambda _, texts: [each.generation for each in texts]
        )
        return generation


def measure_drafts(
    llm: LLM,
    plan: DraftPlan,
    progress: Callable[[int, int], None] | None = None,
    tasks: Sequence[DraftTask] = (),
) -> DraftResult:
    """Answer every task without and with drafts, in turns, and return the samples.

    Args:
        progress: called with (answers computed, answers in all).
        tasks: () takes those of the package.

    Raises:
        UnsupportedError: there are no drafts on this device or with these kernels.
        PromptError: the context is too short for a task.
        PowerInferError: drafts changed an answer, which they must not.
    """
    if not may_draft(llm.loaded):
        raise UnsupportedError(
            "there are no drafts on a GPU or with reference kernels",
            remedy="measure them on a CPU, with its own kernels",
        )
    tasks = tasks or read_draft_tasks()
    prompts = [
        llm.chat_prompt([_SYSTEM, {"role": "user", "content": each.prompt}]) for each in tasks
    ]
    steps = _counted(progress, len(tasks) * (1 + 2 * plan.repeats))
    with closing(_Side(llm.loaded, plan.num_tokens)) as side:
        answers = []
        for prompt_ids in prompts:
            answers.append(side.answer(prompt_ids, DRAFT_OFF, None).token_ids)
            next(steps)
        results = [
            TaskResult(task, len(answer)) for task, answer in zip(tasks, answers, strict=True)
        ]
        for seed in range(plan.repeats):
            for result, prompt_ids, answer in zip(results, prompts, answers, strict=True):
                drafter = _drafter(llm.loaded, plan, [*prompt_ids, *answer], seed)
                for is_plain in (seed % 2 == 0, seed % 2 == 1):
                    setting = DRAFT_OFF if is_plain else plan.setting
                    found = side.answer(prompt_ids, setting, None if is_plain else drafter)
                    _keep(result, found, answer, is_plain=is_plain)
                    next(steps)
    return DraftResult(plan, results)


def _drafter(
    loaded: LoadedModel, plan: DraftPlan, token_ids: Sequence[int], seed: int
) -> Drafter | None:
    if plan.acceptance is None:
        return None
    vocab_size = loaded.model.config.vocab_size
    return ImperfectDrafter(token_ids, plan.acceptance, vocab_size, seed)


def _keep(result: TaskResult, found: Generation, answer: Sequence[int], *, is_plain: bool) -> None:
    """Keep the figures of an answer, once it is the one that was computed first."""
    if found.token_ids != answer:
        manner = "twice without drafts" if is_plain else "with drafts"
        raise PowerInferError(
            f"{result.task.name!r} got another answer {manner}, which must not be: please report it"
        )
    metrics = found.metrics
    (result.plain if is_plain else result.drafted).append(metrics.decode_tokens_per_s or math.nan)
    if not is_plain:
        result.per_step.append(metrics.tokens_per_step or 1.0)
        if metrics.draft_accepted_share is not None:
            result.accepted.append(metrics.draft_accepted_share)


def _counted(progress: Callable[[int, int], None] | None, total: int) -> Iterator[None]:
    """Report a step at each `next`."""
    for done in range(1, total + 1):
        if progress is not None:
            progress(done, total)
        yield


def read_draft_tasks() -> list[DraftTask]:
    """Return the tasks that come with the package."""
    folder = importlib.resources.files("powerinfer").joinpath("data")
    tables = tomllib.loads(folder.joinpath(_FILE).read_text(encoding="utf-8"))["task"]
    return [DraftTask(each["kind"], each["name"], each["prompt"].strip()) for each in tables]
