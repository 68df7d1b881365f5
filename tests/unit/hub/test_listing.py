"""Listings of the Hub: read strictly, whatever a server sends."""

import json
from pathlib import Path, PurePosixPath, PureWindowsPath

import pytest
from huggingface_hub import ModelInfo
from hypothesis import given
from hypothesis import strategies as st

from hub_server import Repository
from powerinfer import HubError
from powerinfer.hub.listing import (
    Listing,
    read_listing,
    recall_commit,
    recall_listing,
    store_listing,
    stored_listings,
    stored_revisions,
)
from powerinfer.hub.names import Reference

COMMIT = "a" * 40
SHA1, SHA256 = "b" * 40, "c" * 64


def sibling(path: object, **fields: object) -> dict[str, object]:
    return {"rfilename": path, "size": 3, "blobId": SHA1, **fields}


def read(*siblings: object, **fields: object) -> Listing:
    return read_listing(json.dumps({"sha": COMMIT, "siblings": siblings, **fields}).encode(), "o/n")


def test_what_the_hub_sends() -> None:
    found = read(
        sibling("z.gguf", lfs={"sha256": SHA256, "size": 3, "pointerSize": 1}, xetHash=SHA256),
        sibling("a/config.json", lfs=None),
        likes=7,
    )
    assert [file.path for file in found.files] == ["a/config.json", "z.gguf"]
    config, model = found.files
    assert (model.sha256, model.git_sha1, model.content) == (SHA256, None, SHA256)
    assert (config.sha256, config.git_sha1, config.content) == (None, SHA1, SHA1)
    assert (config.folder, config.name, model.folder) == ("a/", "config.json", "")


def test_the_library_reads_the_same_answer() -> None:
    # Our own server alone would not notice a key that the Hub does not send.
    answer = Repository({"a/model.gguf": b"12345", "config.json": b"{}"}, in_git=("config.json",))
    theirs = ModelInfo(**answer.listing()).siblings  # type: ignore[no-untyped-call]
    ours = read_listing(json.dumps(answer.listing()).encode(), "o/n").files
    assert theirs is not None
    assert [(each.rfilename, each.size) for each in theirs] == [
        (each.path, each.num_bytes) for each in ours
    ]


@pytest.mark.parametrize(
    "path",
    [
        *("", ".", "..", "/etc/passwd", "../x", "a/../../x", "a//b", "a/", "./a", "C:\\x", "a\\b"),
        *("c:x", "a\nb", "a\0b", "x" * 201, "/".join("x" * 600), 7, None, "a?", "a*"),
    ],
)
def test_paths_that_would_leave_the_folder_are_refused(path: object) -> None:
    with pytest.raises(HubError, match="hf:o/n: the server's listing cannot be used: siblings"):
        read(sibling(path))


@pytest.mark.parametrize(
    "fields",
    [
        {"size": -1},
        {"size": None},
        {"size": 1.5},
        {"size": 1 << 60},
        {"lfs": {"sha256": "../x"}},
        {"lfs": {"sha256": SHA1}},
        {"lfs": 1},
        {"lfs": {}},
        {"blobId": "x" * 40},
    ],
)
def test_sizes_and_hashes_are_checked(fields: dict[str, object]) -> None:
    with pytest.raises(HubError, match="listing cannot be used"):
        read(sibling("a", **fields))


@pytest.mark.parametrize("sha", ["main", "../" * 14, "A" * 40, "", None, 1])
def test_the_commit_is_a_hash_because_a_folder_is_called_so(sha: object) -> None:
    with pytest.raises(HubError, match="sha"):
        read(sha=sha)


@pytest.mark.parametrize(
    "text", [b"", b"<html>", b"[]", b"{}", b'{"sha": 1}', b"\xff", b"[" * 99999]
)
def test_what_is_no_listing(text: bytes) -> None:
    with pytest.raises(HubError, match="hf:o/n: the server's listing cannot be used"):
        read_listing(text, "o/n")


def test_a_file_twice() -> None:
    with pytest.raises(HubError, match="names a file twice"):
        read(sibling("a"), sibling("a"))


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from([SHA256, SHA1]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["rfilename", "size", "lfs", "sha256", "blobId"]), inner)
    ),
    max_leaves=8,
)


@given(st.lists(_VALUES | st.builds(sibling, st.text(max_size=30)), max_size=4))
def test_any_siblings_are_files_inside_the_folder_or_an_error(siblings: list[object]) -> None:
    try:
        found = read(*siblings)
    except HubError:
        return
    for file in found.files:
        for kind in (PurePosixPath, PureWindowsPath):
            path = kind(file.path)
            assert not path.is_absolute()
            assert ".." not in path.parts
            assert not path.drive


def test_listings_are_stored_by_commit_and_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    main, tag = Reference("o/n"), Reference("o/n", "Q4_0", "refs/pr/1")
    assert recall_listing(main) is None
    found = read(sibling("a", lfs={"sha256": SHA256}), sibling("b"), sibling("c", blobId=None))
    for reference in (main, tag):
        store_listing(reference, found)
        assert recall_listing(reference) == found
    assert recall_listing(Reference("o/n", None, COMMIT)) == found
    assert recall_commit(Reference("o/n", None, "f" * 40)) == "f" * 40
    assert stored_revisions("o/n") == [("main", COMMIT), ("refs/pr/1", COMMIT)]
    assert stored_listings("o/n") == [found]
    # What somebody else has put there is as good as nothing.
    (path,) = tmp_path.rglob("*.listing.json")
    path.write_text(path.read_text(encoding="utf-8").replace('"o/n"', '"o/m"'), encoding="utf-8")
    assert recall_listing(main) is None
    path.write_bytes(b"{")
    assert recall_listing(main) is None
