"""`powerinfer quantize` as users call it, and with `imatrix`: output, mistakes, kills, quality."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import assert_error, invoke, run_json
from patience import PATIENCE_S
from powerinfer.gguf import encode_tensor, open_gguf, rewrite_metadata, write_gguf
from tiny_models import TINY_EXPERTS, TINY_MODELS, wide, write_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tiny llama model in F16."""
    return write_model(tmp_path / "tiny.gguf", wide(TINY_MODELS["llama"], "f16"))


def test_output_and_the_file(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "q.gguf"
    result = invoke("quantize", model, output, "q8_0")
    assert result.exit_code == 0, result.output
    *formats, last = result.stdout.splitlines()
    assert [line.split(",")[0] for line in formats] == ["q8_0: 16 tensors", "f32: 5 tensors"]
    assert "relative error up to 3." in formats[0]
    assert last.startswith(f"{output}: Q8_0, ")
    assert last.endswith("B/s")
    assert result.stderr == ""
    text = invoke("run", "-m", output, "-p", "ab", "-n", "2", "--temp", "0", "--ignore-eos")
    assert text.exit_code == 0, text.output


def _one_of_each() -> Iterator[Any]:
    """Models; all but the first of an architecture take long together and show little more."""
    seen = set()
    for name, recipe in (TINY_MODELS | TINY_EXPERTS).items():
        is_first = recipe.architecture not in seen
        seen.add(recipe.architecture)
        yield pytest.param(name, marks=() if is_first else pytest.mark.thorough)


@pytest.mark.parametrize("name", list(_one_of_each()))
def test_every_architecture_runs_quantized(tmp_path: Path, name: str) -> None:
    source = write_model(tmp_path / "m.gguf", wide((TINY_MODELS | TINY_EXPERTS)[name]))
    output = tmp_path / "q.gguf"
    assert invoke("quantize", source, output, "Q4_K_M").exit_code == 0
    result = invoke("run", "-m", output, "-p", "ab", "-n", "1", "-c", "32")
    assert result.exit_code == 0, result.output


def test_json(model: Path, tmp_path: Path) -> None:
    report = run_json("quantize", model, tmp_path / "q.gguf", "Q4_0", "--keep", "*ffn*=F16")
    assert report["type"] == "Q4_0"
    assert report["bytes"] == (tmp_path / "q.gguf").stat().st_size
    assert report["gb_per_s"] > 0
    tensors = {tensor["name"]: tensor for tensor in report["tensors"]}
    assert tensors.keys() == open_gguf(tmp_path / "q.gguf").tensors.keys()
    attention, ffn = tensors["blk.0.attn_q.weight"], tensors["blk.0.ffn_up.weight"]
    assert (attention["source_type"], attention["type"]) == ("f16", "q4_0")
    assert 0.05 < attention["relative_error"] < 0.15
    assert (ffn["type"], ffn["relative_error"], ffn["importance"]) == ("f16", 0.0, False)


def test_sources_that_are_quantized_are_noted(model: Path, tmp_path: Path) -> None:
    assert invoke("quantize", model, tmp_path / "a.gguf", "Q8_0").exit_code == 0
    result = invoke("quantize", tmp_path / "a.gguf", tmp_path / "b.gguf", "Q4_0")
    assert "were already quantized (q8_0): errors add up" in result.stderr
    same = invoke("quantize", tmp_path / "a.gguf", tmp_path / "b.gguf", "Q8_0")
    assert same.stderr == ""
    tensors = [open_gguf(tmp_path / name).tensors for name in ("a.gguf", "b.gguf")]
    a, b = ({name: each.data.tobytes() for name, each in found.items()} for found in tensors)
    assert a == b


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{m}", "{q}", "Q3_K_L"], "type 'Q3_K_L' is unknown; supported are"),
        (["{m}", "{m}", "Q8_0"], "is the model being read"),
        (["{n}", "{q}", "Q8_0"], "none.gguf: no such file"),
        (["{m}", "{q}", "Q8_0", "--keep", "ffn"], "expected PATTERN=TYPE"),
        (["{m}", "{q}", "Q8_0", "--keep", "ffn=q9"], "q9 is not one of bf16, "),
        (["{m}", "{q}", "Q8_0", "--keep", "ffn=q8_0"], "no matrix has a name like 'ffn'"),
        (["{m}", "{q}", "Q8_0", "--imatrix", "{m}"], "it is not an importance matrix"),
        (["{m}", "{q}", "Q8_0", "--imatrix", "{n}"], "none.gguf: no such file"),
        (["{m}", "{q}", "Q8_0", "-t", "0"], "-t"),
        (["{m}", "{d}", "Q8_0"], "not a regular file"),
    ],
)
def test_mistakes_are_one_line(
    model: Path, tmp_path: Path, arguments: list[str], said: str
) -> None:
    names = {
        "m": model,
        "q": tmp_path / "q.gguf",
        "n": tmp_path / "none.gguf",
        "d": tmp_path,
    }
    before = model.read_bytes()
    result = invoke("quantize", *(each.format(**names) for each in arguments))
    assert_error(result, said)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.gguf"]
    assert model.read_bytes() == before


_CHILD = """
import sys
from pathlib import Path
from powerinfer.convert.quantize.file_types import find_file_type
from powerinfer.convert.quantize.quantize import quantize
from powerinfer.convert.quantize.plan import QuantizeOptions
from powerinfer.gguf import open_gguf

def progress(done, total):
    print("half", flush=True)
    sys.stdin.read()

options = QuantizeOptions(find_file_type("Q8_0"), threads=1)
quantize(open_gguf(sys.argv[1]), Path(sys.argv[2]), options, progress)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_kill_leaves_no_file_under_the_name(
    model: Path, tmp_path: Path, number: signal.Signals
) -> None:
    output = tmp_path / "q.gguf"
    command = [sys.executable, "-c", _CHILD, str(model), str(output)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == b"half\n"
        process.send_signal(number)
        process.wait(PATIENCE_S)
    assert not output.exists()
    assert invoke("quantize", model, output, "Q8_0").exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["q.gguf", "tiny.gguf"]


@pytest.mark.parametrize("name", ["pack", "quantize"])
def test_a_calibration_inside_is_left_out(tmp_path: Path, name: str) -> None:
    """It belongs to the weights that were measured: a model with others would be refused."""
    model = write_model(tmp_path / "m.gguf", wide(TINY_MODELS["llama-relu"]))
    rewrite_metadata(open_gguf(model), model, {"powerinfer.calibration": "{}"})
    output = tmp_path / "out.gguf"
    arguments: list[str | Path] = (
        [model, "-o", output] if name == "pack" else [model, output, "Q8_0"]
    )
    result = invoke(name, *arguments)
    assert result.exit_code == 0, result.output
    assert "note: the calibration in the file is left out" in result.stderr
    run = invoke("run", "-m", output, "-p", "a", "-n", "1")
    assert run.exit_code == 0, run.output


def test_nan_names_the_tensor(tmp_path: Path) -> None:
    values = np.ones((4, 64), np.float32)
    values[2, 3] = np.nan
    write_gguf(tmp_path / "m.gguf", {}, [encode_tensor("blk.0.ffn_up.weight", values)])
    result = invoke("quantize", tmp_path / "m.gguf", tmp_path / "q.gguf", "Q8_0")
    assert_error(result, "m.gguf: tensor blk.0.ffn_up.weight")


def test_matrices_without_importance_are_noted(model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Once upon a time there was a garden. " * 9)
    short = write_model(tmp_path / "short.gguf", wide(TINY_MODELS["llama"], "f16"))
    flags = ("-f", text, "-o", tmp_path / "i.gguf", "-c", "64")
    assert invoke("imatrix", "-m", short, *flags).exit_code == 0
    whole = ("quantize", model, tmp_path / "q.gguf", "Q8_0", "--imatrix", tmp_path / "i.gguf")
    assert invoke(*whole).stderr == ""
    report = run_json(*whole)
    weighted = {tensor["name"]: tensor["importance"] for tensor in report["tensors"]}
    assert weighted["blk.0.attn_q.weight"]
    assert not weighted["token_embd.weight"]
    metadata = open_gguf(tmp_path / "q.gguf").metadata
    assert metadata["quantize.imatrix.file"] == "i.gguf"
    assert metadata["quantize.imatrix.dataset"] == "text.txt"
    assert metadata["quantize.imatrix.entries_count"] == 14
