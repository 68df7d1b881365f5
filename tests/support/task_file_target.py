"""What fuzzing runs on task files: read one as each kind; only `TaskError` may come out."""

import json
from contextlib import suppress
from pathlib import Path

from powerinfer.errors import TaskError
from powerinfer.evaluation.items import Choices, Contexts, Item
from powerinfer.evaluation.task_files import read_json_lines, read_sentence_pairs

__all__ = ["ROWS", "read_everything", "seeds"]

ROWS: list[dict[str, object]] = [
    {"query": "2 + 2 =", "choices": ["4", "5"], "gold": 0},
    {"context_options": ["A dog", "A cat"], "continuation": "meows.", "gold": 1},
    {"context": "Once upon a", "continuation": "time"},
]
_TABLE = b'sentence1\tsentence2\tlabel\n"a ""b"""\tb\t0\nc\td\tentailment\n'


def seeds() -> list[bytes]:
    """A valid file of each kind."""
    return [*(json.dumps(row).encode() for row in ROWS), _TABLE]


def read_everything(path: Path) -> None:
    """Read a file as JSON lines and as a table, and check what the rest relies on."""
    with suppress(TaskError):
        items = read_json_lines(path)
        assert items
        assert len({type(item) for item in items}) == 1
        for item in items:
            _check(item)
    with suppress(TaskError):
        for first, second, label in read_sentence_pairs(path):
            assert label in (0, 1)
            _check_texts([first, second])


def _check(item: Item) -> None:
    if isinstance(item, Choices):
        _check_texts([item.query, *item.choices])
        assert all(item.choices)
        assert 0 <= item.gold < len(item.choices)
    elif isinstance(item, Contexts):
        _check_texts([item.continuation, *item.context_options])
        assert item.continuation
        assert 0 <= item.gold < len(item.context_options)
    else:
        _check_texts([item.context, item.continuation])
        assert item.continuation


def _check_texts(texts: list[str]) -> None:
    for text in texts:
        text.encode()
