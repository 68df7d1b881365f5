"""The commands pull, list and rm, and `hf:` where a model is named."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from command_line import assert_error, invoke, run_json
from hub_cases import hub_here, library_file
from hub_server import COMMIT, Hub, Repository
from powerinfer import LLM
from powerinfer._locks import lock
from tiny_models import TINY_MODELS, write_model

SECOND_COMMIT = "f" * 40


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("models")
    names = ("llama", "llama-relu", "llama-predicted")
    return {
        name: write_model(folder / f"{name}.gguf", TINY_MODELS[name]).read_bytes()
        for name in names
        if name in TINY_MODELS
    }


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, models: dict[str, bytes]) -> Iterator[Hub]:
    with hub_here(tmp_path, monkeypatch) as found:
        found.repositories["org/one"] = Repository({"m.gguf": models["llama-relu"]})
        found.repositories["org/two"] = Repository(
            {"m-F32.gguf": models["llama-relu"], "m-BF16.gguf": models["llama"]}
        )
        yield found


def cache() -> Path:
    return Path(os.environ["XDG_CACHE_HOME"]) / "powerinfer" / "hub"


def names() -> list[str]:
    return [row["name"] for row in run_json("list")["models"]]


def test_pull_prints_the_path_and_nothing_else(hub: Hub, models: dict[str, bytes]) -> None:
    result = invoke("pull", "hf:org/one")
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{cache() / 'org/one' / COMMIT / 'm.gguf'}\n"
    assert result.stderr == ""
    assert Path(result.stdout.strip()).read_bytes() == models["llama-relu"]


def test_pull_as_json(hub: Hub, models: dict[str, bytes]) -> None:
    size = len(models["llama"])
    path = str(cache() / "org/two" / COMMIT / "m-BF16.gguf")
    assert run_json("pull", "hf:org/two:bf16@main") == {
        "path": path,
        "repository": "org/two",
        "revision": "main",
        "commit": COMMIT,
        "files": [path],
        "bytes": size,
        "fetched_bytes": size,
    }
    assert run_json("pull", "hf:org/two:bf16")["fetched_bytes"] == 0


def test_mistakes_are_one_line(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_error(
        invoke("pull", "hf:org/two"), "2 models fit: BF16 (", "name one, as in hf:org/two:"
    )
    assert_error(invoke("pull", "hf:org/none"), "hf:org/none: no such repository")
    assert_error(invoke("run", "-m", "hf:org/two:q9", "-p", "a"), "no model fits; there are: BF16")
    hub.repositories["org/raw"] = Repository({"config.json": b"{}", "model.safetensors": b"x"})
    assert_error(invoke("pull", "hf:org/raw"), "powerinfer convert hf:org/raw -o FILE")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    assert_error(invoke("pull", "hf:org/one"), "http://127.0.0.1:1 cannot be reached")
    assert not list(cache().rglob("*.gguf"))


def test_every_command_that_takes_a_model_fetches_it(hub: Hub) -> None:
    commands = [
        ["run", "-m", "hf:org/one", "-p", "", "-n", "1"],
        ["tokenize", "-m", "hf:org/one", "a"],
        ["inspect", "hf:org/one"],
        ["inspect", "-m", "hf:org/one"],
        ["pack", "hf:org/one", "-o", str(cache().parent / "packed.gguf")],
    ]
    for command in commands:
        shutil.rmtree(cache(), ignore_errors=True)
        hub.asked.clear()
        result = invoke(*command)
        assert result.exit_code == 0, result.output
        assert len(hub.requests_of_files()) == 1, command
        assert invoke(*command[:-1], command[-1].replace("packed", "again")).exit_code == 0
        assert len(hub.requests_of_files()) == 1, command


def test_the_cache_command_fetches_nothing(hub: Hub) -> None:
    assert_error(invoke("cache", "-m", "hf:org/one"), "fetch it: powerinfer pull hf:org/one")
    assert hub.asked == []
    invoke("pull", "hf:org/one")
    assert run_json("cache", "-m", "hf:org/one")["files"] == []
    # Models are no cache of measurements: `cache --clear` leaves them.
    assert run_json("cache", "--clear")["bytes"] == 0
    assert names() == ["hf:org/one"]


def test_python_takes_the_same_names(hub: Hub, models: dict[str, bytes]) -> None:
    told: list[tuple[int, int]] = []
    with LLM("hf:org/one", downloading=lambda *counts: told.append(counts)) as llm:
        assert llm.loaded.path == cache() / "org/one" / COMMIT / "m.gguf"
    assert told[-1] == (len(models["llama-relu"]),) * 2


def test_a_file_with_such_a_name_goes_first(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, models: dict[str, bytes]
) -> None:
    (tmp_path / "hf:org").mkdir()
    (tmp_path / "hf:org" / "one").write_bytes(models["llama"])
    monkeypatch.chdir(tmp_path)
    assert run_json("inspect", "hf:org/one")["files"] == ["hf:org/one"]
    assert hub.asked == []


def test_an_empty_list(hub: Hub) -> None:
    result = invoke("list")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "powerinfer pull" in result.stderr
    report = run_json("list")
    assert (report["models"], report["bytes"]) == ([], 0)
    packages = str(cache().with_name("pypi"))
    assert report["folders"] == [str(cache()), constants.HF_HUB_CACHE, packages]


def test_what_the_list_shows(hub: Hub, models: dict[str, bytes]) -> None:
    for name in ("hf:org/one", "hf:org/two:F32", "hf:org/two:BF16"):
        assert invoke("pull", name).exit_code == 0
    library_file("lib/held", COMMIT, "x-Q4_0.gguf", models["llama"], "b" * 64)
    rows = {row["name"]: row for row in run_json("list")["models"]}
    assert list(rows) == [
        "hf:org/one",
        "hf:org/two:BF16",
        "hf:org/two:F32",
        # What else this repository has was never asked.
        "hf:lib/held:Q4_0",
    ]
    one, dense = rows["hf:org/one"], rows["hf:org/two:BF16"]
    assert one == {
        "name": "hf:org/one",
        "path": str(cache() / "org/one" / COMMIT / "m.gguf"),
        "kind": "model",
        "cache": "powerinfer",
        "repository": "org/one",
        "commit": COMMIT,
        "bytes": len(models["llama-relu"]),
        "architecture": "llama",
        "activation": "relu",
        "is_sparse": True,
        "has_predictors": False,
        "skipped_share": None,
    }
    assert (dense["activation"], dense["is_sparse"]) == ("silu", False)
    assert rows["hf:lib/held:Q4_0"]["cache"] == "huggingface_hub"
    table = invoke("list").stdout
    for line in ("hf:org/one ", "llama", "relu", "dense (silu)", "huggingface_hub"):
        assert line in table
    # Names in the list are names for -m, and cost no request.
    hub.asked.clear()
    for name in list(rows)[:3]:
        assert run_json("inspect", name)["files"] == [rows[name]["path"]]
    assert hub.asked == []


def test_a_damaged_cache_of_the_library_shows_what_is_whole(
    hub: Hub, models: dict[str, bytes]
) -> None:
    held = library_file("lib/held", COMMIT, "x-Q4_0.gguf", models["llama"], "b" * 64)
    held.with_name("y-Q8_0.gguf").symlink_to(held.with_name("removed"))
    (held.parents[2] / "refs" / "v1").write_text(SECOND_COMMIT, encoding="ascii")
    assert names() == ["hf:lib/held:Q4_0"]


def test_calibrated_models_and_predictors(hub: Hub, models: dict[str, bytes]) -> None:
    invoke("pull", "hf:org/one")
    done = invoke("calibrate", "-m", "hf:org/one", "--tokens", "64")
    assert done.exit_code == 0, done.output
    (row,) = run_json("list")["models"]
    assert 0 < row["skipped_share"] < 1
    assert "% skipped" in invoke("list").stdout
    path = Path(row["path"])
    assert path.with_name("m.gguf.calibration.json").exists()
    # The file would no longer be what the Hub has, and be fetched again.
    for name in ("hf:org/one", str(path)):
        result = invoke("calibrate", "-m", name, "--tokens", "64", "--write")
        assert_error(result, "m.gguf: was fetched from the Hub", "-o")
    assert invoke("rm", "hf:org/one").exit_code == 0
    assert not path.parent.exists()


def test_revisions_in_names(hub: Hub, models: dict[str, bytes]) -> None:
    hub.repositories["org/one"].revisions = ("main", "v1")
    invoke("pull", "hf:org/one@v1")
    assert names() == ["hf:org/one@v1"]
    invoke("pull", "hf:org/one")
    assert names() == ["hf:org/one"]
    hub.repositories["org/one"].commit = SECOND_COMMIT
    hub.repositories["org/one"].files["m.gguf"] = models["llama"]
    invoke("pull", "hf:org/one")
    assert names() == ["hf:org/one@v1", "hf:org/one"]
    invoke("pull", "hf:org/one@v1")
    assert names() == [f"hf:org/one@{COMMIT}", "hf:org/one"]
    assert invoke("rm", f"hf:org/one@{COMMIT}").exit_code == 0
    assert names() == ["hf:org/one"]
    assert invoke("rm", "hf:org/one@main").exit_code == 0
    assert names() == []
    assert not list(cache().rglob("*.json"))


def test_rm_says_how_much_it_freed(hub: Hub, models: dict[str, bytes]) -> None:
    for name in ("hf:org/one", "hf:org/two:F32", "hf:org/two:BF16"):
        invoke("pull", name)
    result = invoke("rm", "hf:org/two:bf16")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("removed hf:org/two:BF16, ")
    assert result.stdout.endswith(" freed\n")
    assert names() == ["hf:org/one", "hf:org/two:F32"]
    path = str(cache() / "org/two" / COMMIT / "m-F32.gguf")
    report = run_json("rm", path, "hf:org/one")
    size = len(models["llama-relu"])
    assert report == {
        "bytes": 2 * size,
        "removed": [
            {"name": "hf:org/two:F32", "path": path, "bytes": size},
            {
                "name": "hf:org/one",
                "path": str(cache() / "org/one" / COMMIT / "m.gguf"),
                "bytes": size,
            },
        ],
    }
    assert names() == []


def test_what_rm_refuses(hub: Hub, tmp_path: Path, models: dict[str, bytes]) -> None:
    for name in ("hf:org/one", "hf:org/two:F32", "hf:org/two:BF16"):
        invoke("pull", name)
    mine = tmp_path / "mine.gguf"
    mine.write_bytes(models["llama"])
    held = library_file("lib/held", COMMIT, "x.gguf", models["llama"], "b" * 64)
    for name, part in {
        "hf:org/two": "2 models fit: hf:org/two:BF16, hf:org/two:F32; name one",
        "hf:org/none": "no such model in the caches; `powerinfer list` shows them",
        "hf:org/two:q9": "no such model in the caches",
        "hf:org/one@v9": "no such model in the caches",
        str(mine): "no such model in the caches",
        str(tmp_path): "no such model in the caches",
        "hf:lib/held": "hf cache rm model/lib/held",
        str(held): "hf cache rm model/lib/held",
        "hf:bad": "expected hf:ORG/NAME",
    }.items():
        # The name that is right does not go either.
        assert_error(invoke("rm", name), part)
    assert_error(invoke("rm", "hf:org/one", "hf:org/none"), "no such model")
    assert mine.exists()
    assert held.exists()
    assert len(names()) == 4


def test_links_into_the_librarys_cache_free_nothing(hub: Hub, models: dict[str, bytes]) -> None:
    hub.repositories["org/one"].files["activation/activation_0.pt"] = b"statistics"
    content = models["llama-relu"]
    held = library_file("org/one", COMMIT, "m.gguf", content, "c" * 64)
    invoke("pull", "hf:org/one")
    report = run_json("rm", "hf:org/one")
    assert report["bytes"] == len(b"statistics")
    assert held.read_bytes() == content
    assert_error(invoke("rm", "hf:org/one"), "hf cache rm")


def test_unfinished_downloads_are_shown_and_removed(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {f"q/m-Q4_0-0000{number}-of-00002.gguf": b"x" * 200_000 for number in (1, 2)}
    hub.repositories["org/big"] = Repository(parts)
    hub.cuts = [None, *[1 << 16] + [0] * 9]
    assert_error(invoke("pull", "hf:org/big"), "what has arrived is kept")
    (row,) = run_json("list")["models"]
    assert row["kind"] == "unfinished"
    assert row["name"] == "hf:org/big:q/m-Q4_0.gguf"
    assert row["bytes"] == 200_000 + (1 << 16)
    assert "unfinished" in invoke("list").stdout
    (part,) = cache().rglob("*.incomplete")
    with part.open("r+b") as file:
        lock(file)
        assert_error(invoke("rm", "hf:org/big"), "another process is fetching it")
    assert run_json("rm", "hf:org/big:q4_0")["bytes"] == row["bytes"]
    assert not list(cache().rglob("*.gguf"))


def test_checkpoints_are_shown_and_removed(hub: Hub) -> None:
    from powerinfer.hub.fetch import checkpoint_folder

    config = json.dumps({"model_type": "opt"}).encode()
    hub.repositories["org/raw"] = Repository({"config.json": config, "model.safetensors": b"xyz"})
    folder = checkpoint_folder("hf:org/raw")
    (row,) = run_json("list")["models"]
    assert (row["name"], row["kind"], row["architecture"]) == ("hf:org/raw", "checkpoint", "opt")
    assert row["path"] == str(folder)
    assert "checkpoint" in invoke("list").stdout
    (folder / "model.safetensors").unlink()
    assert run_json("list")["models"][0]["kind"] == "unfinished"
    assert run_json("rm", str(folder))["bytes"] == len(config)


def test_a_damaged_model_is_listed_too(hub: Hub) -> None:
    hub.repositories["org/bad"] = Repository({"m.gguf": b"this is no model"})
    invoke("pull", "hf:org/bad")
    (row,) = run_json("list")["models"]
    assert (row["architecture"], row["is_sparse"]) == (None, None)
    assert invoke("list").exit_code == 0
