"""The original PowerInfer runs packed files as the engine does: its texts and perplexities, stored.

`scripts/make-goldens-powerinfer` made them with the program itself, on one thread.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from powerinfer import LLM, SamplingParams
from powerinfer.convert.rewriting import write_model
from powerinfer.engine.perplexity import perplexity_windows
from powerinfer.gguf import keys, open_gguf
from powerinfer.gguf.rewrite import copied
from powerinfer_program import (
    GOLDEN,
    NUM_TOKENS,
    PROMPTS,
    SETTINGS,
    TEXT,
    WINDOW,
    digest,
    write_sparse_model,
)

pytest.importorskip("torch", reason="torch is not installed")

STORED: dict[str, dict[str, Any]] = json.loads(GOLDEN.read_text(encoding="utf-8"))["settings"]


@pytest.fixture(scope="module", params=SETTINGS)
def packed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model packed in a setting, which names the file."""
    return write_sparse_model(tmp_path_factory.mktemp("packed"), request.param)


def test_greedy_text(packed: Path) -> None:
    texts = STORED[packed.stem]["texts"]
    assert bool(texts) == SETTINGS[packed.stem].has_texts
    with LLM(packed, threads=1) as llm:
        assert llm.loaded.model.sparsity == "mlp"
        params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS)
        for prompt, text in zip(PROMPTS, texts, strict=False):
            (generation,) = llm.generate([prompt], params)
            assert prompt + generation.text == text


def test_the_original_converts_to_the_same_numbers(packed: Path) -> None:
    """Its converter, from a checkpoint of the same model and the same folder of predictors."""
    stored = STORED[packed.stem].get("converted_sha256")
    assert (stored is not None) == SETTINGS[packed.stem].has_texts
    if stored is not None:
        assert digest(open_gguf(packed)) == stored


def test_perplexity(packed: Path, tmp_path: Path) -> None:
    file = open_gguf(packed)
    # The original puts no BOS before texts with such a vocabulary, and never reads this key.
    tensors = [copied(tensor) for tensor in file.tensors.values()]
    write_model(file, tmp_path / "m.gguf", {keys.ADD_BOS_TOKEN: False}, tensors)
    with LLM(tmp_path / "m.gguf", threads=1, context_length=WINDOW) as llm:
        token_ids = llm.encode(TEXT.read_text(encoding="utf-8"))
        *_, last = perplexity_windows(llm, token_ids, WINDOW)
    assert last.value == pytest.approx(STORED[packed.stem]["perplexity"], rel=3e-3)
