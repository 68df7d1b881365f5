"""Runs one task through lm-eval."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from lm_eval.evaluator import evaluate

from powerinfer.engine.llm import LLM
from powerinfer.evaluation.answers import Answers
from powerinfer.evaluation.engine_lm import EngineLM
from powerinfer.evaluation.local_task import LocalTask

__all__ = ["Progress", "ask", "ask_all"]

Scored = tuple[float, bool]
Progress = Callable[[str, int, int], None]
"""Called with (what is measured, so many done, in all)."""


def ask_all(
    llm: LLM, tasks: Sequence[LocalTask], setting: str, progress: Progress | None = None
) -> dict[str, Answers]:
    """Ask a model all items of several tasks.

    Args:
        llm: the model.
        tasks: may be asked several times.
        setting: that the model runs, for progress.
        progress: told after every item.

    Returns:
        The answers to each task, by its name.

    Raises:
        PromptError: an item cannot be scored.
        NumericsError: the model produced NaN or infinity.
    """

    def told(task: LocalTask) -> Callable[[int, int], None] | None:
        return None if progress is None else partial(progress, f"{task.task_name}, {setting}")

    return {task.task_name: ask(llm, task, told(task)) for task in tasks}


def ask(llm: LLM, task: LocalTask, progress: Callable[[int, int], None] | None = None) -> Answers:
    """Ask a model all items of a task.

    Args:
        llm: the model.
        task: the items; may be asked several times.
        progress: called with (requests done, requests in all).

    Raises:
        PromptError: an item cannot be scored.
        NumericsError: the model produced NaN or infinity.
    """
    lm = EngineLM(llm, progress)
    name = task.task_name
    # Nothing is drawn by lot: the metrics are means, whose standard errors `answers` computes.
    found = evaluate(lm, {"tasks": {name: task}}, bootstrap_iters=0, log_samples=True)
    samples = sorted(found["samples"][name], key=lambda sample: int(sample["doc_id"]))
    has_choices = task.OUTPUT_TYPE == "multiple_choice"
    is_normalized = "acc_norm" in samples[0]
    return Answers(
        chosen=tuple(_chosen(each["filtered_resps"], has_choices=has_choices) for each in samples),
        is_right=tuple(float(each["acc"]) for each in samples),
        is_right_normalized=(
            tuple(float(each["acc_norm"]) for each in samples) if is_normalized else None
        ),
        num_cut=lm.num_cut,
    )


def _chosen(scores: list[Scored], *, has_choices: bool) -> int:
    """The likeliest choice, the first of equals as lm-eval takes it; or whether it is greedy."""
    if not has_choices:
        return int(scores[0][1])
    return int(np.argmax([logprob for logprob, _ in scores]))
