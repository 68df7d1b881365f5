"""The files of the chat page: what a server sends with them, and what they are made of."""

import hashlib
import re
from pathlib import Path
from typing import Any

import pytest

from api_client import running_api
from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.serve.page import files as page_files
from powerinfer.serve.page.files import PageFile, PageFiles
from powerinfer.serve.settings import ServerSettings

STATIC = Path(page_files.__file__).parent / "static"
OURS = sorted(path for kind in ("js", "css") for path in (STATIC / kind).iterdir())


def _files(**settings: Any) -> PageFiles:
    return PageFiles(ServerSettings(**settings))


def _index(**settings: Any) -> PageFile:
    return _files(**settings).index(is_story_model=False)


def test_the_page_and_all_that_it_names_are_served() -> None:
    with running_api() as api:
        page = api.get("/")
        assert page.status_code == 200
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert page.headers["cache-control"] == "no-cache"
        named = re.findall(r'(?:src|href)="(page/[^"]+)"', page.text)
        assert len(named) > 10
        for address in named:
            file = api.get(f"/{address}")
            assert file.status_code == 200, address
            assert "immutable" in file.headers["cache-control"]


def test_scripts_import_what_there_is() -> None:
    for path in OURS:
        for name in re.findall(r'(?:from|import\()\s*"([^"]+)"', path.read_text(encoding="utf8")):
            assert (path.parent / name).resolve().is_file(), f"{path.name} imports {name}"


@pytest.mark.parametrize("address", ["/", "page/{version}/js/app.js"])
def test_nothing_may_be_done_that_is_not_named(address: str) -> None:
    with running_api() as api:
        headers = api.get(address.format(version=_files().version)).headers
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_a_browser_that_has_a_file_gets_no_other() -> None:
    with running_api() as api:
        page = api.get("/")
        again = api.get("/", headers={"If-None-Match": page.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert api.head("/").headers["etag"] == page.headers["etag"]
        assert api.head("/").content == b""


@pytest.mark.parametrize(
    "address",
    [
        "/page/0000000000000000/js/app.js",
        "/page/{version}/js/none.js",
        "/page/{version}/index.html",
        "/page/{version}/vendor/README.md",
        "/page/{version}/../routes.py",
        "/page/{version}/%2e%2e/routes.py",
        "/page/{version}//etc/passwd",
    ],
)
def test_no_other_file_is_served(address: str) -> None:
    with running_api() as api:
        answer = api.get(address.format(version=_files().version))
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"


def test_the_page_knows_what_the_server_wants() -> None:
    assert b'data-needs-key="false"' in _index().content
    assert b'data-needs-key="true"' in _index(api_keys=("secret",)).content
    assert b"secret" not in _index(api_keys=("secret",)).content
    assert b"How does the story begin?" in _files().index(is_story_model=True).content
    assert b"How does the story begin?" not in _index().content
    index = _index(sampling=SamplingParams(temperature=0.25))
    assert b"&quot;temperature&quot;: 0.25" in index.content
    assert index.headers["ETag"] != _index().headers["ETag"]


def test_the_version_changes_with_any_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in STATIC.rglob("*"):
        if path.is_file():
            copy = tmp_path / path.relative_to(STATIC)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    monkeypatch.setattr(page_files, "_FOLDER", tmp_path)
    assert _files().version == _files().version
    before = _files().version
    (tmp_path / "js" / "app.js").write_text("// changed", encoding="utf8")
    assert _files().version != before


def test_libraries_are_as_published() -> None:
    folder = STATIC / "vendor"
    sums = dict(re.findall(r"^\| `([\w.-]+)` .* `([0-9a-f]{64})` \|$", _text("README.md"), re.M))
    assert sums.keys() == {path.name for path in folder.glob("*.mjs")}
    for name, wanted in sums.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == wanted, name
        assert "opyright" in _text(name.replace(".mjs", ".LICENSE"))


def _text(name: str) -> str:
    return (STATIC / "vendor" / name).read_text(encoding="utf8")


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_own_files_are_small_and_say_what_they_are(path: Path) -> None:
    text = path.read_text(encoding="utf8")
    assert text.startswith("// " if path.suffix == ".js" else "/* ")
    assert text.count("\n") < 250
    # Nothing is loaded from elsewhere, and no text is made HTML outside the sanitizer.
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)\w", text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text)


def test_figures_of_an_engine_that_counts_little() -> None:
    with running_api() as api:
        figures = api.get("/panel").json()
    assert (figures["model"], figures["running"], figures["blocks"]) == ("test-model", 0, 64)
    assert (figures["drafted_tokens"], figures["layers"]) == (0, None)
    assert figures["time"] > 0


def test_who_has_no_key_sees_the_page_and_no_figures() -> None:
    with running_api(api_keys=("secret",)) as api:
        assert api.get("/").status_code == 200
        assert api.get(f"/page/{_files().version}/js/app.js").status_code == 200
        assert api.get("/panel").status_code == 401
        headers = {"Authorization": "Bearer secret"}
        assert api.get("/panel", headers=headers).json()["running"] == 0


def test_no_figures_before_the_model_is_there() -> None:
    with running_api(is_loading=True) as api:
        assert api.get("/panel").status_code == 503
        assert api.get("/").status_code == 200
