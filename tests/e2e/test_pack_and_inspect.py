"""`powerinfer pack` and `powerinfer inspect` as a user calls them."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguf_bytes as gb
from command_line import assert_error, invoke
from powerinfer.bench.read_bandwidth import PLAIN_READ_SETTINGS
from powerinfer.cli.report import machine
from powerinfer.gguf import open_gguf, write_gguf
from powerinfer.loading.reading_speeds import PREFETCH_SETTINGS, prefetch_settings_name
from powerinfer.ops.cpu import prefetch_settings, prefetch_speed
from powerinfer.ops.cpu.prefetch_settings import PlainReadSettings, PrefetchSettings
from powerinfer.store import memory
from powerinfer.store.threads import default_threads
from tiny_models import TINY_MODELS, wide, write_model
from tokenizer_metadata import small_byte_level


@pytest.fixture(autouse=True)
def _little_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_READ_BYTES", 1 << 20)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tiny llama model with F32 weights."""
    return write_model(tmp_path / "tiny.gguf", wide(TINY_MODELS["llama"]))


def test_pack_writes_a_model_that_inspect_shows(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "packed.gguf"
    result = invoke("pack", model, "-o", output, "--activation", "fatrelu:0.25")
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{output}: layout rows, 2 tensors packed, exact\n"
    assert open_gguf(output).get_float("powerinfer.fatrelu_threshold") == 0.25
    shown = invoke("inspect", output)
    assert shown.exit_code == 0, shown.output
    lines = dict(line.split("  ", 1) for line in shown.stdout.splitlines() if "  " in line.strip())
    assert lines["architecture"].strip() == "llama"
    assert lines["down projection"].strip() == "a row per neuron"
    assert lines["activation"].strip() == "fatrelu:0.25"
    assert "powerinfer.layout = rows" in shown.stdout


def test_pack_says_when_it_gains_nothing(model: Path, tmp_path: Path) -> None:
    dense = invoke("pack", model, "-o", tmp_path / "p.gguf")
    assert dense.exit_code == 0
    assert "no neuron can be skipped with the FFN activation silu" in dense.stderr
    assert invoke("pack", model, "-o", tmp_path / "p.gguf", "--activation", "relu").stderr == ""


def test_what_packing_would_bring_is_said_until_it_is_packed(tmp_path: Path) -> None:
    """Once in `inspect` and once where a model starts, and only where neurons can be skipped."""
    advice = "stored by columns and read whole, 33.3 % of the FFN's bytes; `powerinfer pack` stores"
    plain = write_model(tmp_path / "relu.gguf", wide(TINY_MODELS["llama-relu"]))
    packed = tmp_path / "packed.gguf"
    assert invoke("pack", plain, "-o", packed).exit_code == 0
    few = ["-p", "ab", "-n", "1"]
    assert f"  {advice}" in invoke("inspect", plain).stdout
    assert invoke("run", "-m", plain, *few).stderr.count(f"note: down is {advice}") == 1
    assert advice not in invoke("inspect", packed).stdout
    assert advice not in invoke("run", "-m", packed, *few).stderr
    assert advice not in invoke("run", "-m", plain, *few, "--sparsity", "off").stderr
    ffn = json.loads(invoke("inspect", plain, "--json").stdout)["ffn"]
    assert ffn["plain_down_bytes"] * 3 == ffn["bytes"] == 2 * 3 * 256 * 512 * 4
    assert json.loads(invoke("inspect", packed, "--json").stdout)["ffn"]["plain_down_bytes"] == 0


def test_packing_is_said_to_change_formats_without_an_encoder(tmp_path: Path) -> None:
    """It may cost more bytes than it saves."""
    path = write_model(tmp_path / "relu.gguf", wide(TINY_MODELS["llama-relu"], "q4_k"))
    shown = invoke("inspect", path).stdout
    assert "`powerinfer pack` stores it by neurons, q4_k as q8_0, so that inactive" in shown


def test_inspect_of_a_dense_model_advises_nothing(model: Path) -> None:
    assert "by columns" not in invoke("inspect", model).stdout
    assert "by columns" not in invoke("run", "-m", model, "-p", "ab", "-n", "1").stderr


def test_pack_of_blocks_prints_the_error_and_the_change(tmp_path: Path) -> None:
    model = write_model(tmp_path / "q.gguf", wide(TINY_MODELS["llama"], "q4_k"))
    result = invoke("pack", model, "-o", tmp_path / "p.gguf")
    assert result.exit_code == 0, result.output
    assert "note: q4_k cannot be encoded again" in result.stderr
    assert "stored as q8_0" in result.stderr
    error = float(result.stdout.rsplit(" ", 1)[1])
    assert 0 < error < 0.02
    report = json.loads(invoke("pack", model, "-o", tmp_path / "p.gguf", "--json").stdout)
    assert report["tensors"][0]["source_format"] == "q4_k"
    assert report["largest_relative_error"] == pytest.approx(error, rel=0.01)
    assert report["exact"] is False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pack", "MODEL", "-o", "MODEL"], "is the model being read"),
        (["pack", "MODEL", "-o", "out.gguf", "--layout", "cols"], "Supported: "),
        (["pack", "MODEL", "-o", "out.gguf", "--activation", "rleu"], "Did you mean 'relu'"),
        (["pack", "MODEL"], "--output"),
        (["pack", "absent.gguf", "-o", "out.gguf"], "absent.gguf"),
        (["inspect", "absent.gguf"], "absent.gguf"),
        (["inspect", "--machine", "MODEL"], "leave it or a model out"),
        (["inspect", "--machine", "--tensors"], "leave it or --tensors out"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(
    model: Path, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    result = invoke(*(str(model) if word == "MODEL" else word for word in arguments))
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert not (model.parent / "out.gguf").exists()


def test_inspect_as_json(model: Path) -> None:
    summary = json.loads(invoke("inspect", model, "--json", "--tensors").stdout)
    file = open_gguf(model)
    assert summary["architecture"] == "llama"
    assert summary["problem"] is None
    assert summary["bytes"] == model.stat().st_size
    assert summary["parameters"] == sum(t.num_elements for t in file.tensors.values())
    assert summary["sizes"]["num_layers"] == 2
    assert summary["ffn"]["activation"] == "silu"
    assert summary["ffn"]["is_down_transposed"] is False
    assert summary["formats"]["f32"]["is_supported"] is True
    assert summary["formats"]["f32"]["tensors"] == len(file.tensors)
    assert summary["tokenizer"]["tokens"] == summary["sizes"]["vocab_size"]
    assert summary["metadata"]["tokenizer.ggml.tokens"] == {
        "type": "string",
        "length": summary["sizes"]["vocab_size"],
    }
    assert [row["name"] for row in summary["tensors"]] == list(file.tensors)
    assert summary["tensors"][0]["shape"] == list(next(iter(file.tensors.values())).shape)


def test_inspect_lists_tensors(model: Path) -> None:
    shown = invoke("inspect", model, "--tensors").stdout
    for name in open_gguf(model).tensors:
        assert f"  {name} " in shown


def test_inspect_shows_predictors_of_powerinfer_files(tmp_path: Path) -> None:
    name = next(name for name, recipe in TINY_MODELS.items() if recipe.predictor_rank)
    path = write_model(tmp_path / "sparse.gguf", TINY_MODELS[name])
    ffn = json.loads(invoke("inspect", path, "--json").stdout)["ffn"]
    assert ffn["predictor_layers"] == TINY_MODELS[name].num_layers
    assert ffn["predictor_ranks"] == [TINY_MODELS[name].predictor_rank] * 2
    assert "rank" in invoke("inspect", path).stdout


def test_inspect_shows_what_cannot_be_run(tmp_path: Path) -> None:
    """Unknown architecture, unsupported type, odd numbers and control characters in names."""
    image = gb.Image(
        entries=[
            gb.entry("general.architecture", gb.STRING, gb.text("mamba")),
            gb.entry("a.nan", gb.F32, np.float32(np.nan).tobytes()),
            gb.entry("evil\x1b[2J", gb.STRING, gb.text("\x1b]0;gotcha\x07")),
        ],
        tensors=[gb.tensor("w\n", [256], 16)],
        data=bytes(66),
    )
    path = image.write(tmp_path)
    shown = invoke("inspect", path, "--tensors")
    assert shown.exit_code == 0, shown.output
    assert "architecture 'mamba' is not supported" in shown.stdout
    assert "iq2_xxs 1 tensors (0.0 MiB) NOT SUPPORTED" in shown.stdout
    assert "\x1b" not in shown.stdout
    assert "w\\n" in shown.stdout
    summary = json.loads(invoke("inspect", path, "--json").stdout)
    assert summary["metadata"]["a.nan"] == "nan"
    assert summary["formats"]["iq2_xxs"]["is_supported"] is False


def test_inspect_of_a_vocabulary(data_dir: Path) -> None:
    path = data_dir / "vocab" / "ggml" / "ggml-vocab-llama-spm.gguf"
    summary = json.loads(invoke("inspect", path, "--json").stdout)
    assert summary["tokenizer"]["tokens"] == 32000
    assert summary["parameters"] == 0
    assert summary["bits_per_weight"] is None
    assert invoke("inspect", path).exit_code == 0


def test_pack_does_not_replace_what_is_no_file(model: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    result = invoke("pack", model, "-o", pipe, "--activation", "relu")
    assert_error(result, "pipe: cannot write: it is not a regular file")
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    ("metadata", "content"), [({}, "metadata"), (small_byte_level(), "a vocabulary")]
)
def test_inspect_says_that_there_are_no_weights(
    tmp_path: Path, metadata: dict[str, Any], content: str
) -> None:
    write_gguf(tmp_path / "none.gguf", metadata, [])
    shown = invoke("inspect", tmp_path / "none.gguf").stdout
    assert f"the file has only {content}, no weights" in shown


def test_a_packed_model_generates_the_same_tokens(model: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed.gguf"
    assert invoke("pack", model, "-o", packed, "--activation", "relu").exit_code == 0
    greedy = ["-p", "ab", "-n", "8", "--temp", "0", "--ignore-eos", "--kernels", "reference"]
    before = invoke("run", "-m", model, *greedy, "--activation", "relu", "--json")
    after = invoke("run", "-m", packed, *greedy, "--json")
    assert after.exit_code == 0, after.output
    token_ids = json.loads(after.stdout)["token_ids"]
    assert token_ids == json.loads(before.stdout)["token_ids"]
    assert len(token_ids) == 8


def test_inspect_machine() -> None:
    shown = invoke("inspect", "--machine", "--json")
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout)
    assert found["selected_kernels"] in found["available_kernels"]
    assert (
        f"selected_kernels   {found['selected_kernels']}" in invoke("inspect", "--machine").stdout
    )


def _machine(*arguments: str) -> Any:
    return json.loads(invoke("inspect", "--machine", *arguments, "--json").stdout)


def test_inspect_machine_names_products_and_reads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(prefetch_speed, "has_a_core", lambda: True)
    monkeypatch.setattr(prefetch_settings, "is_steady", lambda _: True)
    threads = default_threads(beside_gpu=False)
    found = _machine("--kernels", "portable")
    names = {"quantized": "int8 portable", "floats": "f32 portable", "bf16": "f32 portable"}
    assert found["products"] == names
    assert found["read_gb_per_s"] > 0
    assert PlainReadSettings(**found["read_way"]) in PLAIN_READ_SETTINGS
    assert found["read_problem"] is None
    default = {
        "format": None,
        "threads": threads,
        "is_measured": False,
        **asdict(PrefetchSettings()),
    }
    assert found["read_ways"] == [default]
    faster = PrefetchSettings(ahead=512)
    PREFETCH_SETTINGS.keep(
        prefetch_settings_name(threads, "portable", "mxfp4", in_place=True), faster
    )
    PREFETCH_SETTINGS.keep(
        prefetch_settings_name(threads, "portable", "f16", in_place=True), PrefetchSettings()
    )
    measured = _machine("--kernels", "portable")["read_ways"]
    of_mxfp4 = {"format": "mxfp4", "threads": threads, "is_measured": True, **asdict(faster)}
    assert of_mxfp4 in measured
    assert [each["format"] for each in measured] == ["f16", "mxfp4", None]
    lines = invoke("inspect", "--machine", "--kernels", "portable").stdout.splitlines()
    assert any("f32 portable for prompts of F16, BF16 and F32 weights" in line for line in lines)
    start = next(i for i, line in enumerate(lines) if line.startswith("read_ways"))
    # One line for each; what was measured and is the default is no news.
    assert lines[start].split(None, 1)[1] == f"{PrefetchSettings()} (default)"
    assert lines[start + 1].strip() == (
        f"mxfp4: {faster} (measured with {threads} threads, for models of 1 GiB or more whose "
        "weights are mostly mxfp4)"
    )
    assert not lines[start + 2].startswith(" ")
    assert any(line.startswith("plain_read") and "GB/s, measured now" in line for line in lines)


def _no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_memory_bytes", lambda: 1 << 10)


def _no_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch_speed, "has_a_core", lambda: False)


def _unsteady(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch_speed, "has_a_core", lambda: True)
    monkeypatch.setattr(prefetch_settings, "is_steady", lambda _: False)


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (_no_memory, "too little memory is free"),
        (_no_core, "the machine is busy"),
        (_unsteady, "the machine is busy"),
    ],
)
def test_inspect_machine_says_why_it_measures_nothing(
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[pytest.MonkeyPatch], None],
    problem: str,
) -> None:
    """A figure from a machine that does something else would be taken for a fact."""
    spoil(monkeypatch)
    found = _machine()
    assert (found["read_gb_per_s"], found["read_way"]) == (None, None)
    assert found["read_problem"] == problem
    assert f"not measured: {problem}" in invoke("inspect", "--machine").stdout


def test_inspect_machine_shows_the_kernels_that_a_run_would_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("POWERINFER_KERNELS", "portable")
    assert "selected_kernels   portable" in invoke("inspect", "--machine").stdout
    flag = invoke("inspect", "--machine", "--kernels", "reference", "--json")
    assert json.loads(flag.stdout)["selected_kernels"] == "reference"
    monkeypatch.setenv("POWERINFER_KERNELS", "mmx")
    wrong = invoke("inspect", "--machine")
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert "'mmx'" in wrong.stderr


def test_inspect_takes_the_model_as_a_flag_too(model: Path) -> None:
    assert invoke("inspect", "-m", model).stdout == invoke("inspect", model).stdout
    both = invoke("inspect", model, "-m", model)
    assert both.exit_code == 2
    assert "both name a model" in both.stderr


def test_inspect_machine_without_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "powerinfer.ops.cpu.machine", None)
    monkeypatch.delattr("powerinfer.ops.cpu.machine", raising=False)
    shown = invoke("inspect", "--machine")
    assert shown.exit_code == 2
    assert "the native extension is not installed" in shown.stderr


def test_bench_says_in_fields_how_the_plain_read_read(model: Path) -> None:
    few = ("--prefill", "2", "--decode", "1", "--repeats", "1")
    report = json.loads(invoke("bench", "-m", model, *few, "--json").stdout)
    assert PlainReadSettings(**report["read_way"]) in PLAIN_READ_SETTINGS
