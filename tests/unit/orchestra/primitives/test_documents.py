"""`read_document` and `fact_check`: allowed paths only, text only, and quotes that exist."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerinfer.orchestra.primitives._files import LARGEST
from powerinfer.orchestra.primitives._passages import best_passages
from powerinfer.orchestra.primitives.fact_check import VERDICT_SCHEMA
from powerinfer.orchestra.primitives.primitive import Observation, PrimitiveError
from primitive_calls import ScriptedWorker, call, run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An allowed folder with documents, beside a secret that is not allowed."""
    (tmp_path / "secret.txt").write_text("sesame")
    documents = tmp_path / "documents"
    (documents / "inner").mkdir(parents=True)
    (documents / "notes.txt").write_text("\ufeffThe key is under the mat.\n", encoding="utf-8")
    (documents / "inner" / "more notes.txt").write_text("more")
    (documents / "link.txt").symlink_to(tmp_path / "secret.txt")
    (documents / "out").symlink_to(tmp_path)
    (documents / "binary").write_bytes(b"a\0b")
    (documents / "latin").write_bytes(b"caf\xe9")
    os.mkfifo(documents / "pipe")
    with (documents / "huge.txt").open("wb") as file:
        file.truncate(LARGEST + 1)
    return documents


def _read(query: str, *documents: Path) -> Observation:
    return run("read_document", call(query, documents=documents))


def test_allowed_documents(folder: Path) -> None:
    wanted = Observation("The key is under the mat.", untrusted=True)
    notes = folder / "notes.txt"
    for query in ("notes.txt", str(notes), "`notes.txt`", "notes.txt: Where is the key?"):
        assert _read(query, notes) == wanted
        assert _read(query, folder) == wanted
    assert _read("What does notes.txt say about keys?", notes) == wanted
    assert _read("inner/more notes.txt", folder).text == "more"
    assert _read(f"{folder}/inner/more notes.txt:\nAnything?", folder).text == "more"
    # A path of the user's own may be a link.
    assert _read("link.txt", folder / "link.txt").text == "sesame"


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("secret.txt", "no document 'secret.txt' is allowed; there are documents"),
        ("../secret.txt", "not a path that is allowed"),
        ("inner/../../secret.txt", "not a path that is allowed"),
        ("/etc/passwd", "no document '/etc/passwd' is allowed"),
        ("link.txt", "link.txt cannot be read: it is not a regular file"),
        ("out/secret.txt", "out/secret.txt cannot be read: (Not a directory|Too many levels)"),
        ("inner", "inner cannot be read: it is not a regular file"),
        ("pipe", "pipe cannot be read: it is not a regular file"),
        ("binary", "binary is not text in UTF-8"),
        ("latin", "latin is not text in UTF-8"),
        ("huge.txt", "huge.txt has more than 4 MiB"),
        ("notes.txt\0", "not a path"),
        ("", "expected 'NAME' or 'NAME: QUESTION'"),
        ("x" * 3_000, "expected 'NAME'"),
        ("x" * 300, "no document 'xxx"),
    ],
)
def test_what_is_not_read(folder: Path, query: str, message: str) -> None:
    with pytest.raises(PrimitiveError, match=message) as raised:
        _read(query, folder)
    assert "\n" not in str(raised.value)


def test_devices_and_endless_files_are_not_read() -> None:
    for path in (Path("/dev/zero"), Path("/dev/tty"), Path("/proc/self/environ")):
        with pytest.raises(PrimitiveError, match=r"cannot be read: |is not text"):
            _read(str(path), path)


def test_nothing_is_allowed_unless_it_is_given() -> None:
    with pytest.raises(PrimitiveError, match="no document is allowed; the user gives the paths"):
        _read("/etc/passwd")


def test_a_link_put_in_place_of_a_folder_leads_nowhere(folder: Path) -> None:
    (folder / "inner" / "more notes.txt").unlink()
    (folder / "inner").rmdir()
    (folder / "inner").symlink_to(folder.parent)
    with pytest.raises(PrimitiveError, match="cannot be read"):
        _read("inner/secret.txt", folder)


def test_long_documents_are_cut_to_what_the_question_is_about(tmp_path: Path) -> None:
    lines = [f"Line {number} speaks of weather and of wind.\n" for number in range(2_000)]
    lines[1_234] = "The vault opens with the number 77031.\n"
    (tmp_path / "long.txt").write_text("".join(lines))
    found = _read("long.txt: Which number opens the vault?", tmp_path / "long.txt").text
    assert "77031" in found
    assert found.startswith("Line 0 speaks")
    assert found.endswith("[...]")
    assert len(found) < 9_000


@given(st.text(max_size=3_000), st.text(max_size=40), st.integers(900, 2_000))
def test_passages_are_parts_of_the_text_in_its_order(text: str, question: str, most: int) -> None:
    found = best_passages(text, question, most)
    if len(text) <= most:
        assert found == text
        return
    position = 0
    for part in found.split("\n[...]\n"):
        position = text.index(part.strip("\n").removesuffix("\n[...]"), position)


def test_a_verdict_with_a_quote_that_exists() -> None:
    answer = json.dumps({"quote": "under  the MAT", "verdict": "supported"})
    worker = ScriptedWorker(answer)
    made = call("The key is under the mat.", "The key is under the mat.", ask=worker)
    assert run("fact_check", made) == Observation("supported: 'under  the MAT'")
    assert worker.schemas == [VERDICT_SCHEMA]


def test_a_quote_that_was_made_up_decides_nothing() -> None:
    for quote in ("in the safe", " "):
        worker = ScriptedWorker(json.dumps({"quote": quote, "verdict": "refuted"}))
        found = run("fact_check", call("Claim.", "The key is under the mat.", ask=worker))
        assert found.text.startswith("not enough evidence (the worker says refuted")
    worker = ScriptedWorker('{"quote": "", "verdict": "not enough evidence"}')
    assert run("fact_check", call("Claim.", "x", ask=worker)).text == "not enough evidence"


def test_without_earlier_results_the_allowed_documents_are_read(folder: Path) -> None:
    worker = ScriptedWorker('{"quote": "the key", "verdict": "supported"}')
    found = run("fact_check", call("A key.", ask=worker, documents=(folder / "notes.txt",)))
    assert found == Observation("supported: 'the key'", untrusted=True)
    assert "under the mat" in worker.messages[0]


@pytest.mark.parametrize("answer", ["yes", '{"verdict": "maybe"}', "[" * 9_000, '{"verdict"'])
def test_an_answer_without_a_verdict(answer: str) -> None:
    with pytest.raises(PrimitiveError, match="the worker did not answer with a verdict"):
        run("fact_check", call("Claim.", "text", ask=ScriptedWorker(answer)))


def test_nothing_to_check_against() -> None:
    with pytest.raises(PrimitiveError, match="fact_check has no documents"):
        run("fact_check", call("Claim.", ask=ScriptedWorker()))
