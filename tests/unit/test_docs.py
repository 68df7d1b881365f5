"""The documents are correct: links lead to files, quoted code is the real code."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
_LINK = re.compile(r"\]\((?!https?://)([^)#]+)")
_PATH = re.compile(r"`((?:src|tests|scripts|cpp|benchmarks|docs|examples)/[\w./-]+)`")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_paths_lead_to_files(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    targets = [path.parent / link for link in _LINK.findall(text)]
    targets += [ROOT / name for name in _PATH.findall(text) if "NAME" not in name]
    missing = [target for target in targets if not target.exists()]
    assert missing == []


def test_the_example_of_an_architecture_is_the_real_file() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    quoted = text.split("```python\n")[1].split("```")[0]
    source = ROOT / "src" / "powerinfer" / "models" / "architectures" / "qwen2.py"
    assert source.read_text(encoding="utf-8").endswith(quoted)
