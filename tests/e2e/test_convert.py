"""`powerinfer convert` as a user calls it."""

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from command_line import assert_error, invoke, run_json
from converted_cases import save_without_torch
from hub_cases import hub_here
from hub_server import Repository
from patience import PATIENCE_S
from powerinfer.convert import planning
from powerinfer.convert.tokenizers import read_tokenizer
from powerinfer.gguf import open_gguf
from tokenizer_checkpoints import byte_fallback_json, write_files
from transformers_cases import CASES, Case

VOCAB_SIZE = 420
"""More than the tokenizer has: the rest is padding."""


def small(name: str) -> Case:
    return replace(CASES[name], config=CASES[name].config | {"vocab_size": VOCAB_SIZE})


def write(folder: Path, name: str = "llama-relu") -> Path:
    """A checkpoint with a tokenizer."""
    save_without_torch(folder, small(name), shards=2)
    files = {
        "tokenizer.json": byte_fallback_json(),
        "tokenizer_config.json": {
            "bos_token": "<s>",
            "eos_token": "</s>",
            "unk_token": "<unk>",
            "add_bos_token": True,
        },
    }
    return write_files(folder, files)


def test_a_converted_model_runs(tmp_path: Path) -> None:
    folder, output = write(tmp_path / "my-model"), tmp_path / "new" / "m.gguf"
    result = invoke("convert", folder, "-o", output)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"{output}: llama, 21 tensors, f32, 0.5 MB, ")
    assert result.stderr == ""
    file = open_gguf(output)
    assert file.get_str("general.name") == "my-model"
    assert len(file.get_strings("tokenizer.ggml.tokens")) == VOCAB_SIZE
    said = run_json("run", "-m", output, "-p", "the cat", "-n", "4", "--temp", "0")
    assert len(said["token_ids"]) == 4
    assert said["sparsity"] == "exact"


def test_a_checkpoint_of_the_hub_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, output = write(tmp_path / "hf"), tmp_path / "m.gguf"
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    with hub_here(tmp_path, monkeypatch) as hub:
        hub.repositories["org/tiny"] = Repository(files)
        result = invoke("convert", "hf:org/tiny", "-o", output)
        assert result.exit_code == 0, result.output
        assert_error(invoke("convert", "hf:org/none", "-o", tmp_path / "n.gguf"), "hf:org/none")
    invoke("convert", folder, "-o", tmp_path / "local.gguf")
    assert open_gguf(output).get_str("general.name") == "tiny"
    ours, local = (open_gguf(path).tensors for path in (output, tmp_path / "local.gguf"))
    assert [tensor.data.tobytes() for tensor in ours.values()] == [
        tensor.data.tobytes() for tensor in local.values()
    ]


def test_json_says_what_was_written(tmp_path: Path) -> None:
    output = tmp_path / "m.gguf"
    report = run_json("convert", write(tmp_path / "hf"), "-o", output, "--outtype", "bf16")
    assert report["path"] == str(output)
    assert (report["architecture"], report["outtype"], report["tensors"]) == ("llama", "bf16", 21)
    assert report["bytes"] == output.stat().st_size
    assert report["seconds"] > 0
    assert report["gb_per_s"] == pytest.approx(report["bytes"] / report["seconds"] / 1e9)


def test_plain_files_have_no_transposed_tensors(tmp_path: Path) -> None:
    output = tmp_path / "m.gguf"
    result = invoke("convert", write(tmp_path / "hf"), "-o", output, "--plain")
    assert result.exit_code == 0, result.output
    assert "blk.0.ffn_down.weight" in open_gguf(output).tensors


def test_errors_are_one_line(tmp_path: Path) -> None:
    output = tmp_path / "m.gguf"
    assert_error(invoke("convert", tmp_path / "none", "-o", output), "none: does not exist")
    assert_error(invoke("convert", tmp_path, "-o", output), "config.json: cannot be read")
    folder = write(tmp_path / "hf")
    assert_error(
        invoke("convert", folder / "tokenizer.json", "-o", output), "is a file; expected the folder"
    )
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert_error(invoke("convert", folder, "-o", output), "1 of its 2 files are missing")
    assert_error(
        invoke("convert", folder, "-o", output, "--plain", "--predictors", tmp_path),
        "a plain file has no predictors",
    )
    assert not output.exists()


def test_a_tokenizer_that_differs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, output = write(tmp_path / "hf"), tmp_path / "m.gguf"

    def damaged(source: Path, num_rows: int) -> dict[str, object]:
        found = read_tokenizer(source, num_rows)
        tokens = list(found["tokenizer.ggml.tokens"])  # type: ignore[call-overload]
        tokens[300], tokens[301] = tokens[301], tokens[300]
        return found | {"tokenizer.ggml.tokens": tokens}

    monkeypatch.setattr(planning, "read_tokenizer", damaged)
    assert_error(invoke("convert", folder, "-o", output), str(folder))
    assert not output.exists()


def test_advice_names_the_flag(tmp_path: Path) -> None:
    output = tmp_path / "m.gguf"
    output.write_text("notes")
    result = invoke("convert", write(tmp_path / "hf"), "-o", output)
    assert_error(result, "already exists", "another file with -o")
    assert output.read_text() == "notes"


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="only POSIX systems kill so")
def test_a_kill_leaves_no_file_under_the_final_name(tmp_path: Path) -> None:
    folder, output = write(tmp_path / "hf"), tmp_path / "out" / "m.gguf"
    output.parent.mkdir()
    program = (
        "import os, signal, sys\n"
        "from powerinfer.convert import convert as module\n"
        "def progress(done, total):\n"
        "    if done > total // 2: os.kill(os.getpid(), signal.SIGKILL)\n"
        "from pathlib import Path\n"
        "module.convert(Path(sys.argv[1]), Path(sys.argv[2]), progress=progress)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, folder, output], check=False, timeout=PATIENCE_S
    )
    assert done.returncode == -signal.SIGKILL
    (left,) = output.parent.iterdir()
    assert left.name.endswith(".part")
    assert invoke("convert", folder, "-o", output).exit_code == 0
    assert [path.name for path in output.parent.iterdir()] == ["m.gguf"]
