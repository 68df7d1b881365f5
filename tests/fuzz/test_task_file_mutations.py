"""Task files that were damaged at random are read or refused, never anything else."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from task_file_target import ROWS, read_everything, seeds

_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tasks") / "t.jsonl"


@given(row=st.sampled_from(ROWS), data=st.data())
def test_other_values(path: Path, row: dict[str, object], data: st.DataObject) -> None:
    changed = dict(row)
    changed[data.draw(st.sampled_from(sorted(row)))] = data.draw(_values)
    path.write_text("\n".join(json.dumps(each) for each in (row, changed)))
    read_everything(path)


@given(
    content=st.sampled_from(seeds()),
    cut=st.integers(0, 80),
    inserted=st.binary(max_size=6),
    length=st.integers(0, 12),
)
def test_other_bytes(path: Path, content: bytes, cut: int, inserted: bytes, length: int) -> None:
    path.write_bytes(content[:cut] + inserted + content[cut + length :])
    read_everything(path)
