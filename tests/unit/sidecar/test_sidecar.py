"""Files beside a model: each kind is one declaration, and everything else is the same for all."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerinfer.errors import CalibrationError
from powerinfer.sidecar import Field, Sidecar

pytestmark = pytest.mark.usefixtures("own_cache")

IDENTITY = "0123456789abcdef" * 4


@dataclass(frozen=True)
class Note:
    """What a fifth kind of file might hold."""

    of: str
    words: tuple[str, ...]


def _encode(note: Note) -> Mapping[str, object]:
    return {"of": note.of, "words": list(note.words)}


def _decode(top: Field) -> Note:
    fields = top.exactly("version", "of", "words")
    return Note(fields["of"].text(), tuple(word.text(8) for word in fields["words"].items(4)))


NOTE: Sidecar[Note] = Sidecar(
    noun="note",
    suffix=".note.json",
    folder="notes",
    version=3,
    largest_bytes=1 << 20,
    error=CalibrationError,
    encode=_encode,
    decode=_decode,
    identity=lambda note: note.of,
    remedy="write it again",
    remedy_for_others="write one for this one",
)
VALUE = Note(IDENTITY, ("a", "b"))


def test_it_is_written_beside_the_model_and_read(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    path = NOTE.save(model, VALUE, identity=IDENTITY)
    assert path == NOTE.beside(model) == tmp_path / "m.gguf.note.json"
    line = path.read_text()
    assert line == f'{{"version":3,"of":"{IDENTITY}","words":["a","b"]}}\n'
    assert NOTE.read(path) == NOTE.read(path, IDENTITY) == NOTE.from_json(line, "x") == VALUE
    assert list(tmp_path.iterdir()) == [path]
    assert not NOTE.has_cached()


def _full(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """No temporary file can be made there."""
    real = Path.open

    def refused(self: Path, mode: str = "r", buffering: int = -1) -> IO[bytes] | IO[str]:
        if self.parent == folder and "x" in mode:
            raise PermissionError(13, "Permission denied")
        return real(self, mode, buffering)

    monkeypatch.setattr(Path, "open", refused)


def test_where_the_folder_cannot_be_written_it_is_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "models" / "m.gguf"
    model.parent.mkdir()
    _full(monkeypatch, model.parent)
    # A folder that is writable and yet refuses is a fault that users should know of.
    with pytest.raises(CalibrationError, match="cannot write: Permission denied"):
        NOTE.save(model, VALUE, identity=IDENTITY)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(CalibrationError, match="cannot write: Permission denied"):
        NOTE.save(model, VALUE, identity=IDENTITY, may_lie_in_cache=False)
    path = NOTE.save(model, VALUE, identity=IDENTITY)
    assert path == NOTE.cached(IDENTITY)
    assert path == tmp_path / "cache" / "powerinfer" / "notes" / f"{IDENTITY}.note.json"
    assert NOTE.has_cached()
    assert NOTE.recall(path, IDENTITY) == VALUE


def test_a_model_beside_which_nothing_is_written(tmp_path: Path) -> None:
    path = NOTE.save(tmp_path / "m.gguf", VALUE, identity=IDENTITY, may_lie_beside=False)
    assert path == NOTE.cached(IDENTITY)
    assert not NOTE.beside(tmp_path / "m.gguf").exists()


def test_the_file_of_another_model(tmp_path: Path) -> None:
    path = NOTE.write(tmp_path / "n.json", VALUE)
    other = "f" * 64
    with pytest.raises(
        CalibrationError,
        match=r"n\.json: this note was made for another model \(identity 0123456789ab\.\.\., this "
        r"one's is ffffffffffff\.\.\.\): write one for this one$",
    ):
        NOTE.read(path, other)
    assert NOTE.recall(path, other) is None
    assert replace(NOTE, identity=None).read(path, other) == VALUE


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it is not JSON (line 1, column 1)"),
        ('{"version":\n!', "it is not JSON (line 2, column 1)"),
        ("[" * 100_000, "lists or objects are nested too deeply"),
        ("1" * 5000, "it has a number with thousands of digits"),
        (b"\x80", "it is not JSON (byte 0 is not UTF-8)"),
        ("[]", "the file is not an object"),
        ("{}", "the file has no field 'version'"),
        ('{"version": 4}', "version is 4; this program reads version 3"),
        ('{"version": "3"}', "version is not a whole number from 0"),
        ('{"version": 3}', "the file has no field 'of'"),
        ('{"version": 3, "of": 1, "words": ["a"]}', "of is not a text"),
        ('{"version": 3, "of": "", "words": []}', "words is not a list of 1 to 4 items"),
        ('{"version": 3, "of": "", "words": ["a", 1]}', "words[1] is not a text of at most 8"),
        ('{"version": 3, "of": "", "words": ["a"], "x": 1}', "the file has an unknown field 'x'"),
        ('{"version": 3, "a\\nb": 1}', "the file has no field 'of'"),
    ],
)
def test_a_damaged_file_is_one_line_that_names_the_field(
    tmp_path: Path, text: str | bytes, problem: str
) -> None:
    path = tmp_path / "n.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(CalibrationError) as caught:
        NOTE.read(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: the note cannot be used: ")
    assert problem in message
    assert message.endswith("; write it again")
    assert "\n" not in message
    assert NOTE.recall(path) is None


def test_files_that_are_missing_too_large_or_no_files(tmp_path: Path) -> None:
    path = tmp_path / "n.json"
    assert NOTE.recall(path) is None
    with pytest.raises(CalibrationError, match="No such file"):
        NOTE.read(path)
    path.write_bytes(bytes((1 << 20) + 1))
    with pytest.raises(CalibrationError, match="too large for a note"):
        NOTE.read(path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CalibrationError, match="not a regular file"):
        NOTE.read(tmp_path / "pipe")


def test_nothing_else_is_replaced(tmp_path: Path) -> None:
    NOTE.check_target(tmp_path / "new")
    NOTE.check_target(NOTE.write(tmp_path / "ours", replace(VALUE, of="another model")))
    (tmp_path / "empty").touch()
    NOTE.check_target(tmp_path / "empty")
    other = tmp_path / "other"
    other.write_text("{}")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for path in (other, tmp_path, tmp_path / "link"):
        with pytest.raises(CalibrationError, match=r"is not a readable note.* output$"):
            NOTE.check_target(path)


def test_what_cannot_be_kept_is_not_missed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    for name in ("one", "two"):
        NOTE.keep(tmp_path / "file" / "notes" / name, VALUE)
    # Said once: a machine without a home folder is used like that all the time.
    (record,) = caplog.records
    assert "cannot write: Not a directory" in record.getMessage()
    assert "will be repeated on every run" in record.getMessage()
    NOTE.keep(tmp_path / "kept", VALUE)
    assert NOTE.recall(tmp_path / "kept") == VALUE


def _field(value: object) -> Field:
    return Field(value, "x", CalibrationError)


@pytest.mark.parametrize(
    ("read", "good", "bad", "problem"),
    [
        (lambda f: f.boolean(), [True, False], [1, None, "true"], "x is neither true nor false"),
        (
            lambda f: f.integer(2, 5),
            [2, 5],
            [1, 6, 2.0, True, "2", None],
            "x is not a whole number from 2 to 5",
        ),
        (lambda f: f.number(0, 1), [0, 0.5, 1], [True, "0", None, [1]], "x is not a number"),
        (
            lambda f: f.number(0, 1),
            [0],
            [-0.001, 1.001, float("nan"), float("inf"), 10**400],
            "x must be a finite number from 0 to 1",
        ),
        (
            lambda f: f.number_or_null(0),
            [None, 0, 1e299],
            [-1, float("nan"), 1e300, 10**400, False, "0"],
            "x is neither null nor a finite number of at least 0",
        ),
        (lambda f: f.text(), ["", "a"], [None, 1, ["a"]], "x is not a text"),
        (lambda f: f.text(1), ["", "a"], ["ab", 1], "x is not a text of at most 1 characters"),
    ],
)
def test_values_and_their_limits(
    read: Callable[[Field], object], good: list[object], bad: list[object], problem: str
) -> None:
    for value in good:
        assert read(_field(value)) == value
    for value in bad:
        with pytest.raises(CalibrationError) as caught:
            read(_field(value))
        assert str(caught.value) == problem


def test_lists_of_numbers() -> None:
    counts = _field([0, 3, 9.0]).counts(9)
    assert counts.dtype == np.int64
    assert counts.tolist() == [0, 3, 9]
    for value, problem in (
        ([], "is not a list of numbers"),
        ({}, "is not a list of numbers"),
        ([1, True], "holds something that is not a finite number"),
        ([1, float("nan")], "holds something that is not a finite number"),
        ([2**70], "must hold numbers from 0 to 9"),
        ([-1], "must hold numbers from 0 to 9"),
        ([0.5], "must hold whole numbers"),
    ):
        with pytest.raises(CalibrationError, match=f"^x {problem}"):
            _field(value).counts(9)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(value=st.fixed_dictionaries({"version": st.just(3), "of": _JSON, "words": _JSON}))
def test_any_values_are_read_or_refused(value: dict[str, object]) -> None:
    try:
        note = NOTE.from_json(json.dumps(value), "file")
    except CalibrationError as error:
        assert str(error).startswith("file: the note cannot be used: ")
    else:
        assert NOTE.from_json(NOTE.to_json(note), "file") == note
