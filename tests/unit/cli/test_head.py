"""What the commands say about the output head."""

from dataclasses import replace
from pathlib import Path

import pytest

from command_line import invoke, run_json
from powerinfer import LLM
from powerinfer.cli.report import head
from powerinfer.engine.engine import Engine
from powerinfer.serve.metrics import ServerMetrics
from tiny_models import TINY_MODELS, wide, write_model

RECIPE = replace(TINY_MODELS["llama"], hidden_size=64, vocab_size=960, head_dim=16, format="f16")
NOTE = "note: the output head is"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny.gguf", RECIPE)


@pytest.fixture
def heads_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "_LEAST_BYTES", 0)


def _said(path: Path, *flags: str) -> str:
    result = invoke("run", "-m", path, "-p", "ab", "-n", "1", "--device", "cpu", *flags)
    assert result.exit_code == 0, result.output
    return " ".join(result.stderr.split())


@pytest.mark.usefixtures("heads_are_large")
def test_a_large_head_may_be_screened(path: Path) -> None:
    said = _said(path)
    assert f"{NOTE} 58.4 % of a token's bytes; --head screened reads a copy of 62.5 %" in said
    assert NOTE in " ".join(invoke("chat", path, "--device", "cpu", stdin="").stderr.split())


@pytest.mark.usefixtures("heads_are_large")
@pytest.mark.parametrize(
    "flags",
    [
        ("--head", "screened"),
        ("--kernels", "reference"),
        ("--top-k", "0"),
        ("--top-k", "100"),
        ("--repeat-penalty", "1.1"),
        ("--regex", "a+"),
    ],
    ids=" ".join,
)
def test_nothing_is_offered_that_settings_do_not_use(path: Path, flags: tuple[str, ...]) -> None:
    assert NOTE not in _said(path, *flags)


def test_nothing_is_offered_for_other_heads(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert NOTE not in _said(path)  # it stays in the caches
    monkeypatch.setattr(head, "_LEAST_BYTES", 0)
    # A copy of these is no smaller, or they are a small part of the model.
    for name, recipe in (
        ("q4", replace(wide(RECIPE, "q4_0"), vocab_size=960)),
        ("deep", replace(RECIPE, num_layers=24)),
    ):
        assert NOTE not in _said(write_model(tmp_path / f"{name}.gguf", recipe))


def test_the_computed_share_is_reported(path: Path) -> None:
    flags = ("run", "-m", path, "-p", "ab", "-n", "8", "--temp", "0", "--ignore-eos")
    share = run_json(*flags, "--head", "screened")["head_computed_share"]
    assert 0 < share < 1
    assert run_json(*flags)["head_computed_share"] is None
    with LLM(path, head="screened", threads=1) as llm:
        engine = Engine(llm.loaded)
        assert engine.statistics().head_computed_share is None
        llm.generate("ab", None)
        metrics = ServerMetrics()
        metrics.of("tiny").measure(engine.statistics())
        assert b"powerinfer_head_computed_share 0." in metrics.text()
