"""`LocalTask`: an lm-eval task with its items in memory, so that nothing is downloaded."""

import contextlib
import io
from dataclasses import asdict
from typing import Any

import datasets
from lm_eval.api.task import ConfigurableTask

from powerinfer.evaluation.items import Choices, Contexts, Continuation, Item
from powerinfer.evaluation.task import Task

__all__ = ["LocalTask"]

_SPLIT = "test"
# Names of fields instead of templates, so that the text of a file is never read as a template.
_FORMS: dict[type[Item], dict[str, object]] = {
    Choices: {
        "output_type": "multiple_choice",
        "doc_to_text": "query",
        "doc_to_choice": "choices",
        "doc_to_target": "gold",
    },
    # A number as text tells lm-eval that the choices are contexts.
    Contexts: {
        "output_type": "multiple_choice",
        "doc_to_text": "gold",
        "doc_to_choice": "context_options",
        "doc_to_target": "continuation",
    },
    Continuation: {
        "output_type": "loglikelihood",
        "doc_to_text": "context",
        "doc_to_target": "continuation",
    },
}


class LocalTask(ConfigurableTask):  # type: ignore[misc]  # lm-eval has no types
    """One of our tasks as lm-eval runs it."""

    def __init__(self, task: Task) -> None:
        """Define the task by lm-eval's configuration."""
        self._items = task.items
        metrics = ["acc", *(["acc_norm"] if task.is_normalized else [])]
        super().__init__(
            config={
                "task": task.name,
                "test_split": _SPLIT,
                "num_fewshot": 0,
                "target_delimiter": " ",
                "metric_list": [
                    {"metric": name, "aggregation": "mean", "higher_is_better": True}
                    for name in metrics
                ],
                **_FORMS[type(task.items[0])],
            }
        )
        self.set_fewshot_seed(seed=0)

    def download(self, dataset_kwargs: dict[str, Any] | None = None, **_: object) -> None:
        """Make a data set of the items; called by lm-eval."""
        rows = [_row(item) for item in self._items]
        self.dataset = {_SPLIT: datasets.Dataset.from_list(rows)}

    def build_all_requests(self, **arguments: Any) -> None:
        """Build the requests as lm-eval does, without its progress bar."""
        with contextlib.redirect_stderr(io.StringIO()):
            super().build_all_requests(**arguments)


def _row(item: Item) -> dict[str, object]:
    row = asdict(item)
    if isinstance(item, Continuation) and not item.continuation[0].isspace():
        # lm-eval joins these two without any delimiter.
        row["continuation"] = f" {item.continuation}"
    return row
