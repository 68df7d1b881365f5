"""A tiny corpus folder and a recipe small enough to train on it in seconds."""

from pathlib import Path

import zstandard

from powerinfer.offline.corpus import SEPARATOR, Source
from powerinfer.offline.recipe import Recipe, Stage
from powerinfer.offline.story_model import StoryConfig

NAMES = ("Tom", "Lily", "the fox", "a duck", "Grandma", "the king")
THINGS = ("a red ball", "the moon", "two apples", "a small boat", "an old hat")


def tiny_stories(count: int = 60) -> list[str]:
    return [
        f"Once {NAMES[i % 6]} found {THINGS[i % 5]}. {NAMES[(i + 1) % 6]} saw it {i} times."
        for i in range(count)
    ]


def write_corpus(folder: Path, name: str, documents: list[str], part: str = "train") -> Path:
    """Write ``text/NAME.PART.txt.zst`` under `folder` and return its path."""
    path = folder / "text" / f"{name}.{part}.txt.zst"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(document + SEPARATOR for document in documents)
    path.write_bytes(zstandard.ZstdCompressor().compress(text.encode()))
    return path


TINY_MODEL = StoryConfig(
    vocab_size=320,
    hidden_size=32,
    intermediate_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    context_length=64,
    dropout=0.1,
)

TINY_RECIPE = Recipe(
    model=TINY_MODEL,
    sources=(Source("first", held_out=5), Source("second")),
    stages=(
        Stage(until=0.5, seq_len=16, shares={"first": 0.5, "second": 0.5}),
        Stage(until=1.0, seq_len=32, shares={"first": 1.0}),
    ),
    steps=8,
    step_tokens=128,
    pass_tokens=64,
    warmup_steps=2,
)
