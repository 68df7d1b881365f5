"""Windows of tokens: which text they hold, going on in the middle, faults, memory."""

import json
import subprocess
import sys
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patience import PATIENCE_S
from powerinfer.errors import PowerInferError
from powerinfer.train import text_files
from powerinfer.train.token_windows import TokenWindows, text_identity

zstandard = pytest.importorskip("zstandard", reason="zstandard is not installed")

BOS = 1
SEPARATOR = "<|endoftext|>"


def code_points(text: str) -> list[int]:
    return [ord(letter) + 2 for letter in text]


def windows_of(paths: Sequence[Path], window: int = 8, bos_id: int | None = BOS) -> list[list[int]]:
    return [found.tolist() for found in TokenWindows(paths, code_points, window, bos_id)]


def text_of(windows: list[list[int]], bos: str = "") -> str:
    """The text in windows; of each the token that only begins the window is left out."""
    return "".join(bos if i == BOS else chr(i - 2) for ids in windows for i in ids)


def write(folder: Path, text: str, name: str = "text.txt") -> Path:
    path = folder / name
    content = text.encode()
    path.write_bytes(zstandard.compress(content) if path.suffix == ".zst" else content)
    return path


def test_windows_hold_the_whole_text_and_begin_with_bos(tmp_path: Path) -> None:
    path = write(tmp_path, "abcdefghijklmnopqrstuvwxyz")
    found = windows_of([path])
    assert [len(ids) for ids in found] == [8, 8, 8]
    assert [ids[0] for ids in found] == [BOS] * 3
    assert text_of(found) == "abcdefghijklmnopqrstu"  # the rest is too short
    assert TokenWindows([path], code_points, 8, BOS).__iter__().__next__().dtype == np.int32


def test_a_document_begins_with_bos_wherever_it_lies(tmp_path: Path) -> None:
    text = f"one\n{SEPARATOR}\n\ntwo {SEPARATOR} no\n\nthree\n\n{SEPARATOR}\r\n{SEPARATOR}\nfour\n"
    first, second = write(tmp_path, text), write(tmp_path, "five!", "b.txt")
    expected = f"|one|two {SEPARATOR} no\n\nthree|four|five!"
    (whole,) = windows_of([first, second], window=len(expected))
    assert text_of([whole], "|") == expected
    plain = text_of(windows_of([first, second], window=2, bos_id=None))
    assert plain == f"one\n\ntwo {SEPARATOR} no\n\nthree\n\nfour\n\nfive!"[: len(plain)]


def test_a_bos_that_begins_a_document_is_not_doubled(tmp_path: Path) -> None:
    path = write(tmp_path, f"abc\n{SEPARATOR}\ndef\n{SEPARATOR}\nghi")
    assert text_of(windows_of([path], window=4), "|") == "|abc|def|ghi"
    assert text_of(windows_of([path], window=6), "|") == "|abc|d|ef|gh"


def test_compressed_and_plain_text_are_the_same(tmp_path: Path) -> None:
    text = "Ein Wörterbuch.\n" * 40_000
    plain, small = write(tmp_path, text), write(tmp_path, text, "text.txt.zst")
    assert windows_of([plain], 64) == windows_of([small], 64)
    middle = len(text) // 3
    halves = [zstandard.compress(part.encode()) for part in (text[:middle], text[middle:])]
    small.write_bytes(b"".join(halves))  # two frames in one file
    assert windows_of([plain], 64) == windows_of([small], 64)


documents = st.lists(st.text("ab é\n\r😀", max_size=60), max_size=8)


@given(texts=st.lists(documents, min_size=1, max_size=3), data=st.data())
def test_any_cut_gives_the_same_windows(
    texts: list[list[str]], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("texts")
    paths = [
        write(folder, f"\n{SEPARATOR}\n".join(text), f"{number}.txt{suffix}")
        for number, text in enumerate(texts)
        for suffix in [data.draw(st.sampled_from(["", ".zst"]))]
    ]
    bos_id = data.draw(st.sampled_from([BOS, None]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_files, "PIECE_BYTES", data.draw(st.integers(32, 200)))
        patch.setattr(text_files, "_COMPRESSED_BYTES", data.draw(st.integers(1, 40)))
        whole = TokenWindows(paths, code_points, 5, bos_id)
        windows, positions, done = [], [whole.position], [0]
        try:
            for window in whole:
                windows.append(window.tolist())
                positions.append(json.loads(json.dumps(whole.position)))
                done.append(whole.done_bytes)
        except PowerInferError as error:
            assert "too short" in str(error)
        assert done == sorted(done)
        assert done[-1] <= whole.num_bytes
        cut = data.draw(st.integers(0, len(windows)))
        rest = TokenWindows(paths, code_points, 5, bos_id)
        rest.restore(positions[cut])
        if windows:
            assert [window.tolist() for window in rest] == windows[cut:]
    expected = [part.strip("\r\n") for text in texts for part in _documents(text)]
    found = text_of(windows).replace("\n", "").replace("\r", "")
    whole_text = "".join(expected).replace("\n", "").replace("\r", "")
    assert whole_text.startswith(found)
    assert len(whole_text) - len(found) < 5


def _documents(parts: list[str]) -> list[str]:
    return f"\n{SEPARATOR}\n".join(parts).split(f"\n{SEPARATOR}\n")


def test_where_pieces_end_is_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "".join(f"line {number}: é\n" for number in range(300))
    path = write(tmp_path, f"{lines}\n{SEPARATOR}\n{'x' * 500}\n")
    expected = windows_of([path], 7)
    for size in (32, 33, 50, 97, 1000):
        monkeypatch.setattr(text_files, "PIECE_BYTES", size)
        assert windows_of([path], 7) == expected


def test_iterating_goes_on_where_it_stood(tmp_path: Path) -> None:
    windows = TokenWindows([write(tmp_path, "abcdefghijkl")], code_points, 3, BOS)
    assert text_of([next(iter(windows)).tolist()]) == "ab"
    assert text_of([next(iter(windows)).tolist()]) == "cd"
    assert text_of([ids.tolist() for ids in windows]) == "efghijkl"
    assert list(windows) == []


def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    def peak(count: int) -> int:
        path = write(tmp_path, "a line of text\n" * count, "long.txt.zst")
        windows = TokenWindows([path], lambda text: [3] * (len(text) // 4), 512, BOS)
        tracemalloc.start()
        for _ in windows:
            pass
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    peak(1000)  # imports
    assert peak(1_000_000) < 1.5 * peak(100_000)


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (b"", "a.txt", r"a\.txt: too short: 0 tokens of text; expected at least 8"),
        (b"\n\n", "a.txt", "too short: 0 tokens"),
        (b"abc", "a.txt", "too short: 4 tokens"),
        (b"abc\xff" * 9, "a.txt", r"a\.txt: byte 3 is not UTF-8"),
        (b"abc" * 9, "a.txt.zst", "is damaged, or not compressed"),
        (zstandard.compress(b"abc" * 900)[:-3], "a.txt.zst", "is cut off|is damaged"),
        (None, "a.txt", r"a\.txt: no such file"),
    ],
)
def test_faults_are_one_line(
    tmp_path: Path, content: bytes | None, name: str, message: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(PowerInferError, match=message) as caught:
        windows_of([path])
    assert "\n" not in str(caught.value)


def test_the_place_of_a_bad_byte_counts_from_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_files, "PIECE_BYTES", 64)
    path = tmp_path / "text.txt"
    path.write_bytes(b"0123456789\n" * 100 + b"\xff\n" + b"abc\n" * 100)
    with pytest.raises(PowerInferError, match="byte 1100 is not UTF-8"):
        windows_of([path])


def test_only_files_can_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(PowerInferError, match="expected a file of text"):
        TokenWindows([tmp_path], code_points, 8, BOS)


@pytest.mark.parametrize(
    "change", [{"tokens": -1}, {"piece": "2"}, {"starts_document": 1}, {"x": 1}]
)
def test_a_position_of_something_else_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    windows = TokenWindows([write(tmp_path, "abcdefghijkl")], code_points, 3, BOS)
    with pytest.raises(PowerInferError, match="is no position in texts"):
        windows.restore({**windows.position, **change})


def test_identity_tells_texts_apart_not_names(tmp_path: Path) -> None:
    text = "some text\n" * 200_000
    first, same = write(tmp_path, text), write(tmp_path, text, "b.txt")
    other = write(tmp_path, text[:-2] + "T\n", "c.txt")
    longer = write(tmp_path, text + "\n", "d.txt")
    assert text_identity([first]) == text_identity([same])
    assert len({text_identity(p) for p in ([first], [other], [longer], [first, same])}) == 4


def test_texts_need_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; import powerinfer.train.token_windows"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
