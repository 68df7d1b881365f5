"""A tiny corpus folder, made without torch."""

from pathlib import Path

import zstandard

from recipes.stories.corpus import SEPARATOR

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
