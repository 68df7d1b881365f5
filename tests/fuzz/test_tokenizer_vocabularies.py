"""Any vocabulary in a well-formed file loads and works, or is a clear error: nothing else."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import tokenizer_target

SEEDS = tokenizer_target.seeds()
TOKENS = st.one_of(
    st.text("ab▁Ġ <>/sé\n🦙Ċ", max_size=5),
    st.integers(0, 255).map(lambda byte: f"<0x{byte:02X}>"),
    st.sampled_from(["<s>", "</s>", "<|im_end|>", "<|endoftext|>", "[EMPTY_0]"]),
)
ODD = st.sampled_from([0, -1, 2**63, 0.5, float("nan"), True, "", "llama", [], ["a"]])
METADATA = st.fixed_dictionaries(
    {
        "tokenizer.ggml.model": st.sampled_from(["llama", "gpt2"]),
        "tokenizer.ggml.tokens": st.lists(TOKENS, max_size=20),
    },
    optional={
        "tokenizer.ggml.merges": st.lists(st.tuples(TOKENS, TOKENS).map(" ".join), max_size=20),
        "tokenizer.ggml.pre": st.sampled_from(["default", "llama-bpe", "qwen2", "falcon", "no"]),
        "tokenizer.ggml.bos_token_id": st.integers(0, 21),
        "tokenizer.ggml.eos_token_id": st.integers(0, 21),
        "tokenizer.ggml.unknown_token_id": st.integers(0, 21),
        "tokenizer.ggml.add_bos_token": st.booleans(),
        "tokenizer.ggml.add_space_prefix": st.booleans(),
    },
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file to overwrite in every example."""
    return tmp_path_factory.mktemp("fuzz") / "vocabulary.gguf"


@pytest.mark.parametrize("data", SEEDS, ids=["llama", "gpt2"])
def test_seeds_are_valid(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    assert tokenizer_target.use_file(path) is not None


@given(metadata=METADATA)
@example(
    metadata={
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": ["<0x00>"],
        "tokenizer.ggml.merges": ["<0x00> <0x00>"],
    }
)
def test_any_vocabulary(path: Path, metadata: dict[str, Any]) -> None:
    tokenizer_target.use_metadata(path, metadata)


@given(
    metadata=METADATA,
    types=st.lists(st.integers(0, 7), min_size=1, max_size=9),
    scores=st.lists(st.floats(width=32), min_size=1, max_size=9),
)
def test_types_and_scores(
    path: Path, metadata: dict[str, Any], types: list[int], scores: list[float]
) -> None:
    count = len(metadata["tokenizer.ggml.tokens"])
    metadata["tokenizer.ggml.token_type"] = tokenizer_target.arrays_for(count, types)
    metadata["tokenizer.ggml.scores"] = np.resize(np.array(scores, np.float32), count)
    tokenizer_target.use_metadata(path, metadata)


@given(metadata=METADATA, key=st.sampled_from(["tokens", "merges", "scores", "pre"]), odd=ODD)
def test_wrong_types(path: Path, metadata: dict[str, Any], key: str, odd: Any) -> None:
    metadata[f"tokenizer.ggml.{key}"] = odd
    tokenizer_target.use_metadata(path, metadata)


@given(
    seed=st.sampled_from(SEEDS),
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=6),
)
def test_flipped_bits(path: Path, seed: bytes, flips: list[tuple[float, int]]) -> None:
    data = bytearray(seed)
    for place, mask in flips:
        data[int(place * len(data))] ^= mask
    path.write_bytes(bytes(data))
    tokenizer_target.use_file(path)
