"""Fetching models from a hub in this process: what is asked for, what is used, what goes wrong."""

import errno
import hashlib
import os
import random
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from hub_cases import hub_here, library_file
from hub_server import COMMIT, Hub, Repository
from powerinfer import HubError
from powerinfer.hub import client, download, fetch
from powerinfer.hub.fetch import checkpoint_folder, fetch_model

MODEL = random.Random(1).randbytes(300_000)
OTHER = random.Random(2).randbytes(100_000)
SECOND_COMMIT = "f" * 40


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_here(tmp_path, monkeypatch) as found:
        found.repositories["org/one"] = Repository({"m-Q4_0.gguf": MODEL, "README.md": b"text"})
        yield found


def part() -> Path:
    """Where the part of the model lies."""
    return our_file(f".m-Q4_0.gguf.{sha256(MODEL)[:12]}.incomplete")


def our_file(path: str, commit: str = COMMIT) -> Path:
    return Path(os.environ["XDG_CACHE_HOME"]) / "powerinfer/hub/org/one" / commit / path


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def begin(content: bytes) -> None:
    """What a process leaves that was killed."""
    part().parent.mkdir(parents=True, exist_ok=True)
    part().write_bytes(content)


def test_a_model_is_fetched_once(hub: Hub) -> None:
    found = fetch_model("hf:org/one")
    assert found.path.read_bytes() == MODEL
    assert found.path == our_file("m-Q4_0.gguf")
    assert (found.commit, found.num_bytes, found.fetched_bytes) == (COMMIT, 300_000, 300_000)
    assert [each.range for each in hub.requests_of_files()] == ["bytes=0-299999"]
    # The listing and the file, which another port sends.
    assert len(hub.asked) == 3
    assert not part().exists()
    hub.asked.clear()
    assert fetch_model("hf:org/one").path == found.path
    assert hub.asked == []


def test_pull_looks_for_something_newer_with_one_request(hub: Hub) -> None:
    fetch_model("hf:org/one")
    hub.asked.clear()
    again = fetch_model("hf:org/one", renews=True)
    assert (again.fetched_bytes, len(hub.asked)) == (0, 1)
    hub.repositories["org/one"].commit = SECOND_COMMIT
    hub.repositories["org/one"].files["m-Q4_0.gguf"] = OTHER
    assert fetch_model("hf:org/one").commit == COMMIT
    newer = fetch_model("hf:org/one", renews=True)
    assert (newer.commit, newer.path.read_bytes()) == (SECOND_COMMIT, OTHER)
    assert fetch_model("hf:org/one").commit == SECOND_COMMIT
    assert fetch_model(f"hf:org/one@{COMMIT}").path.read_bytes() == MODEL


def test_a_new_commit_with_the_same_file_fetches_nothing(hub: Hub) -> None:
    first = fetch_model("hf:org/one")
    hub.repositories["org/one"].commit = SECOND_COMMIT
    second = fetch_model("hf:org/one", renews=True)
    assert second.fetched_bytes == 0
    assert second.path.samefile(first.path)
    assert len(hub.requests_of_files()) == 1


def test_nothing_is_asked_that_is_not_needed(hub: Hub) -> None:
    """No request about telemetry, agents or etags; nothing of this machine in the headers."""
    fetch_model("hf:org/one", renews=True)
    paths = [each.path for each in hub.asked]
    file = f"/org/one/resolve/{COMMIT}/m-Q4_0.gguf"
    assert paths == ["/api/models/org/one?blobs=true", file, file]
    known = {"host", "accept", "connection", "user-agent", "accept-encoding", "range"}
    for each in hub.asked:
        assert set(each.headers) - known <= {"x-amzn-trace-id"}
        assert each.headers["user-agent"].startswith("powerinfer/")
        assert " " not in each.headers["user-agent"]


def test_the_token_stays_with_the_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.repositories["org/one"].is_gated = True
    assert fetch_model("hf:org/one").path.read_bytes() == MODEL
    tokens = {each.host: each.headers.get("authorization") for each in hub.asked}
    assert tokens == {"hub": "Bearer hf_secret", "cdn": None}


def test_a_token_file_and_its_prohibition(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(constants.HF_TOKEN_PATH).parent.mkdir(parents=True)
    Path(constants.HF_TOKEN_PATH).write_text("hf_stored", encoding="ascii")
    fetch_model("hf:org/one", renews=True)
    assert hub.asked[0].headers["authorization"] == "Bearer hf_stored"
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    fetch_model("hf:org/one", renews=True)
    assert "authorization" not in hub.asked[-1].headers


def test_a_part_is_continued_with_the_missing_bytes(hub: Hub) -> None:
    begin(MODEL[:123_456])
    told: list[tuple[int, int]] = []
    found = fetch_model("hf:org/one", progress=lambda *counts: told.append(counts))
    assert found.path.read_bytes() == MODEL
    assert [each.range for each in hub.requests_of_files()] == ["bytes=123456-299999"]
    assert found.fetched_bytes == 300_000 - 123_456
    assert told[0][0] <= 123_456
    assert told[-1] == (300_000, 300_000)
    assert told == sorted(told)


def test_a_whole_part_needs_no_request(hub: Hub) -> None:
    begin(MODEL)
    assert fetch_model("hf:org/one").path.read_bytes() == MODEL
    assert hub.requests_of_files() == []


def test_a_damaged_part_is_fetched_again(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    begin(bytes(200_000))
    assert fetch_model("hf:org/one").path.read_bytes() == MODEL
    ranges = [each.range for each in hub.requests_of_files()]
    assert ranges == ["bytes=200000-299999", "bytes=0-299999"]
    assert "a damaged part is fetched again" in caplog.text


def test_a_part_that_is_too_long_is_thrown_away(hub: Hub) -> None:
    begin(MODEL + b"more")
    assert fetch_model("hf:org/one").path.read_bytes() == MODEL


def test_cut_connections_are_taken_up_again(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    hub.cuts = [1 << 16, 0, 1 << 15, 1 << 14, 0, 0]
    assert fetch_model("hf:org/one").path.read_bytes() == MODEL
    begins = [int(each.range[6:].split("-")[0]) for each in hub.requests_of_files()]
    assert begins == [0, 65536, 65536, 98304, 114688, 114688, 114688]
    assert "trying again" in caplog.text


def test_a_connection_that_brings_nothing_is_given_up(hub: Hub) -> None:
    hub.cuts = [1 << 16, *[0] * 20]
    with pytest.raises(HubError, match=r"hf:org/one: m-Q4_0.gguf: .* is kept: try again"):
        fetch_model("hf:org/one")
    assert part().stat().st_size == 1 << 16
    hub.cuts.clear()
    hub.asked.clear()
    assert fetch_model("hf:org/one").path.read_bytes() == MODEL
    assert hub.requests_of_files()[0].range == "bytes=65536-299999"


def test_a_body_of_unknown_length_that_ends_early(hub: Hub) -> None:
    hub.hides_length = True
    hub.cuts = [1 << 16]
    assert fetch_model("hf:org/one").path.read_bytes() == MODEL
    assert len(hub.requests_of_files()) == 2


def test_a_server_that_ignores_ranges(hub: Hub) -> None:
    hub.ignores_ranges = True
    begin(MODEL[:123_456])
    assert fetch_model("hf:org/one").path.read_bytes() == MODEL
    assert len(hub.requests_of_files()) == 1


def test_a_server_that_ignores_ranges_and_cuts_is_given_up(hub: Hub) -> None:
    hub.ignores_ranges = True
    hub.cuts = [1 << 16] * 20
    with pytest.raises(HubError, match="try again"):
        fetch_model("hf:org/one")
    assert len(hub.requests_of_files()) < 8


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_failures_that_pass(hub: Hub, status: int) -> None:
    hub.answers = [status, status]
    assert fetch_model("hf:org/one").path.read_bytes() == MODEL


def test_failures_that_do_not_pass(hub: Hub) -> None:
    hub.answers = [503] * 9
    with pytest.raises(HubError, match="the server answers 503 Service Unavailable"):
        fetch_model("hf:org/one")
    hub.answers = [418]
    with pytest.raises(HubError, match="the server answers 418"):
        fetch_model("hf:org/one")


def test_a_long_wait_that_the_server_asks_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    retries = client.Retries("it", advice="later")
    monkeypatch.setattr(time, "sleep", lambda _: None)
    retries.wait("too many", 60)
    with pytest.raises(HubError, match=r"it: too many \(it asks to wait 3600 s\); later"):
        retries.wait("too many", 3600)


@pytest.mark.parametrize("ignores_ranges", [False, True])
def test_a_wrong_size(hub: Hub, ignores_ranges: bool) -> None:
    hub.ignores_ranges = ignores_ranges
    hub.repositories["org/one"].listed["m-Q4_0.gguf"] = {"size": 300_001}
    with pytest.raises(HubError, match="has 300,000 bytes, but the listing says 300,001"):
        fetch_model("hf:org/one")
    assert not our_file("m-Q4_0.gguf").exists()


def test_more_bytes_than_listed(hub: Hub) -> None:
    hub.ignores_ranges = hub.hides_length = True
    hub.repositories["org/one"].listed["m-Q4_0.gguf"] = {"size": 200_000}
    with pytest.raises(HubError, match="sends more than the 200,000 bytes"):
        fetch_model("hf:org/one")
    assert not our_file("m-Q4_0.gguf").exists()


def test_a_wrong_hash(hub: Hub) -> None:
    hub.repositories["org/one"].listed["m-Q4_0.gguf"] = {"lfs": {"sha256": "0" * 64}}
    with pytest.raises(HubError, match=r"m-Q4_0.gguf arrived damaged: its hash is not 000000"):
        fetch_model("hf:org/one")
    assert list(our_file("").iterdir()) == []


def test_the_hash_of_a_file_in_git(hub: Hub) -> None:
    repository = hub.repositories["org/one"]
    repository.in_git = ("m-Q4_0.gguf",)
    assert fetch_model("hf:org/one").path.read_bytes() == MODEL
    shutil.rmtree(our_file("").parent)
    repository.listed["m-Q4_0.gguf"] = {"blobId": "1" * 40}
    with pytest.raises(HubError, match="arrived damaged"):
        fetch_model("hf:org/one")


def test_split_files_and_statistics_come_together(hub: Hub) -> None:
    files = {f"m-0000{number}-of-00002.gguf": MODEL[:number] for number in (1, 2)}
    files |= {"activation/activation_0.pt": b"s" * 9, "activation/empty": b""}
    hub.repositories["org/one"] = Repository({**files, "other-Q8_0.gguf": OTHER})
    found = fetch_model("hf:org/one:m")
    assert found.path.name == "m-00001-of-00002.gguf"
    assert {path.relative_to(found.path.parent).as_posix() for path in found.files} == set(files)
    for path, content in files.items():
        assert our_file(path).read_bytes() == content
    assert not our_file("other-Q8_0.gguf").exists()
    # Nothing is asked of a file without bytes.
    assert len(hub.requests_of_files()) == 3


def test_revisions(hub: Hub) -> None:
    hub.repositories["org/one"].revisions = ("main", "v1", "refs/pr/3")
    for revision in ("v1", "refs/pr/3", COMMIT):
        assert fetch_model(f"hf:org/one@{revision}").commit == COMMIT
    asked = [each.path for each in hub.requests_of_listings()]
    # The listing of a commit that is known is not asked for again.
    assert [path.split("/revision/")[1] for path in asked] == [
        "v1?blobs=true",
        "refs%2Fpr%2F3?blobs=true",
    ]
    assert len(hub.requests_of_files()) == 1
    with pytest.raises(HubError, match="hf:org/one@v2: it has no revision 'v2'"):
        fetch_model("hf:org/one@v2")


def test_a_repository_that_is_not_there(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HubError, match=r"hf:org/none: no such repository at http.*set HF_TOKEN"):
        fetch_model("hf:org/none")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with pytest.raises(HubError, match=r"hf:org/none: no such repository at http"):
        fetch_model("hf:org/none")


def test_a_gated_repository_says_what_to_do(hub: Hub) -> None:
    hub.repositories["org/one"].is_gated = True
    with pytest.raises(HubError) as caught:
        fetch_model("hf:org/one")
    message = str(caught.value)
    assert f"accept its terms first, at {hub.endpoint}/org/one; then set HF_TOKEN" in message


def test_no_network(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(HubError, match=r"http://127.0.0.1:1 cannot be reached: .*HF_HUB_OFFLINE=1"):
        fetch_model("hf:org/one")


def test_no_network_but_caches(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = fetch_model("hf:org/one")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    assert fetch_model("hf:org/one").path == found.path
    assert caplog.text == ""
    assert fetch_model("hf:org/one", renews=True).path == found.path
    assert "going on with what is in the caches" in caplog.text


@pytest.mark.parametrize("endpoint", ["localhost:80", "ftp://host", "http://", "http://[", ""])
def test_an_endpoint_that_is_no_address(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    with pytest.raises(HubError, match=r"HF_ENDPOINT is .* no address"):
        fetch_model("hf:org/one")


def test_offline(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match="not in the caches of this machine; and HF_HUB_OFFLINE"):
        fetch_model("hf:org/one", renews=True)
    assert hub.asked == []
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    fetch_model("hf:org/one")
    hub.asked.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch_model("hf:org/one", renews=True).path.read_bytes() == MODEL
    our_file("m-Q4_0.gguf").unlink()
    with pytest.raises(HubError, match=r"m-Q4_0.gguf is not in the caches .* HF_HUB_OFFLINE"):
        fetch_model("hf:org/one")
    assert hub.asked == []


def test_a_model_that_must_be_here(hub: Hub) -> None:
    with pytest.raises(HubError, match="fetch it: powerinfer pull hf:org/one"):
        fetch_model("hf:org/one", fetches=False)
    assert hub.asked == []


def test_what_the_library_holds_is_used(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    held = library_file("org/one", COMMIT, "m-Q4_0.gguf", MODEL, sha256(MODEL))
    found = fetch_model("hf:org/one")
    assert (found.path, found.fetched_bytes) == (held, 0)
    assert [each.path for each in hub.asked] == ["/api/models/org/one?blobs=true"]
    hub.asked.clear()
    assert fetch_model("hf:org/one").path == held
    assert hub.asked == []


def test_the_librarys_cache_serves_without_network_and_listing(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    held = library_file("org/one", COMMIT, "m-Q4_0.gguf", MODEL, sha256(MODEL))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    assert fetch_model("hf:org/one").path == held
    assert "cannot be reached" in caplog.text
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch_model("hf:org/one:q4_0").path == held
    assert fetch_model(f"hf:org/one@{COMMIT}").path == held
    with pytest.raises(HubError, match="not in the caches"):
        fetch_model("hf:org/one@v1")


def test_the_librarys_file_of_another_commit_is_linked(hub: Hub) -> None:
    held = library_file("org/one", SECOND_COMMIT, "m-Q4_0.gguf", MODEL, sha256(MODEL))
    found = fetch_model("hf:org/one")
    assert hub.requests_of_files() == []
    assert found.path == our_file("m-Q4_0.gguf")
    assert found.path.resolve() == held.resolve()


def test_what_the_library_lacks_is_fetched_beside_links(hub: Hub) -> None:
    files = {"m-00001-of-00002.gguf": MODEL, "m-00002-of-00002.gguf": OTHER}
    hub.repositories["org/one"] = Repository(dict(files))
    held = library_file("org/one", COMMIT, "m-00001-of-00002.gguf", MODEL, sha256(MODEL))
    found = fetch_model("hf:org/one")
    assert found.fetched_bytes == len(OTHER)
    assert found.path.parent == our_file("")
    assert found.path.resolve() == held.resolve()
    # Its owner may remove it: then it is fetched.
    held.resolve().unlink()
    assert fetch_model("hf:org/one").path.read_bytes() == MODEL
    assert not our_file("m-00001-of-00002.gguf").is_symlink()


def test_a_file_of_the_library_with_another_size_is_not_used(hub: Hub) -> None:
    library_file("org/one", COMMIT, "m-Q4_0.gguf", MODEL[:-1], sha256(MODEL))
    assert fetch_model("hf:org/one").path.read_bytes() == MODEL


def test_a_cache_that_cannot_be_written(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = Path(os.environ["XDG_CACHE_HOME"]) / "powerinfer"
    blocked.parent.mkdir()
    blocked.write_bytes(b"")
    with pytest.raises(HubError, match="cannot write"):
        fetch_model("hf:org/one")
    held = library_file("org/one", COMMIT, "m-Q4_0.gguf", MODEL, sha256(MODEL))
    assert fetch_model("hf:org/one").path == held


def test_a_disk_without_room_is_noticed_first(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=299_999)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(
        HubError, match=r"293.0 KiB have to be fetched, but only 293.0 KiB are free"
    ):
        fetch_model("hf:org/one")
    assert hub.requests_of_files() == []
    begin(MODEL[:1])
    assert fetch_model("hf:org/one").path.read_bytes() == MODEL


def test_a_disk_that_fills_keeps_what_has_arrived(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = download._Part.append

    def append(self: download._Part, piece: bytes) -> None:
        if self.num_bytes > 100_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(self, piece)

    monkeypatch.setattr(download._Part, "append", append)
    with pytest.raises(HubError, match=r"No space left on device; 293.0 KiB are needed"):
        fetch_model("hf:org/one")
    monkeypatch.setattr(download._Part, "append", real)
    assert part().stat().st_size > 100_000
    assert fetch_model("hf:org/one").path.read_bytes() == MODEL
    assert not hub.requests_of_files()[-1].range.startswith("bytes=0-")


def test_two_that_want_one_file_fetch_it_once(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    hub.stalls_after = 1 << 16
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(fetch_model("hf:org/one").path))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for _ in range(600):
        if "another process fetches it; waiting" in caplog.text:
            break
        threads[0].join(0.05)
    hub.go_on.set()
    for thread in threads:
        thread.join(60)
    assert found == [our_file("m-Q4_0.gguf")] * 2
    assert found[0].read_bytes() == MODEL
    assert len(hub.requests_of_files()) == 1
    assert "waiting" in caplog.text
    assert not part().exists()


def test_a_large_file_is_asked_for_in_several_ranges(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "_LARGEST_RANGE", 120_000)
    assert fetch_model("hf:org/one").path.read_bytes() == MODEL
    assert [each.range for each in hub.requests_of_files()] == [
        "bytes=0-119999",
        "bytes=120000-239999",
        "bytes=240000-299999",
    ]


def test_checkpoints(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"config.json": b"{}", "model.safetensors": MODEL, "tokenizer.json": b"[]"}
    hub.repositories["org/one"] = Repository({**files, "README.md": b"", "model.onnx": OTHER})
    told: list[tuple[int, int]] = []
    folder = checkpoint_folder("hf:org/one", progress=lambda *counts: told.append(counts))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files
    assert told[-1] == (300_004, 300_004)
    hub.asked.clear()
    assert checkpoint_folder("hf:org/one") == folder
    assert len(hub.asked) == 1
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert checkpoint_folder("hf:org/one@main") == folder
    assert len(hub.asked) == 1


def test_settings_that_cannot_be_used(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "töken")
    with pytest.raises(
        HubError, match=r"the Hugging Face token contains invalid characters; check HF_TOKEN or"
    ):
        fetch_model("hf:org/one")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setenv("HTTP_PROXY", "nothing://x")
    with pytest.raises(HubError, match=r"no connection can be made: .*nothing"):
        fetch_model("hf:org/one")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(HubError, match="huggingface_hub cannot be used"):
        fetch_model("hf:org/one")


def test_a_disk_without_links(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    files = {"m-00001-of-00002.gguf": MODEL, "m-00002-of-00002.gguf": OTHER}
    hub.repositories["org/one"] = Repository(dict(files))
    library_file("org/one", COMMIT, "m-00001-of-00002.gguf", MODEL, sha256(MODEL))
    monkeypatch.setattr(Path, "symlink_to", refuse)
    assert fetch_model("hf:org/one").fetched_bytes == len(MODEL) + len(OTHER)


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (401, "", "no such repository .* set HF_TOKEN"),
        (403, "", "the server refuses access .403 Forbidden.: set HF_TOKEN"),
        (403, "GatedRepo", "one has to accept its terms first"),
        (404, "", "no such repository at http"),
        (404, "EntryNotFound", "a file that it lists is not there"),
        (451, "", "the server answers 451"),
    ],
)
def test_what_refusals_mean(hub: Hub, status: int, code: str, message: str) -> None:
    hub.refusals = [(status, code)]
    with pytest.raises(HubError, match=f"^hf:org/one: {message}"):
        fetch_model("hf:org/one")


def test_a_token_that_is_refused(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_old")
    hub.refusals = [(401, "")]
    with pytest.raises(HubError, match=r"refuses access \(401 Unauthorized\): use the token .* of"):
        fetch_model("hf:org/one")


def test_listings_are_asked_for_again_when_the_server_fails(hub: Hub) -> None:
    hub.refusals = [(503, ""), (429, "")]
    assert fetch_model("hf:org/one").path.read_bytes() == MODEL
    hub.refusals = [(502, "")] * 9
    with pytest.raises(HubError, match="the server answers 502 Bad Gateway; try again later"):
        fetch_model("hf:org/one", renews=True)


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"content-range": "bytes 7-9/300000"}, "sends another range than was asked for"),
        ({"content-range": ""}, "sends another range than was asked for"),
        ({"content-encoding": "gzip"}, "sends it compressed .'gzip'."),
        ({"content-range": "bytes 0-299999/4"}, "has 4 bytes, but the listing says 300,000"),
    ],
)
def test_answers_that_are_not_what_was_asked_for(
    hub: Hub, headers: dict[str, object], message: str
) -> None:
    hub.headers = headers
    with pytest.raises(HubError, match=message):
        fetch_model("hf:org/one")
    assert not our_file("m-Q4_0.gguf").exists()


def test_a_listing_without_end(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "LARGEST_LISTING", 10)
    with pytest.raises(HubError, match="the server's listing does not end"):
        fetch_model("hf:org/one")
