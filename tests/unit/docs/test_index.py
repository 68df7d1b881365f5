"""The index of the documents: a short path for each kind of user, and no page that it forgets."""

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent.parent.parent / "docs"


def _index() -> str:
    return (DOCS / "README.md").read_text(encoding="utf-8")


def test_the_index_links_every_page() -> None:
    linked = set(re.findall(r"\]\(([\w-]+\.md)", _index()))
    pages = {path.name for path in DOCS.glob("*.md")} - {"README.md"}
    assert pages <= linked


def test_each_path_has_three_to_six_steps() -> None:
    paths = _index().split("\n## ")[1:]
    assert len(paths) == 4
    for path in paths:
        steps = re.findall(r"^(\d)\. \[", path, re.MULTILINE)
        assert steps == [str(number) for number in range(1, len(steps) + 1)]
        assert 3 <= len(steps) <= 6
