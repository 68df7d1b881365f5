"""Execution of tasks by lm-eval."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from lm_eval.evaluator import evaluate

from powerinfer.engine.llm import LLM
from powerinfer.evaluation.answers import Answers
from powerinfer.evaluation.engine_lm import EngineLM
from powerinfer.evaluation.local_task import LocalTask

__all__ = ["Progress", "ask_all"]

Scored = tuple[float, bool]
Progress = Callable[[str, int, int], None]
"""Called with (title of the measurement, number done, number in all)."""


def ask_all(
    llm: LLM, tasks: Sequence[LocalTask], setting: str, progress: Progress | None = None
) -> dict[str, Answers]:
    """Ask a model all items of the tasks, which can be used again."""
    answers = {}
    for task in tasks:
        name = task.task_name
        notify = None if progress is None else partial(progress, f"{name}, {setting}")
        answers[name] = _ask(llm, task, notify)
    return answers


def _ask(llm: LLM, task: LocalTask, progress: Callable[[int, int], None] | None) -> Answers:
    lm = EngineLM(llm, progress)
    name = task.task_name
    # No bootstrap: the metrics are means, whose standard errors `answers` computes.
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
    """Return the likeliest choice, the first of equals like lm-eval; else 1 if greedy."""
    if not has_choices:
        return int(scores[0][1])
    return int(np.argmax([logprob for logprob, _ in scores]))
