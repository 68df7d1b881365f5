"""`powerinfer serve` up to the moment when it would load a model."""

import math
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from command_line import assert_error, invoke
from powerinfer.cli.commands import serve
from powerinfer.hub import sources as sources_module
from powerinfer.hub.held import HeldKind, HeldModel
from powerinfer.hub.names import parse_reference
from powerinfer.serve.lifecycle import bind
from powerinfer.serve.model_source import ModelSource
from powerinfer.serve.settings import ServerSettings
from powerinfer.store.default_model import default_model_path


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the command would serve: model, options, settings, and how it finds further models."""
    found: list[Any] = []

    def run(*arguments: Any) -> int:
        found.extend(arguments)
        return 0

    monkeypatch.setattr(serve, "_run", run)
    return found


def settings_of(served: list[Any], *arguments: str | Path) -> ServerSettings:
    result = invoke("serve", *arguments)
    assert result.exit_code == 0, result.output
    settings: ServerSettings = served[2]
    return settings


def test_defaults(served: list[Any]) -> None:
    settings = settings_of(served)
    assert settings == ServerSettings(
        model_name="powerinfer-story", is_story_model=True, sampling=settings.sampling
    )
    assert (settings.host, settings.port, settings.parallel) == ("127.0.0.1", 8080, 8)
    assert settings.sampling.temperature == 0.8
    assert served[1]["parallel"] == 8
    assert served[1]["context_length"] is None


@pytest.mark.parametrize(
    "flags",
    [
        ("-ot", ".ffn_.*_exps.=CPU"),
        ("--prio-batch", "1"),
        ("--fit-target", "1024"),
        ("--sleep-idle-seconds", "-1"),
        ("--no-op-offload",),
        ("--cache-prompt",),
        ("--escape",),
        ("--webui",),
    ],
)
def test_more_flags_of_llama_server_that_mean_nothing(
    served: list[Any], flags: tuple[str, ...]
) -> None:
    result = invoke("serve", *flags, "--port", "9000")
    assert result.exit_code == 0, result.output
    assert served[2].port == 9000
    assert "mean nothing here" in result.stderr


def test_flags_that_llama_server_has_too(served: list[Any]) -> None:
    result = invoke(
        *("serve", "-m", "a/b.gguf", "-ngl", "99", "-np", "3", "-cb", "-fa", "--ctx-size", "64"),
        *("--n-gpu-layers", "1", "--mlock", "--no-mmap", "-b", "512", "-ub", "128", "--jinja"),
        *("--metrics", "--slots", "-a", "x,y", "-to", "7", "--host", "0.0.0.0", "--port", "0"),
        *("--temp", "0.1", "-t", "2"),
    )
    assert result.exit_code == 0, result.output
    model, options, settings, find = served
    assert find is None
    assert str(model) == "a/b.gguf"
    assert (options["context_length"], options["threads"], options["mmap"]) == (64, 2, False)
    assert settings.model_names == ("x", "y", "b", "b.gguf", "a/b.gguf")
    assert (settings.parallel, settings.read_timeout_s, settings.port) == (3, 7, 0)
    assert settings.sampling.temperature == 0.1
    (line,) = result.stderr.splitlines()
    assert line == (
        "flags of llama-server that mean nothing here and are ignored: -ngl, -cb, -fa, --mlock, "
        "-b, -ub, --jinja, --metrics, --slots"
    )


def test_flags_that_change_answers_of_llama_server_are_named_apart(served: list[Any]) -> None:
    result = invoke(
        *(
            "serve",
            "--rope-scaling",
            "yarn",
            "--rope-freq-base",
            "1e6",
            "--chat-template",
            "chatml",
        ),
        *("--mirostat", "0", "--dry-sequence-breaker", "a", "--dry-sequence-breaker", "b", "-cb"),
        *("--temperature", "0.25", "--predict", "-1"),
    )
    assert result.exit_code == 0, result.output
    settings = served[2]
    assert (settings.sampling.temperature, settings.max_tokens) == (0.25, None)
    assert result.stderr.splitlines() == [
        "flags of llama-server that mean nothing here and are ignored: -cb",
        "flags of llama-server that change answers there, but have no effect here: --rope-scaling, "
        "--rope-freq-base, --chat-template, --mirostat, --dry-sequence-breaker",
    ]
    assert invoke("serve", "--predict", "12").exit_code == 0
    assert served[-2].max_tokens == 12
    assert_error(invoke("serve", "--temperature", "-1"), "--temp")


@pytest.mark.parametrize("value", [[], ["on"], ["--port", "1"]])
def test_flash_attention_with_a_value_and_without(served: list[Any], value: list[str]) -> None:
    result = invoke("serve", "-fa", *value)
    assert result.exit_code == 0, result.output
    assert "-fa" in result.stderr


def test_keys(served: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys"
    file.write_text("one\n\n  two \n")
    settings = settings_of(served, "--api-key", "zero", "--api-key-file", file)
    assert settings.api_keys == ("zero", "one", "two")
    assert "zero" not in repr(settings)
    file.write_text("\n")
    assert_error(invoke("serve", "--api-key-file", file), "has no key; write one per line")
    assert_error(invoke("serve", "--api-key", ""), "--api-key is empty")
    assert_error(invoke("serve", "--api-key-file", tmp_path / "none"), "no such file")


@pytest.mark.parametrize(
    "arguments",
    [
        ["-np", "0"],
        ["--port", "65536"],
        ["--max-queue", "-1"],
        ["--request-timeout", "0"],
        ["--lora", "x"],
        ["--ssl-key-file", "x"],
        ["-c", "0"],
    ],
)
def test_values_that_are_refused(served: list[Any], arguments: list[str]) -> None:
    assert_error(invoke("serve", *arguments))
    assert not served


@pytest.fixture
def pooled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the command would serve of several models.

    Sources, settings, seconds that models stay, and how the server finds further models.
    """
    found: list[Any] = []

    def run(*arguments: Any) -> int:
        found[:] = arguments
        return 0

    monkeypatch.setattr(serve, "_run_several", run)
    return found


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Copies of the embedded model in two folders, two of them with the same name."""
    paths = [tmp_path / "a" / "x.gguf", tmp_path / "a" / "y.gguf", tmp_path / "b" / "x.gguf"]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.symlink_to(default_model_path())
    return paths


def test_several_models_by_name(pooled: list[Any], files: list[Path]) -> None:
    arguments = [part for path in (*files, files[0]) for part in ("-m", path)]
    result = invoke("serve", *arguments, "-c", "64", "-np", "2")
    assert result.exit_code == 0, result.output
    sources, settings, keep_alive_s, find = pooled
    assert find is None
    one, two, three = files
    assert [source.names for source in sources] == [
        ("x", "x.gguf", str(one)),
        ("y", "y.gguf", str(two)),
        (str(three),),
    ]
    assert [source.path for source in sources] == files
    assert not any(source.is_story_model for source in sources)
    assert sources[0].facts().context_length == 64
    assert (keep_alive_s, settings.parallel, settings.is_story_model) == (300, 2, False)


def test_without_models_what_is_pulled_and_the_embedded_one(
    served: list[Any], pooled: list[Any], files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    models: list[HeldModel] = []
    monkeypatch.setattr(sources_module, "all_held_models", lambda: models)

    def held(name: str, path: Path, kind: HeldKind = HeldKind.MODEL) -> HeldModel:
        reference = parse_reference(name)
        return HeldModel(reference, "0" * 40, kind, path, (path,), path.parent, is_ours=True)

    def found(find: Callable[[], Sequence[ModelSource]]) -> list[str]:
        return [source.names[0] for source in find()]

    assert invoke("serve", "-a", "me").exit_code == 0
    assert found(served[3]) == ["me"]
    models += [
        held("hf:org/one", files[0]),
        held("hf:org/one", files[2]),
        held("hf:org/two", files[1]),
        held("hf:org/three", files[1].parent, HeldKind.CHECKPOINT),
    ]
    assert found(served[3]) == ["hf:org/one", "hf:org/two", "me"]
    assert invoke("serve").exit_code == 0
    assert [source.names for source in pooled[0]] == [
        ("hf:org/one", "x", "x.gguf", str(files[0])),
        ("hf:org/two", "y", "y.gguf", str(files[1])),
        ("powerinfer-story",),
    ]
    assert [source.is_story_model for source in pooled[0]] == [False, False, True]
    del models[0]
    assert found(pooled[3]) == ["hf:org/one", "hf:org/two", "powerinfer-story"]


def test_options_of_one_model_keep_others_away(served: list[Any]) -> None:
    for flags in ((), ("--device", "cuda")):
        assert invoke("serve", *flags).exit_code == 0
    assert served[3] is not None
    assert served[7] is None


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("300", 300), ("90s", 90), ("5m", 300), ("1.5h", 5400), ("0", 0), ("-1", math.inf)],
)
def test_how_long_models_stay(
    pooled: list[Any], files: list[Path], given: str, seconds: float
) -> None:
    assert invoke("serve", "-m", files[0], "--keep-alive", given).exit_code == 0
    assert pooled[2] == seconds
    assert pooled[0][0].names == ("x", "x.gguf", str(files[0]))


def test_an_alias_of_one_model_that_comes_and_goes(pooled: list[Any], files: list[Path]) -> None:
    result = invoke("serve", "-m", files[0], "--keep-alive", "1m", "-a", "me")
    assert result.exit_code == 0, result.output
    assert pooled[0][0].names[0] == "me"


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--alias", "me"], "--alias names one model"),
        (["--gpu-index", "x.json"], "--gpu-index is the plan of one model"),
        (["--vram-budget", "1"], "--vram-budget is for one model on a GPU"),
        (["--device", "cuda"], "--device cuda: models that come and go run on the CPU"),
        (["--keep-alive", "5d"], "'5d' is not a time such as 300, 90s, 5m, 1h, 0 or -1"),
        (["--keep-alive", "soon"], "is not a time"),
        (["-m", "/none/x.gguf"], "/none/x.gguf"),
    ],
)
def test_what_several_models_refuse(
    pooled: list[Any], files: list[Path], arguments: list[str], shown: str
) -> None:
    assert_error(invoke("serve", "-m", files[0], "-m", files[1], *arguments), shown)
    assert not pooled


def test_a_port_that_is_taken() -> None:
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert_error(invoke("serve", "--port", str(port)), f"127.0.0.1:{port}", "in use")


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.7", "a b", "ü" * 80])
def test_a_host_that_is_not_here(host: str) -> None:
    assert_error(invoke("serve", "--host", host, "--port", "0"), "cannot listen on")


def test_ports_of_both_families() -> None:
    with bind("127.0.0.1", 0) as listener:
        assert listener.family == socket.AF_INET
    with bind("localhost", 0) as listener:
        assert listener.getsockname()[1] > 0
