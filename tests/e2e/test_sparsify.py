"""`powerinfer sparsify` as a user calls it, and what the other commands make of the result."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from patience import PATIENCE_S

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from command_line import assert_error, invoke, run_json
from sparsify_cases import LLAMA, MISTRAL, write_sample

OPTIONS = (
    *("--tokens", "6000", "--seq-len", "32", "--batch-tokens", "256"),
    *("--learning-rate", "0.003", "--device", "cpu"),
)


def one_thread() -> dict[str, str]:
    """The environment of a program whose torch uses one thread."""
    return os.environ | {"OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_sample(tmp_path_factory.mktemp("sample"), LLAMA)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "activation"),
    [
        pytest.param(LLAMA, "drelu", id="llama-drelu"),
        pytest.param(MISTRAL, "drelu", id="mistral-drelu", marks=pytest.mark.thorough),
        pytest.param(LLAMA, "relu", id="llama-relu", marks=pytest.mark.thorough),
        pytest.param(MISTRAL, "relu", id="mistral-relu"),
    ],
)
def test_from_a_swiglu_checkpoint_to_a_file_that_runs(
    config: dict[str, object], activation: str, tmp_path: Path
) -> None:
    checkpoint, text = write_sample(tmp_path, config)
    out, model = tmp_path / "sparse", tmp_path / "sparse.gguf"
    report = run_json(
        "sparsify", checkpoint, "-f", text, "-o", out, *OPTIONS, "--activation", activation
    )
    assert (report["steps"], report["tokens"]) == (24, 6144)
    assert report["perplexity"] < 0.8 * report["perplexity_before"]
    assert [layer["zeros"] > 0.3 for layer in report["layers"]] == [True, True]
    assert sorted(path.name for path in out.iterdir()) == [
        "config.json",
        "model.safetensors",
        "sparsify.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "training.jsonl",
    ]
    converted = run_json("convert", out, "-o", model)
    assert converted["architecture"] == ("bamboo" if activation == "drelu" else "llama")
    said = run_json("run", "-m", model, "-p", "the cat", "-n", "4", "--temp", "0")
    assert said["sparsity"] == "exact"
    assert 0 < said["active_share"] < 0.7
    quantized = tmp_path / "q8.gguf"
    assert run_json("quantize", model, quantized, "q8_0")
    # The same text in our engine: each token is predicted with what is before it.
    measured = run_json("perplexity", "-m", quantized, "-f", text, "-c", "32")
    assert measured["perplexity"] < 1.3 * report["perplexity"]


# Predictors of other models are trained and taken in tests/train.
@pytest.mark.thorough
def test_the_result_takes_predictors(sample: tuple[Path, Path], tmp_path: Path) -> None:
    checkpoint, text = sample
    out, model = tmp_path / "sparse", tmp_path / "sparse.gguf"
    assert run_json("sparsify", checkpoint, "-f", text, "-o", out, *OPTIONS)
    assert run_json("convert", out, "-o", model)
    options = ("--max-share", "0.9", "--device", "cpu")
    found = run_json("train-predictors", "-m", model, "-f", text, "-o", tmp_path / "p", *options)
    assert len(found["layers"]) == 2
    packed = tmp_path / "predicted.gguf"
    assert run_json("convert", out, "-o", packed, "--predictors", tmp_path / "p")
    said = run_json("run", "-m", packed, "-p", "the cat", "-n", "4", "--temp", "0")
    assert said["sparsity"] == "mlp"


@pytest.mark.slow
@pytest.mark.measured
def test_what_was_finished_is_not_done_again(sample: tuple[Path, Path], tmp_path: Path) -> None:
    checkpoint, text = sample
    arguments = ("sparsify", checkpoint, "-f", text, "-o", tmp_path / "out", *OPTIONS)
    first = invoke(*arguments)
    assert first.exit_code == 0, first.output
    lines = first.stdout.splitlines()
    assert lines[0].startswith(f"{tmp_path / 'out'}: drelu, trained on 6144 tokens in 24 steps, ")
    assert lines[1].startswith("perplexity on ") and " before, " in lines[1]
    assert lines[2].startswith("neurons that are zero: ")
    assert lines[3] == f"next: powerinfer convert {tmp_path / 'out'} -o {tmp_path / 'out'}.gguf"
    before = (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns
    assert invoke(*arguments).stdout == first.stdout
    assert (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns == before
    assert_error(invoke(*arguments, "--seed", "2"), "holds a checkpoint already", "-o")


@pytest.mark.thorough
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bits(
    sample: tuple[Path, Path], tmp_path: Path
) -> None:
    checkpoint, text = sample
    code = (
        "import sys; from powerinfer.train.sparsify import sparsify as s; s._SAVE_S = 0.0\n"
        "s._SAVE_RATIO = 0.0; from powerinfer.cli.main import main; main(sys.argv[1:])"
    )
    arguments = [
        *(sys.executable, "-c", code, "sparsify", str(checkpoint), "-f", str(text)),
        *(*OPTIONS, "--density-penalty", "0.1", "-o"),
    ]
    whole = tmp_path / "whole"
    subprocess.run(
        [*arguments, str(whole)],
        env=one_thread(),
        check=True,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    cut, kills = tmp_path / "cut", 0
    log = cut / "training" / "checkpoint.pt"
    for changes, sent in ((1, signal.SIGKILL), (2, signal.SIGINT), (5, signal.SIGKILL)):
        process = subprocess.Popen([*arguments, str(cut)], env=one_thread(), stderr=subprocess.PIPE)
        seen: set[int] = set()
        deadline = time.monotonic() + PATIENCE_S
        while process.poll() is None and len(seen) <= changes and time.monotonic() < deadline:
            if log.exists():
                seen.add(log.stat().st_mtime_ns)
            time.sleep(0.001)
        process.send_signal(sent)
        said = process.communicate(timeout=PATIENCE_S)[1].decode()
        kills += process.returncode in (-signal.SIGKILL, 130)
        if process.returncode == 130:
            assert said.strip() == "stopped; the same command resumes from the last save"
        assert not (cut / "config.json").exists() or process.returncode == 0
    assert kills >= 2
    subprocess.run(
        [*arguments, str(cut)],
        env=one_thread(),
        check=True,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    assert (cut / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    logs = [
        [json.loads(line) | {"tokens_per_s": 0} for line in path.read_text().splitlines()]
        for path in (cut / "training.jsonl", whole / "training.jsonl")
    ]
    assert logs[0] == logs[1] and [line["step"] for line in logs[0]] == [10, 20, 24]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (("--seed", "2"), "has another seed (1, here 2)"),
        (("--activation", "relu"), "has another activation (drelu, here relu)"),
        (("--density-penalty", "1"), "has another density_penalty (0.0, here 1.0)"),
    ],
)
def test_an_unfinished_run_of_other_options_is_refused(
    changes: tuple[str, ...], problem: str, sample: tuple[Path, Path], tmp_path: Path
) -> None:
    arguments = _unfinished(sample, tmp_path)
    assert_error(invoke(*arguments, *changes), problem, "choose another folder with -o")


def test_an_unfinished_run_of_another_text_or_checkpoint_is_refused(
    sample: tuple[Path, Path], tmp_path: Path
) -> None:
    arguments = list(_unfinished(sample, tmp_path))
    other = tmp_path / "other.txt"
    other.write_text(sample[1].read_text().replace("cat", "dog"))
    arguments[3] = other
    assert_error(invoke(*arguments), "an unfinished run there has another text")
    arguments[3], arguments[1] = sample[1], write_sample(tmp_path / "mistral", MISTRAL)[0]
    assert_error(invoke(*arguments), "an unfinished run there has another checkpoint")


def _unfinished(sample: tuple[Path, Path], folder: Path) -> tuple[str | Path, ...]:
    """Arguments of a run that failed before its first step."""
    checkpoint, text = sample
    arguments = ("sparsify", checkpoint, "-f", text, "-o", folder / "out", *OPTIONS)
    assert_error(invoke(*arguments, "--seq-len", "300"), "rows of 300 tokens; the model has 128")
    failed = folder / "out" / "training" / "run.json"
    values = json.loads(failed.read_text()) | {"seq_len": 32}
    failed.write_text(json.dumps(values))
    return arguments


def test_bad_input_is_one_line(sample: tuple[Path, Path], tmp_path: Path) -> None:
    checkpoint, text = sample
    out = tmp_path / "out"

    def tried(*arguments: str | Path, of: Path = checkpoint, read: Path = text) -> object:
        return invoke("sparsify", of, "-f", read, "-o", out, *OPTIONS, *arguments)

    short = tmp_path / "short.txt"
    short.write_text("the cat sat")
    binary = tmp_path / "binary.txt"
    binary.write_bytes(b"\xff\xfe")
    assert_error(tried(read=short), "too short", "tokens")  # type: ignore[arg-type]
    assert_error(tried(read=tmp_path / "none"), "none: no such file")  # type: ignore[arg-type]
    assert_error(tried(of=tmp_path / "none"), "does not exist")  # type: ignore[arg-type]
    assert_error(tried(of=tmp_path), "config.json")  # type: ignore[arg-type]
    assert_error(tried("--device", "cuda:7"), "GPU")  # type: ignore[arg-type]
    assert not (out / "config.json").exists()
    out = checkpoint
    assert_error(tried(), "holds a checkpoint already")  # type: ignore[arg-type]
    out = tmp_path / "binary"
    assert_error(tried(read=binary), "byte 0 is not UTF-8")  # type: ignore[arg-type]


def test_without_transformers_it_says_what_to_install(
    sample: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    checkpoint, text = sample
    result = invoke("sparsify", checkpoint, "-f", text, "-o", tmp_path / "out", *OPTIONS)
    assert_error(result, "sparsify needs transformers", "install the extra train")


def test_a_loss_that_is_nan_says_where(tmp_path: Path) -> None:
    checkpoint, text = write_sample(tmp_path, LLAMA)
    arguments = ("sparsify", checkpoint, "-f", text, "-o", tmp_path / "out", *OPTIONS)
    result = invoke(*arguments, "--learning-rate", "1e30")
    assert_error(result, "of 24: ", "are kept in", "with a lower --learning-rate")
    assert (tmp_path / "out" / "training" / "checkpoint.pt").exists()


@pytest.mark.usefixtures("unmeasured_programs")
@pytest.mark.slow
def test_a_full_disk_is_one_line(sample: tuple[Path, Path], tmp_path: Path) -> None:
    checkpoint, text = sample

    def limit() -> None:
        # More than the text's tokens, less than the state of a training.
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    command = [*(sys.executable, "-m", "powerinfer", "sparsify", str(checkpoint), "-f", str(text))]
    command += ["-o", str(tmp_path / "out"), *OPTIONS]
    done = subprocess.run(
        command,
        env=one_thread(),
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 2, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ")
    assert "checkpoint.pt: cannot write: File too large" in lines[0]
    assert not (tmp_path / "out" / "config.json").exists()
    again = invoke("sparsify", checkpoint, "-f", text, "-o", tmp_path / "out", *OPTIONS)
    assert again.exit_code == 0, again.output


def test_two_at_once_are_refused(sample: tuple[Path, Path], tmp_path: Path) -> None:
    from powerinfer.train.sparsify.output import OutputFolder

    checkpoint, text = sample
    with OutputFolder(tmp_path / "out").locked():
        result = invoke("sparsify", checkpoint, "-f", text, "-o", tmp_path / "out", *OPTIONS)
    assert_error(result, "another process trains there")
