"""A tiny model and text whose predictors are trained in a second or two."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from powerinfer import LLM
from powerinfer.engine.loader import LoadedModel
from tiny_models import TINY_MODELS, write_model

__all__ = ["LAYERS", "MODEL", "arguments", "contents", "loaded", "write_inputs"]

LAYERS = 3
MODEL = replace(
    TINY_MODELS["llama-relu"], num_layers=LAYERS, context_length=64, format="f16", hidden_size=32
)
_SENTENCE = "the dog saw a red ball and ran to it because she liked small green birds very much"


def write_inputs(folder: Path) -> None:
    """Write `model.gguf` and `text.txt`, of about 5000 tokens: bytes."""
    write_model(folder / "model.gguf", MODEL)
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
def loaded(path: Path) -> Iterator[LoadedModel]:
    """A model as it is trained on."""
    with LLM(path, sparsity="exact", device="cpu", threads=1) as llm:
        yield llm.loaded
