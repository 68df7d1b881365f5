"""GGUF files as checkpoints to make sparse: there and back again, or refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

import torch

from command_line import assert_error, invoke, run_json
from powerinfer.convert.convert import convert
from powerinfer.errors import UnsupportedError
from powerinfer.gguf import keys, open_gguf
from powerinfer.train.sparsify.from_gguf import write_checkpoint
from powerinfer.train.sparsify.model import load_model, random_model
from powerinfer.train.sparsify.saving import save
from powerinfer.train.sparsify.text import load_tokenizer
from sparsify_cases import LLAMA, MISTRAL
from tokenizer_checkpoints import (
    WORDS,
    byte_fallback_json,
    byte_level_json,
    byte_level_step,
    write_files,
)

CONFIG = LLAMA | {"vocab_size": 352, "dtype": "float32"}
TEMPLATE = "{{ messages[0].content }}"
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<|end|>",
    "eos_token": "<|end|>",
    "chat_template": TEMPLATE,
}


def _checkpoint(folder: Path, config: dict[str, Any] = CONFIG, **files: object) -> Path:
    """A checkpoint with random weights and a byte-level tokenizer."""
    pre = byte_level_step(use_regex=True)
    names = {"tokenizer.json": byte_level_json(pre), "tokenizer_config.json": TOKENIZER_CONFIG}
    folder.mkdir()
    write_files(folder, names | {f"{name}.json": value for name, value in files.items()})
    save(random_model(config, 1), None, folder)
    return folder


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint and its GGUF file."""
    folder = tmp_path_factory.mktemp("pair")
    source = _checkpoint(folder / "source", CONFIG | {"tie_word_embeddings": True})
    convert(source, folder / "source.gguf")
    return source, folder / "source.gguf"


def test_a_file_becomes_the_checkpoint_that_it_was_made_from(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    source, file = pair
    write_checkpoint(file, tmp_path / "again")
    wanted, found = (load_model(each).network.state_dict() for each in (source, tmp_path / "again"))
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())
    texts = ("the cat sat", "  12345\n\n\tx = y+1", "naïve 東京 🙂", "a <|end|> b")
    old, new = (load_tokenizer(each) for each in (source, tmp_path / "again"))
    assert [new.encode(text) for text in texts] == [old.encode(text) for text in texts]
    assert new.bos_id == old.bos_id


def test_converting_it_again_gives_the_same_file(pair: tuple[Path, Path], tmp_path: Path) -> None:
    _, file = pair
    write_checkpoint(file, tmp_path / "again")
    convert(tmp_path / "again", tmp_path / "again.gguf")
    old, new = open_gguf(file), open_gguf(tmp_path / "again.gguf")
    assert set(new.tensors) == set(old.tensors)
    for name, tensor in old.tensors.items():
        np.testing.assert_array_equal(new.tensors[name].decode(), tensor.decode())
    for key, value in old.metadata.items():
        if key.startswith(("tokenizer.", "llama.")):
            np.testing.assert_array_equal(new.metadata[key], value, err_msg=key)
    assert new.metadata[keys.CHAT_TEMPLATE] == TEMPLATE


def test_quantized_weights_are_those_that_the_engine_computes_with(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    quantized = tmp_path / "q8.gguf"
    assert run_json("quantize", pair[1], quantized, "q8_0")
    write_checkpoint(quantized, tmp_path / "again")
    name = "model.layers.1.mlp.up_proj.weight"
    found = load_model(tmp_path / "again").network.state_dict()[name].numpy()
    np.testing.assert_array_equal(
        found, open_gguf(quantized).tensor("blk.1.ffn_up.weight").decode()
    )


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (MISTRAL | {"vocab_size": 352}, "has windows, which sparsify does not read"),
        (
            CONFIG | {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
            "has scaled positions, which",
        ),
    ],
)
def test_other_models_are_refused(config: dict[str, Any], problem: str, tmp_path: Path) -> None:
    convert(_checkpoint(tmp_path / "source", config), tmp_path / "m.gguf")
    with pytest.raises(UnsupportedError, match=problem):
        write_checkpoint(tmp_path / "m.gguf", tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_other_vocabularies_are_refused(tmp_path: Path) -> None:
    source = _checkpoint(tmp_path / "source", CONFIG | {"vocab_size": 420})
    write_files(source, {"tokenizer.json": byte_fallback_json()})
    convert(source, tmp_path / "m.gguf")
    with pytest.raises(UnsupportedError, match="that is not byte-level BPE, which"):
        write_checkpoint(tmp_path / "m.gguf", tmp_path / "again")


@pytest.mark.slow
def test_the_command_takes_a_file_and_fits_layers_first(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    text = tmp_path / "text.txt"
    words = np.random.default_rng(3).choice(WORDS.split(), (600, 12))
    text.write_text("\n".join(map(" ".join, words)), encoding="utf-8")
    arguments = (
        *("sparsify", pair[1], "-f", text, "-o", tmp_path / "out", "--tokens", "2000"),
        *("--fit-tokens", "1000", "--seq-len", "32", "--batch-tokens", "256"),
        *("--learning-rate", "0.003", "--device", "cpu"),
    )
    report = run_json(*arguments)
    assert (report["fit_tokens"], report["tokens"]) == (1024, 2048)
    assert report["perplexity"] < report["fit_perplexity"]
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"training.jsonl", "tokenizer.json", "config.json"} <= names
    assert "training" not in names
    said = invoke(*arguments)
    assert "before that fitted on 1024 tokens: perplexity" in said.stdout
    assert_error(invoke(*arguments, "--learning-rate", "0.002"), "holds a checkpoint already")
    assert run_json("convert", tmp_path / "out", "-o", tmp_path / "s.gguf")
    ran = run_json("run", "-m", tmp_path / "s.gguf", "-p", "the cat", "-n", "4", "--temp", "0")
    assert ran["sparsity"] == "exact"


def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    file, text = tmp_path / "m.gguf", tmp_path / "text.txt"
    file.write_bytes(b"GGUF\x03")
    text.write_text("the cat")
    arguments = ("-f", text, "-o", tmp_path / "out", "--tokens", "100", "--device", "cpu")
    assert_error(invoke("sparsify", file, *arguments), "m.gguf")
    assert json.loads((tmp_path / "out" / "training" / "run.json").read_text())["tokens"] == 100
