"""The documents are correct: links lead to files, quoted code is the real code."""

import re
from pathlib import Path

import pytest

from powerinfer import LLM

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


@pytest.mark.parametrize("name", ["python.md"])
def test_python_blocks_run_one_after_the_other(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a reader would type them, in one session; errors name the line of the page."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    session: dict[str, object] = {"__name__": "__main__"}
    try:
        for block in re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
            lines_before = text.count("\n", 0, block.start(1))
            exec(compile("\n" * lines_before + block[1], name, "exec"), session)
    finally:
        llm = session.get("llm")
        if isinstance(llm, LLM):
            llm.close()
    assert isinstance(llm, LLM)
