"""`powerinfer cache`: what it finds, for which models, and that it removes nothing else."""

import ast
import os
from pathlib import Path

import pytest

from command_line import assert_error, invoke, run_json
from powerinfer._files import cache_folder
from powerinfer.cli.cached_files import FOLDERS
from powerinfer.gguf import model_identity, open_gguf
from powerinfer.offload import devices
from powerinfer.store.default_model import default_model_path
from tiny_models import TINY_MODELS, write_model

SOURCE = Path(__file__).resolve().parent.parent.parent.parent / "src" / "powerinfer"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(devices, "has_driver", lambda: False)
    return tmp_path / "cache" / "powerinfer"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "relu.gguf", TINY_MODELS["llama-relu"])


def test_nothing_is_there_at_first(cache: Path) -> None:
    assert invoke("cache").stdout == f"{cache}: 0 files, 0 B\n"
    assert invoke("cache", "--clear").stdout == f"removed 0 files, 0 B from {cache}\n"
    assert not cache.exists()


def test_every_kind_that_commands_write_is_found_and_removed(cache: Path, model: Path) -> None:
    run_json("plan", "--vram-budget", "1")
    run_json("run", "-m", model, "-p", "a", "-n", "1", "--sparsity", "auto")
    written = [path for path in cache.rglob("*") if path.is_file()]
    report = run_json("cache")
    assert {Path(file["path"]) for file in report["files"]} == set(written)
    assert report["folder"] == str(cache)
    assert report["bytes"] == sum(path.stat().st_size for path in written)
    kinds = {"calibrations", "models", "plans", "profiles", "speeds"}
    assert {file["kind"] for file in report["files"]} == kinds
    of_models = {
        model_identity(open_gguf(path)): str(path) for path in (default_model_path(), model)
    }
    for file in report["files"]:
        assert file["model_path"] == of_models.get(file["model"])
        assert (file["model"] is None) == (file["kind"] == "speeds")
    shown = invoke("cache").stdout
    assert f"{len(written)} files, " in shown
    assert "relu.gguf (" in shown
    assert default_model_path().name in shown
    cleared = invoke("cache", "--clear")
    assert cleared.exit_code == 0
    assert f"removed {len(written)} files, " in cleared.stdout
    assert [path for path in cache.rglob("*") if path.is_file()] == []


def test_one_model_alone(cache: Path, model: Path) -> None:
    run_json("plan", "--vram-budget", "1")
    before = run_json("cache")["files"]
    run_json("run", "-m", model, "-p", "a", "-n", "1", "--sparsity", "auto")
    identity = model_identity(open_gguf(model))
    of_model = run_json("cache", "-m", model)["files"]
    assert {file["model"] for file in of_model} == {identity}
    assert run_json("cache", "--clear", "-m", model)["files"] == of_model
    assert run_json("cache")["files"] == before


def test_every_side_file_of_the_source_is_known() -> None:
    """A new kind of cached file must be shown and removed too."""
    declared = {
        keyword.value.value
        for path in SOURCE.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Sidecar"
        for keyword in call.keywords
        if keyword.arg == "folder" and isinstance(keyword.value, ast.Constant)
    }
    # `activation.json` lies beside the counts that it tells of, never in the cache.
    assert declared - {"activations"} == set(FOLDERS)


def test_what_others_put_there_stays(cache: Path) -> None:
    folder = cache_folder("plans")
    (folder / "below.plan.json").mkdir(parents=True)
    kept = [folder / "notes.txt", folder / "a.part", cache / "a.plan.json", cache / "other" / "x"]
    for path in kept:
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    outside = cache.parent / "outside"
    outside.write_text("x")
    (folder / "link.plan.json").symlink_to(outside)
    assert run_json("cache", "--clear")["bytes"] < 1000
    assert all(path.read_text() == "x" for path in (*kept, outside))
    assert (folder / "below.plan.json").is_dir()
    assert not (folder / "link.plan.json").is_symlink()


def test_unfinished_files(cache: Path) -> None:
    folder = cache_folder("profiles")
    folder.mkdir(parents=True)
    (folder / ".x.profile.json.01234567.part").write_bytes(bytes(100))
    (report,) = run_json("cache")["files"]
    assert (report["kind"], report["bytes"], report["model"]) == ("unfinished", 100, None)
    invoke("cache", "--clear")
    assert list(folder.iterdir()) == []


def test_what_cannot_be_removed_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = cache_folder("plans")
    folder.mkdir(parents=True)
    path = folder / "x.plan.json"
    path.touch()

    def refused(_: Path, *, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refused)
    result = invoke("cache", "--clear")
    assert_error(result, f"{path}: cannot be removed: Permission denied")
    assert "Could not open" not in result.stderr
    assert result.stdout == ""


def test_a_file_that_another_process_removes_is_not_counted(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = cache_folder("plans")
    folder.mkdir(parents=True)
    for name in ("a.plan.json", "b.plan.json"):
        (folder / name).touch()
    scan = os.scandir

    def scanned(path: Path) -> list[os.DirEntry[str]]:
        entries = list(scan(path))
        (folder / "a.plan.json").unlink(missing_ok=True)
        return entries

    monkeypatch.setattr(os, "scandir", scanned)
    assert [Path(file["path"]).name for file in run_json("cache")["files"]] == ["b.plan.json"]


def test_an_address_is_no_model_of_the_cache() -> None:
    address = "https://host//models/m.gguf"
    assert_error(invoke("cache", "-m", address), f"{address}: ", "hf:ORG/NAME")


def test_a_relative_folder_is_ignored_and_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", "some/cache")
    result = invoke("cache")
    assert result.stdout.startswith(str(tmp_path / "home"))
    assert result.stderr == (
        "warning: XDG_CACHE_HOME is ignored: 'some/cache' is not an absolute path\n"
    )
    for value in ("", str(tmp_path / "cache")):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert invoke("cache").stderr == ""
