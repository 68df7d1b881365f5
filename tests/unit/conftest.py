"""Models, devices and settings that several unit tests use.

Models are made once a session: tests only read them, and write nothing beside them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from powerinfer import LLM
from powerinfer.convert import planning
from powerinfer.offload import devices
from powerinfer.tokenizer.tokenizer import Tokenizer
from tiny_models import TINY_MODELS, write_model

if TYPE_CHECKING:
    from fake_stream import Machine


@pytest.fixture(scope="session")
def shared_models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of models that stay as they are."""
    folder = tmp_path_factory.mktemp("shared-models")
    for name, file in (("llama", "tiny"), ("bamboo", "bamboo")):
        write_model(folder / f"{file}.gguf", TINY_MODELS[name])
    before = _state(folder)
    yield folder
    assert _state(folder) == before, "a test wrote beside models that all share"


def _state(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


@pytest.fixture(scope="session")
def tiny(shared_models: Path) -> Path:
    """A dense model."""
    return shared_models / "tiny.gguf"


@pytest.fixture(scope="session")
def bamboo(shared_models: Path) -> Path:
    """With PowerInfer's predictors."""
    return shared_models / "bamboo.gguf"


@pytest.fixture
def llm(tiny: Path) -> Iterator[LLM]:
    """The dense model on the reference backend."""
    with LLM(tiny, kernels="reference") as opened:
        yield opened


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> "Iterator[Machine]":
    """A simulated device; its tests skip themselves without torch, which this needs."""
    from fake_stream import running_machine

    with running_machine(monkeypatch) as made:
        yield made


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache folder of each test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same everywhere: the GPU is assumed."""
    monkeypatch.setattr(devices, "has_driver", lambda: False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


@pytest.fixture
def no_end_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random weights choose the end token at any moment; texts here go on to their limit."""
    monkeypatch.setattr(Tokenizer, "eog_ids", property(lambda _: frozenset()))


@pytest.fixture
def without_tokenizers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Converted models have no vocabulary, which would take longest."""
    monkeypatch.setattr(planning, "read_tokenizer", lambda _folder, _num_rows: {})
    monkeypatch.setattr(planning, "check_tokenizer", lambda _folder, _metadata: None)
