"""The pages are true: links lead somewhere, quoted code and figures are the real ones."""

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pages import PAGES, ROOT, anchors, links, page_name
from patience import PATIENCE_S
from powerinfer import LLM

_PATH = re.compile(r"`((?:src|tests|scripts|cpp|benchmarks|docs|examples)/[\w./-]+)`")

pages = pytest.mark.parametrize("page", PAGES, ids=page_name)


def _text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@pages
def test_links_and_paths_lead_to_files(page: Path) -> None:
    names = [link.split("#")[0] for link in links(_text(page)) if not _is_address(link)]
    targets = [page.parent / name for name in names if name]
    targets += [ROOT / name for name in _PATH.findall(_text(page)) if "NAME" not in name]
    missing = [str(target) for target in targets if not target.exists()]
    assert missing == []


@pages
def test_links_to_sections_lead_to_headings(page: Path) -> None:
    for link in links(_text(page)):
        name, _, section = link.partition("#")
        if section and not _is_address(link):
            target = page.parent / name if name else page
            assert section in anchors(_text(target)), f"{link}: no such heading in {target}"


@pages
def test_addresses_are_well_formed(page: Path) -> None:
    for link in filter(_is_address, links(_text(page))):
        parts = urlsplit(link)
        assert parts.scheme == "https", link
        assert re.fullmatch(r"[\w-]+(\.[\w-]+)+", parts.netloc), link


def _is_address(link: str) -> bool:
    return "://" in link


def test_headings_have_githubs_anchors() -> None:
    text = (
        "# `run` and [the plan](x.md)\n## GPU, CPU (so far)\n```sh\n# none\n```\n## Run\n## Run\n"
    )
    assert anchors(text) == {"run-and-the-plan", "gpu-cpu-so-far", "run", "run-1"}


def test_the_example_of_an_architecture_is_the_real_file() -> None:
    text = _text(ROOT / "CONTRIBUTING.md")
    quoted = text.split("```python\n")[1].split("```")[0]
    source = ROOT / "src" / "powerinfer" / "models" / "architectures" / "qwen2.py"
    assert source.read_text(encoding="utf-8").endswith(quoted)


def test_the_front_pages_python_runs() -> None:
    code = _text(ROOT / "README.md").split("```python\n")[1].split("```")[0]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    assert len(printed.getvalue().split()) > 10


def test_pictures_and_quoted_figures_are_those_of_the_results() -> None:
    script = ROOT / "benchmarks" / "make_pages.py"
    done = subprocess.run(
        [sys.executable, str(script), "--check"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["python.md"])
def test_python_blocks_run_one_after_the_other(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a reader would type them, in one session; errors name the line of the page."""
    monkeypatch.chdir(tmp_path)
    text = _text(ROOT / "docs" / name)
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


@pytest.mark.slow
def test_python_blocks_and_misspelt_reasons_as_mypy_sees_them(tmp_path: Path) -> None:
    """The page's blocks are one program without type errors; an unused ignore would be one."""
    mypy = pytest.importorskip("mypy.api", reason="mypy is not installed")
    text = _text(ROOT / "docs" / "python.md")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    wrong = 'if stream.generation.finish_reason == "stopped":  # type: ignore[comparison-overlap]\n'
    page = tmp_path / "page.py"
    page.write_text("\n".join([*blocks, wrong + "    pass\n"]), encoding="utf-8")
    options = [
        "--strict",
        "--config-file=",
        "--cache-dir",
        str(tmp_path),
        "--follow-imports=silent",
    ]
    found, errors, _ = mypy.run([*options, str(page)])
    assert found.startswith("Success"), found + errors
