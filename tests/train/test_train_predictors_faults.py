"""What `powerinfer train-predictors` refuses: one line that says what to do, and exit code 2."""

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command_line import assert_error, invoke
from patience import PATIENCE_S
from predictor_runs import MODEL, arguments, contents, few_steps, program, write_inputs
from tiny_models import TINY_MODELS, write_model

torch = pytest.importorskip("torch", reason="torch is not installed")

from powerinfer.train.predictors import plan, run  # noqa: E402


@pytest.fixture(autouse=True)
def _few_steps() -> Iterator[None]:
    with few_steps():
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_inputs(tmp_path)
    return tmp_path


@pytest.fixture
def stopped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which a run was stopped before it trained anything."""

    def interrupted(*_given: Any, **_options: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "fit_layer", interrupted)
    assert invoke(*arguments(folder)).exit_code == 130
    monkeypatch.undo()
    return folder


def test_models_without_predictors(folder: Path) -> None:
    write_model(folder / "model.gguf", TINY_MODELS["gemma4"])
    unlike = invoke(*arguments(folder), "--activation", "relu")
    assert_error(unlike, "layers of gemma4 models differ")
    write_model(folder / "model.gguf", TINY_MODELS["llama"])
    assert_error(invoke(*arguments(folder)), "runs silu", "--activation")
    write_model(folder / "model.gguf", TINY_MODELS["mamba2"])
    assert_error(invoke(*arguments(folder)), "nothing to predict: the model has no FFN")
    assert not (folder / "out").exists()


def test_texts_that_cannot_be_trained_on(folder: Path) -> None:
    (folder / "text.txt").write_text("too short " * 20)
    assert_error(invoke(*arguments(folder)), "tokens in whole windows of 64", "at least 4096")
    (folder / "text.txt").write_bytes(b"\xff" * 9000)
    assert_error(invoke(*arguments(folder)), "text.txt", "UTF-8")
    (folder / "text.txt").unlink()
    assert_error(invoke(*arguments(folder)), "text.txt", "no such file")


def test_too_few_tokens_asked_for(folder: Path) -> None:
    assert_error(invoke(*arguments(folder), "--tokens", "1000"), "at least 4096")


def test_limits_that_leave_no_room(folder: Path) -> None:
    small = invoke(*arguments(folder), "--cache-size", "64KiB")
    assert_error(small, "64.0 KiB are allowed", "--cache-size", "--tokens")
    assert contents(folder / "out") == {}
    least = arguments(folder, "other")
    least[least.index("--max-share") + 1] = "0.01"
    assert_error(invoke(*least), "smallest rank, 32", "0.01 is allowed", "--max-share")
    assert_error(invoke(*arguments(folder), "--cache-size", "much"), "'much' is not a size")


def test_too_little_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "available_memory_bytes", lambda: 1 << 20)
    found = invoke(*arguments(folder))
    assert_error(found, "a layer of 48 neurons at rank", "1.0 MiB are available", "--max-share")
    assert contents(folder / "out") == {}


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (torch.cuda.OutOfMemoryError("CUDA out of memory"), "the memory of the GPU is full"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "the memory of the CPU is"),
    ],
    ids=["gpu", "cpu"],
)
def test_memory_that_runs_out(
    folder: Path, error: Exception, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_given: Any, **_options: Any) -> Any:
        raise error

    monkeypatch.setattr(run, "fit_layer", exhausted)
    found = invoke(*arguments(folder))
    assert_error(found, "training layer 0, of ranks up to", said, "--max-share", "--device")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["--recall", "0.9"], "another goal: recall 0.95, now 0.9"),
        (["--tokens", "4096"], "another text: max_tokens"),
        (["--seed", "1"], "another seed: 0, now 1"),
    ],
)
def test_another_run_in_the_same_folder(stopped: Path, change: list[str], said: str) -> None:
    before = contents(stopped / "out")
    assert_error(invoke(*arguments(stopped), *change), "out: belongs to a run", said, "-o")
    assert contents(stopped / "out") == before


def test_another_model_or_text(stopped: Path) -> None:
    write_model(stopped / "model.gguf", MODEL, seed=1)
    assert_error(invoke(*arguments(stopped)), "another model: identity")
    write_inputs(stopped)
    with (stopped / "text.txt").open("a") as text:
        text.write("more")
    assert_error(invoke(*arguments(stopped)), "another text: identity")


def test_names_do_not_matter(stopped: Path) -> None:
    (stopped / "text.txt").rename(stopped / "renamed.txt")
    moved = [word.replace("text.txt", "renamed.txt") for word in arguments(stopped)]
    result = invoke(*moved)
    assert result.exit_code == 0, result.output
    report = json.loads((stopped / "out" / "predictors.json").read_text())
    assert report["text"]["names"] == ["renamed.txt"]


def test_a_cache_of_another_run(stopped: Path) -> None:
    cache = stopped / "out" / "cache"
    other = [*arguments(stopped, "other"), "--cache", str(cache)]
    assert_error(invoke(*other, "--tokens", "4200"), "cache", "another model, text", "--cache")
    (cache / "run.json").unlink()
    assert_error(invoke(*other), "belongs to a run with another")


def test_predictors_of_somebody_else(folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "model_0.pt").write_bytes(b"precious")
    assert_error(invoke(*arguments(folder)), "did not train", "lost", "-o")
    assert (folder / "out" / "model_0.pt").read_bytes() == b"precious"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 1}', '{"version": 2}'])
def test_a_damaged_report(stopped: Path, content: str) -> None:
    (stopped / "out" / "predictors.json").write_text(content)
    assert_error(invoke(*arguments(stopped)), "predictors.json", "remove the folder")


def test_a_damaged_cache(stopped: Path) -> None:
    (stopped / "out" / "cache" / "survey.npz").write_bytes(b"PK")
    assert_error(invoke(*arguments(stopped)), "survey.npz", "is damaged", "remove the folder")
    (stopped / "out" / "cache" / "survey.npz").unlink()
    (stopped / "out" / "cache" / "layer_1.inputs").unlink()
    assert invoke(*arguments(stopped)).exit_code == 0


def test_a_cache_that_is_gone(stopped: Path) -> None:
    shutil.rmtree(stopped / "out" / "cache")
    assert invoke(*arguments(stopped)).exit_code == 0


def test_devices_that_are_not_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    words = arguments(folder)
    words[words.index("--device") + 1] = "cuda"
    assert_error(invoke(*words), "device cuda: torch sees no GPUs", "--device cpu")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert_error(invoke(*words), "needs torch, which is not installed", "extra train")


def test_what_cannot_be_packed_is_refused_first(folder: Path) -> None:
    model = folder / "model.gguf"
    assert_error(invoke(*arguments(folder), "--pack", model), "model.gguf")
    other = folder / "packed.gguf"
    other.write_bytes(model.read_bytes())
    assert_error(invoke(*arguments(folder), "--pack", other), "was not written by pack")
    assert not (folder / "out").exists()


# The first file that is written, and one of those that hold what was seen, stand for all.
@pytest.mark.parametrize(
    "limit",
    [
        1,
        pytest.param(8, marks=pytest.mark.thorough),
        160,
        pytest.param(500, marks=pytest.mark.thorough),
    ],
)
@pytest.mark.usefixtures("unmeasured_programs")
def test_a_full_disk(folder: Path, limit: int) -> None:
    """The limit on the size of files, in blocks of 512 bytes, stands for the end of the disk."""
    limited = f"ulimit -f {limit}; exec {shlex.join(program(*arguments(folder)))}"
    done = subprocess.run(
        ["sh", "-c", limited], capture_output=True, timeout=2 * PATIENCE_S, check=False
    )
    assert done.returncode == 2, done.stderr
    (line,) = [line for line in done.stderr.decode().splitlines() if line.startswith("error: ")]
    assert "cannot write" in line or "cannot be written" in line
    assert b"Traceback" not in done.stderr
    result = invoke(*arguments(folder))
    assert result.exit_code == 0, result.output
