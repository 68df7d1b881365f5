"""Tasks of benchmarks/story_tasks.py: the right ending is the story's own."""

import json
import subprocess
import sys
from pathlib import Path

from pages import ROOT
from patience import PATIENCE_S
from powerinfer.evaluation.items import Choices, Continuation
from powerinfer.evaluation.task import find_tasks


def test_every_item_can_be_asked_and_is_of_its_story(tmp_path: Path) -> None:
    middle = "The bird sang a song. " * 20
    stories = [f'One day bird {i} sang. {middle}"Look!" said the cat number {i}.' for i in range(8)]
    (tmp_path / "stories.txt").write_text("\n<|endoftext|>\n".join(stories))
    script = ROOT / "benchmarks" / "story_tasks.py"
    command = [
        sys.executable,
        str(script),
        str(tmp_path / "stories.txt"),
        "-o",
        str(tmp_path / "tasks"),
    ]
    subprocess.run(command, check=True, timeout=PATIENCE_S)
    paths = [tmp_path / "tasks" / name for name in ("endings.jsonl", "words.jsonl")]
    endings, words = find_tasks([str(path) for path in paths], None)
    assert len(endings.items) == len(words.items) == 6
    golds = set()
    for number, (ending, word) in enumerate(zip(endings.items, words.items, strict=True), 1):
        assert isinstance(ending, Choices)
        assert isinstance(word, Continuation)
        assert ending.query == stories[number].removesuffix(
            f' "Look!" said the cat number {number}.'
        )
        assert len(set(ending.choices)) == 4
        assert ending.choices[ending.gold].endswith(f"number {number}.")
        golds.add(ending.gold)
        assert f"{word.context} {word.continuation}." == stories[number]
    assert len(golds) == 4
    assert json.loads(paths[0].read_text().splitlines()[0])["gold"] == 0


def test_too_few_stories_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "stories.txt").write_text("Once.\n<|endoftext|>\nTwice.")
    script = ROOT / "benchmarks" / "story_tasks.py"
    command = [
        sys.executable,
        str(script),
        str(tmp_path / "stories.txt"),
        "-o",
        str(tmp_path / "tasks"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
