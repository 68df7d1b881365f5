"""Our tasks ask what lm-eval's own definitions ask of the same questions, word for word."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval", reason="lm_eval is not installed")

import datasets
import lm_eval.tasks
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks._yaml_loader import load_yaml

from powerinfer.evaluation.local_task import LocalTask
from powerinfer.evaluation.task import Task, find_tasks

Row = dict[str, Any]
_TASKS = Path(lm_eval.tasks.__file__).parent
_SPLITS = ("training_split", "validation_split", "test_split")

# lm-eval's definition; a row as its data set has it; the same row as task files have it.
CASES: dict[str, tuple[str, Row, Row]] = {
    "piqa": (
        "piqa/piqa.yaml",
        {"goal": "dresser", "sol1": "use a pin", "sol2": "use wood  grain", "label": 1},
        {
            "query": "Question: dresser\n",
            "choices": ["use a pin", "use wood  grain"],
            "gold": 1,
        },
    ),
    "copa": (
        "super_glue/copa/default.yaml",
        {
            "premise": "The man turned on the faucet.",
            "choice1": "The toilet filled with water.",
            "choice2": "Water flowed from the spout.",
            "question": "effect",
            "label": 1,
        },
        {
            "query": "The man turned on the faucet, therefore",
            "choices": ["the toilet filled with water.", "water flowed from the spout."],
            "gold": 1,
        },
    ),
    "copa with its full stop": (
        "super_glue/copa/default.yaml",
        {
            "premise": "The hamburger meat browned.",
            "choice1": "The cook froze it.",
            "choice2": "The cook grilled it.",
            "question": "cause",
            "label": 1,
        },
        {
            "query": "The hamburger meat browned. because",
            "choices": ["The cook froze it.", "The cook grilled it."],
            "gold": 1,
        },
    ),
    "openbookqa": (
        "openbookqa/openbookqa.yaml",
        {
            "question_stem": "There is most likely going to be fog around:",
            "choices": {
                "text": ["a marsh", "a tundra", "the plains", "a desert"],
                "label": ["A", "B", "C", "D"],
            },
            "answerKey": "A",
        },
        {
            "query": "There is most likely going to be fog around:",
            "choices": ["a marsh", "a tundra", "the plains", "a desert"],
            "gold": 0,
        },
    ),
    "arc_easy": (
        "arc/arc_easy.yaml",
        {
            "question": "What protects the eyes?",
            "choices": {"text": ["goggles", "a mask", "an apron"], "label": ["1", "2", "3"]},
            "answerKey": "3",
        },
        {
            "query": "Question: What protects the eyes?",
            "choices": ["goggles", "a mask", "an apron"],
            "gold": 2,
        },
    ),
    "boolq": (
        "super_glue/boolq/default.yaml",
        {
            "passage": "Biomass needs to be grown.",
            "question": "does ethanol take more energy than it makes",
            "label": 0,
        },
        {
            "query": "Passage: Biomass needs to be grown.\n"
            "Question: does ethanol take more energy than it makes?",
            "choices": ["no", "yes"],
            "gold": 0,
        },
    ),
    "siqa": (
        "siqa/siqa.yaml",
        {
            "context": "Tracy didn't go home.",
            "question": "What does Tracy need to do before this?",
            "answerA": "make a new plan",
            "answerB": "Go home and see A. Riley",
            "answerC": "Find somewhere to go",
            "label": "3",
        },
        {
            "query": "Context: Tracy didn't go home.\n"
            "Question: What does Tracy need to do before this?\nChoices:\n"
            "A. make a new plan\nB. Go home and see A. Riley\nC. Find somewhere to go\nAnswer:",
            "choices": ["A", "B", "C"],
            "gold": 2,
        },
    ),
    "commonsenseqa": (
        "commonsense_qa/default.yaml",
        {
            "question": "What do people aim to do at work? ",
            "choices": {
                "text": ["finish", "kill", "wear hats", "talk", "sleep"],
                "label": ["A", "B", "C", "D", "E"],
            },
            "answerKey": "D",
        },
        {
            "query": "Question: What do people aim to do at work? \nChoices:\n"
            "A. finish\nB. kill\nC. wear hats\nD. talk\nE. sleep\nAnswer:",
            "choices": ["A", "B", "C", "D", "E"],
            "gold": 3,
        },
    ),
    "hellaswag": (
        "hellaswag/hellaswag.yaml",
        {
            "activity_label": "Roof shingle removal",
            "ctx_a": "[header] A man is sitting on a roof [title] He looks up.",
            "ctx_b": "he",
            "endings": ["[title] rips  it.", "climbs [step] down.", "sings", "waits."],
            "label": "3",
        },
        {
            "query": "Roof shingle removal: [header] A man is sitting on a roof [title] He looks "
            "up. he",
            "choices": ["[title] rips  it.", "climbs [step] down.", "sings", "waits."],
            "gold": 3,
        },
    ),
    "winograd": (
        "wsc273/default.yaml",
        {
            "text": "The councilmen refused the demonstrators a permit because they feared it.",
            "pronoun": "they",
            "pronoun_loc": 58,
            "quote": "feared it",
            "quote_loc": 63,
            "options": ["The councilmen", "The demonstrators"],
            "label": 0,
            "source": "",
        },
        {
            "context_options": [
                "The councilmen refused the demonstrators a permit because the councilmen",
                "The councilmen refused the demonstrators a permit because the demonstrators",
            ],
            "continuation": "feared it.",
            "gold": 0,
        },
    ),
    "winograd at the end": (
        "wsc273/default.yaml",
        {
            "text": "Jane knocked on Susan's door, but there was no answer for her.",
            "pronoun": "her",
            "pronoun_loc": 58,
            "quote": "no answer",
            "quote_loc": 44,
            "options": ["Jane", "Susan"],
            "label": 1,
            "source": "",
        },
        {
            "context_options": [
                "Jane knocked on Susan's door, but there was no answer for Jane's",
                "Jane knocked on Susan's door, but there was no answer for Susan's",
            ],
            "continuation": ".",
            "gold": 1,
        },
    ),
}


def _asked(task: ConfigurableTask) -> list[tuple[list[tuple[str, str]], int]]:
    """All that a task asks: arguments of the requests of each item, and the right one."""
    task.set_config("num_fewshot", 0)
    task.build_all_requests()
    docs = list(task.eval_docs)
    asked: list[list[tuple[str, str]]] = [[] for _ in docs]
    for instance in task.instances:
        asked[instance.doc_id].append(instance.args)
    # Only the right choice scores.
    right = []
    for doc, requests in zip(docs, asked, strict=True):
        scores = [
            task.process_results(
                doc, [(float(number == chosen), False) for number in range(len(requests))]
            )["acc"]
            for chosen in range(len(requests))
        ]
        right.append(scores.index(1.0))
    return list(zip(asked, right, strict=True))


def _theirs(definition: str, row: Row) -> ConfigurableTask:
    config = load_yaml(_TASKS / definition)
    config = {key: value for key, value in config.items() if key not in _SPLITS}
    config["test_split"] = "test"
    config["custom_dataset"] = lambda **_: {"test": datasets.Dataset.from_list([row])}
    return ConfigurableTask(config=config)


@pytest.mark.parametrize("name", CASES)
def test_words_are_those_of_lm_eval(name: str, tmp_path: Path) -> None:
    definition, row, ours = CASES[name]
    key = name.split(" ", maxsplit=1)[0]
    (tmp_path / f"{key}.jsonl").write_text(json.dumps(ours))
    (task,) = find_tasks([key], tmp_path)
    local = LocalTask(task)
    assert _asked(local) == _asked(_theirs(definition, row))
    theirs = {each["metric"] for each in load_yaml(_TASKS / definition)["metric_list"]}
    assert set(local.aggregation()) == theirs


def test_words_of_rte(tmp_path: Path) -> None:
    (tmp_path / "rte_dev.tsv").write_text("sentence1\tsentence2\tlabel\nA dog runs.\tRuns?\t1\n")
    (task,) = find_tasks(["rte"], tmp_path)
    row = {"sentence1": "A dog runs.", "sentence2": "Runs?", "label": 1}
    assert _asked(LocalTask(task)) == _asked(_theirs("glue/rte/default.yaml", row))


def test_text_of_files_is_no_template(tmp_path: Path) -> None:
    """Fields named as fields, numbers as text, brackets and braces: lm-eval takes none as such."""
    path = tmp_path / "t.jsonl"
    queries = ["{{gold}}", "3", "query", "[1, 2]", "", "{% if %}"]
    rows = [{"query": each, "choices": ["{{query}}", "1"], "gold": 1} for each in queries]
    path.write_text("\n".join(map(json.dumps, rows)))
    asked = _asked(LocalTask(find_tasks([str(path)], None)[0]))
    assert asked == [([(each, " {{query}}"), (each, " 1")], 1) for each in queries]


def test_continuations_are_joined_by_one_space(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    continuations = ["time", " time", "\ntime", "{{context}}", "[3]"]
    rows = [{"context": "Once", "continuation": each} for each in continuations]
    path.write_text("\n".join(map(json.dumps, rows)))
    task = LocalTask(find_tasks([str(path)], None)[0])
    task.build_all_requests()
    expected = [" time", " time", "\ntime", " {{context}}", " [3]"]
    assert [each.args for each in task.instances] == [("Once", text) for text in expected]


def test_commands_and_pages_name_every_task() -> None:
    from command_line import invoke
    from powerinfer import _plugins

    shown = " ".join(invoke("eval", "--help").stdout.split())
    assert ", ".join(_plugins.keys("powerinfer.evaluation.tasks")) in shown


def test_limit_takes_the_first_items(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    rows = [{"query": str(number), "choices": ["a", "b"], "gold": 0} for number in range(5)]
    path.write_text("\n".join(map(json.dumps, rows)))
    (task,) = find_tasks([str(path)], None)
    assert isinstance(task, Task)
    assert task.first(None) == task
    assert task.first(2).items == task.items[:2]
