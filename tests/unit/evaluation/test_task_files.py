"""Task files: three forms of JSON lines and a table are read, anything else is refused by line."""

import json
from pathlib import Path

import pytest

from command_line import assert_error, invoke
from powerinfer.errors import TaskError
from powerinfer.evaluation.items import Choices, Contexts, Continuation
from powerinfer.evaluation.task import find_tasks
from powerinfer.evaluation.task_files import read_json_lines, read_sentence_pairs

CHOICES = {"query": "2 + 2 =", "choices": ["4", "5"], "gold": 0}
CONTEXTS = {"context_options": ["A dog", "A cat"], "continuation": "meows.", "gold": 1}
CONTINUATION = {"context": "Once upon a", "continuation": "time"}


def _write(path: Path, *rows: object) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_three_forms(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    items = read_json_lines(_write(path, CHOICES | {"category": "sums"}, CHOICES))
    assert items == (Choices("2 + 2 =", ("4", "5"), 0),) * 2
    assert read_json_lines(_write(path, CONTEXTS)) == (Contexts(("A dog", "A cat"), "meows.", 1),)
    assert read_json_lines(_write(path, CONTINUATION)) == (Continuation("Once upon a", "time"),)


def test_lines_end_with_line_feeds_alone(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    line = json.dumps(CHOICES | {"query": "a\u2028b\x85"}, ensure_ascii=False)
    path.write_bytes(f"\ufeff{line}\r\n\n  \n{line}".encode())
    assert [item.query for item in read_json_lines(path) if isinstance(item, Choices)] == [
        "a\u2028b\x85"
    ] * 2


def test_one_space_joins_and_is_not_doubled(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    (item,) = read_json_lines(_write(path, CHOICES | {"choices": [" 4", "5"]}))
    assert isinstance(item, Choices)
    assert item.choices == ("4", "5")


BAD = [
    (b"", r": has no items; expected one JSON object on each line"),
    (b"\n \n", r": has no items"),
    (b"{}", r":1: the keys \(none\); expected query, choices, gold or context_options, contin"),
    (b'{"question": "a", "answer": "b"}', r":1: the keys question, answer; expected query,"),
    (b"\n[1]", r":2: expected a JSON object, got \[1\]"),
    (b"{", r":1: not JSON: "),
    (b"[" * 100_000, r":1: JSON is nested too deeply"),
    (b'{"query": "\xff"}', r":1: byte 11 is not UTF-8"),
]
BAD_ROWS = [
    (CHOICES | {"choices": ["4"]}, "choices has 1 text; expected two or more"),
    (CHOICES | {"choices": []}, "choices has no text; expected two or more"),
    (CHOICES | {"choices": "45"}, "choices must be a list of texts, got '45'"),
    (CHOICES | {"choices": ["4", 5]}, "choices: expected a text, got 5"),
    (CHOICES | {"choices": ["4", ""]}, "choices: a text is empty"),
    (CHOICES | {"choices": ["4", " "]}, "choices: a text is empty"),
    (CHOICES | {"choices": ["4", "\ud800"]}, "choices has half of a surrogate pair"),
    (CHOICES | {"query": None}, "query: expected a text, got None"),
    (CHOICES | {"gold": 2}, "gold must be the index of one of 2, from 0 to 1, got 2"),
    (CHOICES | {"gold": -1}, "from 0 to 1, got -1"),
    (CHOICES | {"gold": "0"}, "from 0 to 1, got '0'"),
    (CHOICES | {"gold": True}, "from 0 to 1, got True"),
    (CHOICES | {"gold": 0.0}, "from 0 to 1, got 0.0"),
    (CONTEXTS | {"gold": 2}, "gold must be the index of one of 2"),
    (CONTEXTS | {"continuation": " "}, "continuation: a text is empty"),
    (CONTEXTS | {"context_options": ["A dog"]}, "context_options has 1 text"),
    (CONTINUATION | {"continuation": ""}, "continuation: a text is empty"),
    (CHOICES | {"query": "x" * 10_000, "gold": "y" * 10_000}, r"y{50,60}\.\.\.$"),
]


@pytest.mark.parametrize(("content", "message"), BAD, ids=range(len(BAD)))
def test_bad_files(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(content)
    with pytest.raises(TaskError, match=r"t\.jsonl" + message):
        read_json_lines(path)


@pytest.mark.parametrize(("row", "message"), BAD_ROWS, ids=range(len(BAD_ROWS)))
def test_bad_rows_are_named_by_line(tmp_path: Path, row: dict[str, object], message: str) -> None:
    good = next(each for each in (CHOICES, CONTEXTS, CONTINUATION) if each.keys() == row.keys())
    path = _write(tmp_path / "t.jsonl", good, row)
    with pytest.raises(TaskError, match=rf"t\.jsonl:2: .*{message}"):
        read_json_lines(path)
    assert_error(invoke("eval", "--tasks", path), "t.jsonl:2: ")


def test_forms_are_not_mixed(tmp_path: Path) -> None:
    path = _write(tmp_path / "t.jsonl", CONTEXTS, CHOICES)
    with pytest.raises(TaskError, match=r"expected context_options, .*, as in the lines before"):
        read_json_lines(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert_error(invoke("eval", "--tasks", tmp_path / "no.jsonl"), "no.jsonl: cannot be read")
    assert_error(invoke("eval", "--tasks", f"{tmp_path}/"), "cannot be read")


TABLE = "sentence1\tsentence2\tlabel\tidx\n"


def test_tables_with_and_without_quotation_marks(tmp_path: Path) -> None:
    path = tmp_path / "dev.tsv"
    path.write_text(
        TABLE
        + '"He said ""no""."\tHe said.\t0\t0\n'
        + '"No" he said.\tHe said "no".\tnot_entailment\t1\r\n'
    )
    assert read_sentence_pairs(path) == (
        ('He said "no".', "He said.", 0),
        ('"No" he said.', 'He said "no".', 1),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no items; expected a line that names the columns"),
        (TABLE, "has no items"),
        ("a\tb\n", "1: the columns a, b lack sentence1"),
        (TABLE + "a\tb\t0\n", "2: 3 cells, expected 4 as in line 1"),
        (TABLE + "a\tb\tyes\t0\n", "2: the label yes; expected 0, 1, entailment, not_entailment"),
    ],
)
def test_bad_tables(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "rte_dev.tsv"
    path.write_text(text)
    with pytest.raises(TaskError, match=message):
        read_sentence_pairs(path)
    assert_error(invoke("eval", "--tasks", "rte", "--data", tmp_path), "rte_dev.tsv:")


def test_named_tasks_find_their_files(tmp_path: Path) -> None:
    folder = tmp_path / "commonsense_reasoning"
    folder.mkdir()
    _write(folder / "piqa.jsonl", CHOICES | {"query": "Question: x\n"})
    (task,) = find_tasks(["piqa"], tmp_path)
    assert (task.name, task.path) == ("piqa", folder / "piqa.jsonl")
    assert task.items == (Choices("Question: x\nAnswer:", ("4", "5"), 0),)
    # The usual name comes first.
    _write(tmp_path / "piqa.jsonl", CHOICES)
    assert find_tasks(["piqa"], tmp_path)[0].path == tmp_path / "piqa.jsonl"


def test_errors_say_what_files_a_task_needs(tmp_path: Path) -> None:
    assert_error(
        invoke("eval", "--tasks", "copa"),
        "the task copa reads copa.jsonl or copa_valid.jsonl",
        "name the folder that has it with --data",
        "github.com/mosaicml/llm-foundry",
    )
    result = invoke("eval", "--tasks", "copa", "--data", tmp_path)
    assert_error(result, f"{tmp_path} has no copa.jsonl or ", "llm-foundry")
    result = invoke("eval", "--tasks", "pica", "--data", tmp_path)
    assert_error(result, "task 'pica' is not supported. Did you mean 'piqa'?", "./questions.jsonl")
    result = invoke("eval", "--tasks", "piqa", "--data", tmp_path / "none")
    assert_error(result, "none: no such folder")


def test_tasks_of_the_wrong_form(tmp_path: Path) -> None:
    _write(tmp_path / "piqa.jsonl", CONTEXTS)
    _write(tmp_path / "winograd.jsonl", CHOICES)
    choices, contexts = "query, choices, gold", "context_options, continuation, gold"
    for name, has, wanted in (("piqa", contexts, choices), ("winograd", choices, contexts)):
        message = f"{name}.jsonl:1: the keys {has}; expected {wanted}$"
        with pytest.raises(TaskError, match=message):
            find_tasks([name], tmp_path)


def test_two_files_of_one_name(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    paths = [_write(tmp_path / "t.jsonl", CHOICES), _write(tmp_path / "b" / "t.jsonl", CHOICES)]
    with pytest.raises(TaskError, match="would both be the task t; rename one"):
        find_tasks([str(path) for path in paths], None)
    assert len(find_tasks([str(paths[0])] * 2, None)) == 1


def test_every_sample_file_is_read(data_dir: Path) -> None:
    from powerinfer import _plugins

    names = _plugins.keys("powerinfer.evaluation.tasks")
    tasks = {task.name: task for task in find_tasks(names, data_dir / "eval")}
    assert {name: len(task.items) for name, task in tasks.items()} == {
        "arc_challenge": 1172,
        "arc_easy": 2376,
        "boolq": 3270,
        "commonsenseqa": 1221,
        "copa": 100,
        "hellaswag": 2000,
        "openbookqa": 500,
        "piqa": 1838,
        "rte": 277,
        "siqa": 1954,
        "winograd": 273,
    }


def test_items_in_other_words_stay_as_they_are(tmp_path: Path) -> None:
    """Of siqa, whose letters are replaced by the answers, if the query lists them."""
    other = CHOICES | {"choices": ["A", "B"]}
    listed = "Context: c\nQuestion: q\nChoices:\nA. yes\nAnswer:"
    _write(tmp_path / "siqa.jsonl", other, other | {"query": listed})
    (task,) = find_tasks(["siqa"], tmp_path)
    assert task.items == (
        Choices("2 + 2 =", ("A", "B"), 0),
        Choices(listed, ("A", "B"), 0),
    )


def test_choices_of_marks_alone_are_kept(tmp_path: Path) -> None:
    """hellaswag drops marks in brackets, but a choice must not become empty."""
    _write(tmp_path / "hellaswag.jsonl", CHOICES | {"choices": ["[step]", "[title] b"]})
    (task,) = find_tasks(["hellaswag"], tmp_path)
    assert task.items == (Choices("2 + 2 =", ("[step]", " b"), 0),)
