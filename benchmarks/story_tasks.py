"""Makes two tasks for `powerinfer eval` out of stories, for models that know nothing but stories.

    python benchmarks/story_tasks.py STORIES.txt -o FOLDER

STORIES.txt has a line `<|endoftext|>` between stories, as TinyStories has; the first and the last
story are left out. Of each other one that is long enough the last sentence is cut off, and its
last word:

FOLDER/endings.jsonl  which of four sentences ends the story: its own, or one of three that end
                      the stories behind it
FOLDER/words.jsonl    the last word, which greedy decoding must write
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

_SEPARATOR = "<|endoftext|>"
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"])")
_LAST_WORD = re.compile(r"\s(?P<word>\w+)(?P<end>\W*)$")
_NUM_CHOICES = 4
# What comes before must suffice to tell, and fit a context of 512 tokens.
_SHORTEST, _LONGEST = 300, 1600
_SHORTEST_ENDING = 20


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stories", type=Path)
    parser.add_argument("-o", dest="folder", type=Path, required=True)
    options = parser.parse_args()
    stories = options.stories.read_text(encoding="utf-8").split(_SEPARATOR)
    # Of a piece of a larger file the first and the last may be cut.
    parts = list(divided(stories[1:-1]))
    if len(parts) < _NUM_CHOICES:
        sys.exit(f"error: {options.stories} has {len(parts)} stories that can be used")
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("endings", endings(parts)), ("words", words(parts))):
        lines = (json.dumps(row, ensure_ascii=False) for row in rows)
        (options.folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def divided(stories: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each story that can be used: all but its last sentence, and that one."""
    for story in stories:
        sentences = _SENTENCE_END.split(story.strip())
        ending = sentences[-1]
        before = story.strip().removesuffix(ending).rstrip()
        if _SHORTEST <= len(before) <= _LONGEST and len(ending) >= _SHORTEST_ENDING:
            yield before, ending


def endings(parts: Sequence[tuple[str, str]]) -> Iterator[dict[str, object]]:
    """Items with the endings of other stories to choose from; the right one stands anywhere."""
    for number, (before, ending) in enumerate(parts):
        others = [parts[(number + step) % len(parts)][1] for step in range(1, _NUM_CHOICES)]
        if ending in others:
            continue
        gold = number % _NUM_CHOICES
        choices = [*others[:gold], ending, *others[gold:]]
        yield {"query": before, "choices": choices, "gold": gold}


def words(parts: Sequence[tuple[str, str]]) -> Iterator[dict[str, object]]:
    """Items whose continuation is the last word."""
    for before, ending in parts:
        last = _LAST_WORD.search(ending)
        if last is not None:
            context = f"{before} {ending[: last.start()]}"
            yield {"context": context, "continuation": last["word"]}


if __name__ == "__main__":
    main()
