"""Inputs that once broke something, kept under ``crashers/<target>/``, stay fixed."""

from pathlib import Path

import pytest

import gguf_target
import safetensors_target
import tokenizer_target

CRASHERS = sorted((Path(__file__).parent / "crashers").glob("*/*"))
READERS = {
    "gguf": gguf_target.read_everything,
    "safetensors": safetensors_target.read_everything,
    "tokenizer": tokenizer_target.use_file,
}


@pytest.mark.parametrize("path", CRASHERS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_crasher_stays_fixed(path: Path) -> None:
    READERS[path.parent.name](path)
