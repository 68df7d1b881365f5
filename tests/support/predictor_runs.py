"""A tiny model and text whose predictors are trained in a second or two."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tiny_models import TINY_MODELS, TinyModel, write_model

__all__ = [
    "LAYERS",
    "MODEL",
    "_STEPS",
    "arguments",
    "contents",
    "few_steps",
    "program",
    "write_inputs",
]

LAYERS = 3
_STEPS = 10
MODEL = replace(
    TINY_MODELS["llama-relu"], num_layers=LAYERS, context_length=64, format="f16", hidden_size=32
)
_PROGRAM = f"""
from powerinfer.train.predictors import training
training._LEAST_STEPS = {_STEPS}
from powerinfer.cli.main import main
main()
"""
_SENTENCE = "the dog saw a red ball and ran to it because she liked small green birds very much"


def write_inputs(folder: Path, model: TinyModel = MODEL) -> None:
    """Write `model.gguf` and `text.txt`, of about 5000 tokens: bytes."""
    write_model(folder / "model.gguf", model)
    words = _SENTENCE.split()
    text = " ".join(words[(7 * n * n + n) % len(words)] for n in range(1250))
    (folder / "text.txt").write_text(text, encoding="utf-8")


def arguments(folder: Path, output: str = "out") -> list[str]:
    """Of `powerinfer`, to train on these."""
    return [
        "train-predictors",
        *("-m", str(folder / "model.gguf"), "-f", str(folder / "text.txt")),
        *("-o", str(folder / output), "--max-share", "0.9", "-t", "1", "--device", "cpu"),
    ]


def contents(folder: Path) -> dict[str, bytes]:
    """What the files of a folder hold, with those in folders inside."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@contextmanager
def few_steps(count: int = _STEPS) -> Iterator[None]:
    """Train each rank for some steps only; needs torch."""
    from powerinfer.train.predictors import training

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "_LEAST_STEPS", count)
        yield


def program(*words: str) -> list[str]:
    """A process of its own that does `powerinfer WORDS` as `few_steps` does."""
    return [sys.executable, "-c", _PROGRAM, *words]
