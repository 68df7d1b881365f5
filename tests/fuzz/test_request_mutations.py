"""Bodies of requests that were damaged at random are read or refused, never anything else."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from request_target import BODIES, read_everything, seeds

_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("requests") / "body.json"


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Each place in a body where a value stands: what holds it, and its name or number there."""
    if not isinstance(value, dict | list):
        return []
    names = list(value) if isinstance(value, dict) else range(len(value))
    inner = [place for name in names for place in _places(value[name])]
    return [*((value, name) for name in names), *inner]


@given(body=st.sampled_from(BODIES), data=st.data())
def test_other_values(path: Path, body: dict[str, Any], data: st.DataObject) -> None:
    changed = json.loads(json.dumps(body))
    holder, name = data.draw(st.sampled_from(_places(changed)))
    holder[name] = data.draw(_values)
    path.write_text(json.dumps(changed))
    read_everything(path)


@given(
    content=st.sampled_from(seeds()),
    cut=st.integers(0, 400),
    inserted=st.binary(max_size=6),
    length=st.integers(0, 12),
)
def test_other_bytes(path: Path, content: bytes, cut: int, inserted: bytes, length: int) -> None:
    path.write_bytes(content[:cut] + inserted + content[cut + length :])
    read_everything(path)


def test_the_seeds_are_valid(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is read by one of the readers at least."""
    from powerinfer.serve.errors import ApiError

    refused: list[str] = []
    monkeypatch.setattr(ApiError, "__init__", _noting(ApiError.__init__, refused))
    for body in seeds():
        refused.clear()
        path.write_bytes(body)
        read_everything(path)
        assert len(refused) < 8, refused


def _noting(make: Any, refused: list[str]) -> Any:
    def init(self: Any, message: str, **fields: Any) -> None:
        refused.append(message)
        make(self, message, **fields)

    return init
