"""Logits against llama.cpp in every tensor type, and its perplexity of a trained model.

llama.cpp's figures are stored (`scripts/make-goldens-llama-cpp` made them); the models are written
again here, and their hash tells whether they are the ones that were run.
"""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from backends import BACKENDS, NATIVE, using
from llama_cpp_cases import CASES, FOLDER, POSITIONS, TOKEN_IDS, perplexity_text, write_case
from powerinfer.gguf import open_gguf
from powerinfer.models import Model, load_model
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.quant import get_format
from powerinfer.tokenizer import Tokenizer
from tolerances import assert_close

FLOATS = ("f32", "f16", "bf16")


@pytest.fixture(scope="module")
def goldens() -> dict[str, npt.NDArray[np.float32]]:
    with np.load(FOLDER / "logits.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def hashes() -> dict[str, str]:
    recipe = json.loads((FOLDER / "logits.json").read_text())
    sha256: dict[str, str] = recipe["sha256_of_model"]
    return sha256


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: write_case(folder, name) for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_the_model_is_the_one_llama_cpp_ran(
    name: str, files: dict[str, Path], hashes: dict[str, str]
) -> None:
    assert hashlib.sha256(files[name].read_bytes()).hexdigest() == hashes[name]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_logits_equal_llama_cpp(
    name: str,
    backend: str,
    files: dict[str, Path],
    goldens: dict[str, npt.NDArray[np.float32]],
) -> None:
    with using(backend) as ops:
        model = load_model(open_gguf(files[name]), ops)
        cache = model.new_cache(64)
        batch = cache.batch([(0, TOKEN_IDS, 0)], [True])
        got = model.forward(batch, cache, logits_for=np.array(POSITIONS, np.int32))
    assert_close(got, goldens[name], _tolerance(name))


@pytest.mark.each_value
@pytest.mark.parametrize("backend", NATIVE)
@pytest.mark.parametrize("name", CASES)
def test_decoded_logits_equal_llama_cpp(
    name: str,
    backend: str,
    files: dict[str, Path],
    goldens: dict[str, npt.NDArray[np.float32]],
) -> None:
    """One token per step: the matrix-vector kernels."""
    with using(backend) as ops:
        model = load_model(open_gguf(files[name]), ops)
        cache = model.new_cache(64)
        rows = [
            model.forward(cache.batch([(0, [token_id], position)], [False]), cache)[0]
            for position, token_id in enumerate(TOKEN_IDS)
        ]
    assert_close(np.stack(rows)[list(POSITIONS)], goldens[name], _tolerance(name))


def _tolerance(name: str) -> str:
    format_name = CASES[name].format
    if format_name in FLOATS:
        return f"llama.cpp {format_name}"
    return f"llama.cpp blocks of {get_format(format_name).block_size}"


@pytest.mark.parametrize("window", [128, 256, 512])
def test_perplexity_equals_llama_cpp(window: int, stories260k: Path, data_dir: Path) -> None:
    """Within 0.1 %; on the fastest kernels, since the reference would take minutes."""
    pytest.importorskip("zstandard", reason="zstandard is not installed")
    recipe = json.loads((FOLDER / "perplexity.json").read_text())
    expected = next(row for row in recipe["results"] if row["context_length"] == window)
    text = perplexity_text(data_dir)
    assert hashlib.sha256(text).hexdigest() == recipe["text_sha256"]
    file = open_gguf(stories260k)
    tokenizer = Tokenizer.from_gguf(file)
    token_ids = tokenizer.encode(text, add_bos=True)
    assert len(token_ids) == expected["tokens"]
    got = _perplexity(load_model(file, NativeOps(2)), token_ids, window, expected)
    assert got == pytest.approx(expected["perplexity"], rel=1e-3)


def _perplexity(model: Model, token_ids: list[int], window: int, expected: Any) -> float:
    """exp of the mean loss over the second halves of windows that start with BOS."""
    losses: list[float] = []
    for start in range(0, len(token_ids) - window + 1, window):
        part = [token_ids[0], *token_ids[start + 1 : start + window]]
        scored = np.arange(window // 2, window - 1, dtype=np.int32)
        cache = model.new_cache(window)
        logits = model.forward(cache.batch([(0, part, 0)], [True]), cache, logits_for=scored)
        wide = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
        targets = np.array(part)[scored + 1]
        losses += list(np.log(np.exp(wide).sum(axis=1)) - wide[np.arange(len(wide)), targets])
    assert len(losses) == expected["scored_tokens"]
    return math.exp(float(np.mean(losses)))
