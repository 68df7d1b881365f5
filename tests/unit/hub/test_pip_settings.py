"""pip's configuration of indexes: files, sections and variables, and which of them wins."""

import os
from pathlib import Path

import pytest

from powerinfer import HubError
from powerinfer.hub.pip_settings import PipSettings, Source, read_pip_settings


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in os.environ:
        if name.startswith("PIP_") or name.endswith("_CA_BUNDLE"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "all"))
    monkeypatch.setattr("sys.prefix", str(tmp_path / "environment"))
    return tmp_path


def write(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "pip.conf"
    path.write_text(text, encoding="utf-8")
    return path


def test_without_a_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    assert read_pip_settings() == PipSettings((Source("https://pypi.org/simple", is_index=True),))


def test_who_overrides_whom(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home / "all/pip", "[global]\nindex-url = https://all\ntimeout = 5\nproxy = http://all\n")
    write(home / ".pip", "[global]\nindex_url = https://old\ncert = /old\n")
    write(home / "own/pip", "[global]\nindex-url = https://own\ncert = /own\n")
    write(home / "environment", "[global]\nindex-url = https://here\n[install]\ncert = /no\n")
    found = read_pip_settings()
    assert found.sources == (Source("https://here", is_index=True),)
    assert (found.cert, found.timeout_s, found.proxy) == ("/own", 5.0, "http://all")
    # The section of a command wins over any file, and a variable over all.
    write(home / "all/pip", "[download]\nindex-url = https://download\n")
    assert read_pip_settings().sources[0].address == "https://download"
    monkeypatch.setenv("PIP_INDEX_URL", "https://100%25")
    assert read_pip_settings().sources[0].address == "https://100%25"
    named = write(home / "named", "[global]\ncert = /named\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(named))
    assert read_pip_settings().cert == "/named"
    # An empty value is none, as in pip.
    monkeypatch.setenv("PIP_CERT", "")
    assert read_pip_settings().cert is None
    # pip's HTTP client reads these.
    monkeypatch.setenv("CURL_CA_BUNDLE", "/curl")
    assert read_pip_settings().cert == "/curl"
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/requests")
    assert read_pip_settings().cert == "/requests"


def test_lists_and_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://a https://b")
    monkeypatch.setenv("PIP_FIND_LINKS", "/wheels")
    monkeypatch.setenv("PIP_TRUSTED_HOST", "one two:8080")
    monkeypatch.setenv("PIP_DEFAULT_TIMEOUT", "180")
    found = read_pip_settings()
    assert [source.address for source in found.sources] == [
        "/wheels",
        "https://pypi.org/simple",
        "https://a",
        "https://b",
    ]
    assert [source.is_index for source in found.sources] == [False, True, True, True]
    assert (found.trusted_hosts, found.timeout_s) == (("one", "two:8080"), 180.0)
    monkeypatch.setenv("PIP_NO_INDEX", "true")
    assert read_pip_settings().sources == (Source("/wheels", is_index=False),)


def test_mistakes_are_one_line(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_TIMEOUT", "soon")
    with pytest.raises(HubError, match="pip's timeout is 'soon'; expected a number of seconds"):
        read_pip_settings()
    path = write(home / "own/pip", "index-url = https://own\n")
    with pytest.raises(HubError) as caught:
        read_pip_settings()
    assert str(caught.value).startswith(f"{path}: pip's configuration cannot be read: File con")
    assert "\n" not in str(caught.value)
