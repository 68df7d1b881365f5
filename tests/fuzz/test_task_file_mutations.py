"""Task files that were damaged at random are read or refused, never anything else."""

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerinfer.errors import TaskError
from powerinfer.evaluation.items import Item
from powerinfer.evaluation.task_files import read_json_lines, read_sentence_pairs

_ROWS = [
    {"query": "2 + 2 =", "choices": ["4", "5"], "gold": 0},
    {"context_options": ["A dog", "A cat"], "continuation": "meows.", "gold": 1},
    {"context": "Once upon a", "continuation": "time"},
]
_TABLE = b'sentence1\tsentence2\tlabel\n"a ""b"""\tb\t0\nc\td\tentailment\n'

_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tasks") / "t.jsonl"


@given(row=st.sampled_from(_ROWS), data=st.data())
def test_other_values(path: Path, row: dict[str, object], data: st.DataObject) -> None:
    changed = dict(row)
    changed[data.draw(st.sampled_from(sorted(row)))] = data.draw(_values)
    path.write_text("\n".join(json.dumps(each) for each in (row, changed)))
    with suppress(TaskError):
        for item in read_json_lines(path):
            _check(item)


@given(
    content=st.sampled_from([*(json.dumps(row).encode() for row in _ROWS), _TABLE]),
    cut=st.integers(0, 80),
    inserted=st.binary(max_size=6),
    length=st.integers(0, 12),
)
def test_other_bytes(path: Path, content: bytes, cut: int, inserted: bytes, length: int) -> None:
    path.write_bytes(content[:cut] + inserted + content[cut + length :])
    with suppress(TaskError):
        for item in read_json_lines(path):
            _check(item)
    with suppress(TaskError):
        for first, second, label in read_sentence_pairs(path):
            assert label in (0, 1)
            assert (first + second).encode() is not None


def _check(item: Item) -> None:
    """What the rest relies on."""
    texts = [
        text
        for name in item.__slots__
        for value in [getattr(item, name)]
        for text in ([value] if isinstance(value, str) else value if name != "gold" else [])
    ]
    assert all(isinstance(text, str) and text.encode() is not None for text in texts)
    gold, options = getattr(item, "gold", 0), getattr(item, "choices", ("", ""))
    assert 0 <= gold < len(getattr(item, "context_options", options))
