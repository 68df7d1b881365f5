"""Real vocabularies: what is made of a checkpoint's files equals llama.cpp's GGUF files.

Listed differences, none of which changes an encoding:

- whether BOS, EOS and a space are added is always written;
- padding has the type of unused tokens, which old files wrote as user-defined or unknown;
- padding and added tokens may have other scores.

Each case reads a large vocabulary and compares thousands of texts, which takes seconds: CI runs one
of each form. What a pre-tokenizer does, tests/unit/convert/test_tokenizers.py shows with small
vocabularies for every one.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from powerinfer.convert.tokenizers import check_tokenizer, read_tokenizer
from powerinfer.convert.tokenizers.sentencepiece_model import load_sentencepiece
from powerinfer.gguf import open_gguf
from powerinfer.tokenizer import Tokenizer
from tokenizer_checkpoints import (
    DEEPSEEK_CODER,
    FALCON,
    GPT2,
    LLAMA3,
    QWEN2,
    added,
    bos_template,
    json_of_vocabulary,
    merges_of_scores,
    sequence,
    split,
    write_files,
)
from tokenizer_metadata import gguf_metadata, llama3_metadata, qwen2_metadata

pytestmark = pytest.mark.slow

MAY_DIFFER = {"add_bos_token", "add_eos_token", "add_space_prefix", "scores", "token_type"}


def _same(found: Mapping[str, object], golden: Mapping[str, Any]) -> None:
    """Check all keys of the tokenizer but those that may differ."""
    keys = {key for key in (*found, *golden) if key.startswith("tokenizer.")}
    for key in sorted(keys):
        if key.removeprefix("tokenizer.ggml.") not in MAY_DIFFER:
            assert found.get(key) == golden.get(key), key
    types, wanted = found["tokenizer.ggml.token_type"], golden["tokenizer.ggml.token_type"]
    for token_id, text in enumerate(golden["tokenizer.ggml.tokens"]):
        kind = 5 if text == f"[PAD{token_id}]" else wanted[token_id]
        assert types[token_id] == kind, text  # type: ignore[index]


def _copy(folder: Path, data: Path, names: Mapping[str, str], **files: object) -> Path:
    for name in names.values():
        if not (data / "vocab" / name).exists():
            pytest.skip(f"the development data lacks {data / 'vocab' / name}")
    copies = {to: (data / "vocab" / name).read_bytes() for to, name in names.items()}
    return write_files(folder, {**copies, **{f"{k}.json": v for k, v in files.items()}})


def _golden(data: Path, name: str) -> dict[str, Any]:
    path = data / "vocab" / name
    if not path.exists():
        pytest.skip(f"the development data lacks {path}")
    return gguf_metadata(path)


def test_llama2_from_sentencepiece(data_dir: Path, tmp_path: Path) -> None:
    golden = _golden(data_dir, "ggml/ggml-vocab-llama-spm.gguf")
    folder = _copy(tmp_path, data_dir, {"tokenizer.model": "llama2/tokenizer.model"})
    found = read_tokenizer(folder, 32000)
    _same(found, golden)
    for key in ("scores", "token_type", "add_bos_token", "add_eos_token"):
        assert np.array_equal(found[f"tokenizer.ggml.{key}"], golden[f"tokenizer.ggml.{key}"])  # type: ignore[arg-type]
    assert found["tokenizer.ggml.add_space_prefix"] is True
    check_tokenizer(folder, found)


# Of the form of Llama 2's above.
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "rows"),
    [("tokenizer.model.v1", 32000), ("mistral_instruct_tokenizer_240323.model.v3", 32768)],
)
def test_mistral_from_sentencepiece(name: str, rows: int, data_dir: Path, tmp_path: Path) -> None:
    folder = _copy(tmp_path, data_dir, {"tokenizer.model": f"mistral/{name}"})
    check_tokenizer(folder, read_tokenizer(folder, rows))


def test_phi3_with_added_tokens(data_dir: Path, tmp_path: Path) -> None:
    golden = _golden(data_dir, "ggml/ggml-vocab-phi-3.gguf")
    texts, types = golden["tokenizer.ggml.tokens"], golden["tokenizer.ggml.token_type"]
    entries = {
        str(i): {"content": texts[i], "special": bool(types[i] == 3), "rstrip": i > 2}
        for i in (0, 1, 2, *range(32000, 32011))
    }
    config = {
        "added_tokens_decoder": entries,
        "chat_template": golden["tokenizer.chat_template"],
        "bos_token": "<s>",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "unk_token": "<unk>",
        "add_bos_token": True,
        "add_eos_token": False,
    }
    folder = _copy(
        tmp_path, data_dir, {"tokenizer.model": "llama2/tokenizer.model"}, tokenizer_config=config
    )
    found = read_tokenizer(folder, 32064)
    # The unknown token keeps its own type; llama.cpp makes it a control token here.
    golden["tokenizer.ggml.token_type"] = np.array([2, *types[1:]], np.int32)
    _same(found, golden)
    check_tokenizer(folder, found)


# Of the form of OPT's below.
@pytest.mark.thorough
def test_gpt2_from_vocab_and_merges(data_dir: Path, tmp_path: Path) -> None:
    golden = _golden(data_dir, "ggml/ggml-vocab-gpt-2.gguf")
    names = {"vocab.json": "gpt2/encoder.json", "merges.txt": "gpt2/vocab.bpe"}
    config = {"model_type": "gpt2", "bos_token_id": 50256, "eos_token_id": 50256}
    named = {"bos_token": "<|endoftext|>", "eos_token": {"content": "<|endoftext|>"}}
    folder = _copy(tmp_path, data_dir, names, config=config, tokenizer_config=named)
    found = read_tokenizer(folder, 50257)
    _same(found, golden)
    check_tokenizer(folder, found)


def test_opt_from_vocab_and_merges(data_dir: Path, tmp_path: Path) -> None:
    end = {"content": "</s>", "__type": "AddedToken"}
    config = {
        **{f"{name}_token": end for name in ("bos", "eos", "unk")},
        "pad_token": {"content": "<pad>"},
        "add_bos_token": True,
        "tokenizer_class": "GPT2Tokenizer",
    }
    names = {"vocab.json": "opt/vocab.json", "merges.txt": "opt/merges.txt"}
    folder = _copy(tmp_path, data_dir, names, tokenizer_config=config)
    found = read_tokenizer(folder, 50272)
    assert found["tokenizer.ggml.bos_token_id"] == found["tokenizer.ggml.eos_token_id"] == 2
    assert found["tokenizer.ggml.padding_token_id"] == 1
    check_tokenizer(folder, found)
    tokenizer = Tokenizer.from_metadata(found)
    # As transformers encodes it for OPT.
    assert tokenizer.encode("Hello world") == [2, 31414, 232]


@pytest.mark.thorough
def test_qwen2_from_vocab_and_merges(data_dir: Path, tmp_path: Path) -> None:
    golden = qwen2_metadata(data_dir)
    texts = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    entries = {str(151643 + i): {"content": t, "special": True} for i, t in enumerate(texts)}
    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "added_tokens_decoder": entries,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "add_bos_token": False,
    }
    ends = {"bos_token_id": 151643, "eos_token_id": [151645, 151643]}
    names = {"vocab.json": "qwen2/vocab.json", "merges.txt": "qwen2/merges.txt"}
    folder = _copy(tmp_path, data_dir, names, tokenizer_config=config, generation_config=ends)
    found = read_tokenizer(folder, 151646)
    _same(found, golden)
    check_tokenizer(folder, found)


BYTE_LEVEL: dict[str, tuple[Callable[[Path], dict[str, Any]], dict[str, Any], bool]] = {
    "llama-bpe": (lambda data: dict(llama3_metadata(data)), sequence(split(LLAMA3)), True),
    "qwen2": (lambda data: dict(qwen2_metadata(data)), sequence(split(QWEN2)), False),
    "deepseek-coder": (
        lambda data: _golden(data, "ggml/ggml-vocab-deepseek-coder.gguf"),
        DEEPSEEK_CODER,
        False,
    ),
    "gpt-2": (lambda data: _golden(data, "ggml/ggml-vocab-gpt-neox.gguf"), GPT2, False),
    "falcon": (lambda data: _golden(data, "powerinfer/ggml-vocab-falcon.gguf"), FALCON, False),
}


@pytest.mark.parametrize(
    "pre",
    [pytest.param(pre, marks=() if pre == "gpt-2" else pytest.mark.thorough) for pre in BYTE_LEVEL],
)
def test_byte_level_from_tokenizer_json(pre: str, data_dir: Path, tmp_path: Path) -> None:
    make, cutting, ignore_merges = BYTE_LEVEL[pre]
    golden = make(data_dir)
    content = json_of_vocabulary(golden, cutting, ignore_merges=ignore_merges)
    if pre != "qwen2":
        content["model"]["merges"] = [m.split(" ") for m in content["model"]["merges"]]
    if pre == "falcon":
        # Old files do not say which of Falcon's tokens are special; its own does.
        texts = golden["tokenizer.ggml.tokens"]
        content["added_tokens"] = [added(i, texts[i]) for i in range(12)]
        golden["tokenizer.ggml.token_type"] = [3] * 12 + [1] * (len(texts) - 12)
    config = {
        f"{name}_token_id": int(golden[f"tokenizer.ggml.{key}_token_id"])
        for name, key in {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}.items()
        if f"tokenizer.ggml.{key}_token_id" in golden
    }
    write_files(tmp_path, {"tokenizer.json": content, "config.json": config})
    found = read_tokenizer(tmp_path, len(golden["tokenizer.ggml.tokens"]))
    _same(found, golden | {"tokenizer.ggml.pre": pre})
    check_tokenizer(tmp_path, found)


@pytest.mark.parametrize("beside", [pytest.param(True, marks=pytest.mark.thorough), False])
def test_llama2_from_tokenizer_json(beside: bool, data_dir: Path, tmp_path: Path) -> None:
    """Merges by rank become scores that encode as SentencePiece's."""
    model = data_dir / "vocab/llama2/tokenizer.model"
    if not model.exists():
        pytest.skip(f"the development data lacks {model}")
    pieces = load_sentencepiece(model).pieces
    vocab = {piece.text: token_id for token_id, piece in enumerate(pieces)}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    steps = [{"type": "Prepend", "prepend": "▁"}, replace]
    content = {
        "added_tokens": [added(i, t) for i, t in enumerate(["<unk>", "<s>", "</s>"])],
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "post_processor": bos_template("<s>", 1),
        "decoder": None,
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": vocab,
            "merges": merges_of_scores([(p.text, p.score) for p in pieces[259:]]),
        },
    }
    config = {f"{name}_token_id": i for i, name in enumerate(("unk", "bos", "eos"))}
    write_files(tmp_path, {"tokenizer.json": content, "config.json": config})
    if beside:
        write_files(tmp_path, {"tokenizer.model": model.read_bytes()})
    found = read_tokenizer(tmp_path, 32000)
    golden = _golden(data_dir, "ggml/ggml-vocab-llama-spm.gguf")
    _same(found, golden)
    if beside:
        scores = found["tokenizer.ggml.scores"]
        assert np.array_equal(scores, golden["tokenizer.ggml.scores"])  # type: ignore[arg-type]
    check_tokenizer(tmp_path, found)
    text = (data_dir / "vocab/ggml/ggml-vocab-llama-spm.gguf.inp").read_text()
    ids = [Tokenizer.from_metadata(m).encode(text) for m in (found, golden)]
    assert ids[0] == ids[1]


def test_gemma4_from_tokenizer_json(data_dir: Path, tmp_path: Path) -> None:
    """Of the form that transformers gives it; a file of llama.cpp has the same keys."""
    golden = _golden(data_dir, "ggml/ggml-vocab-gemma-4.gguf")
    spaces: dict[str, Any] = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    split_at = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious"}
    content = json_of_vocabulary(golden, {**split_at, "invert": False}, byte_fallback=True)
    content |= {"normalizer": spaces, "post_processor": bos_template("<bos>", 2)}
    for entry in content["added_tokens"]:
        entry["special"] = True
    content["model"] |= {
        "vocab": {text: i for i, text in enumerate(golden["tokenizer.ggml.tokens"])},
        "unk_token": "<unk>",
        "fuse_unk": True,
    }
    ids = {"bos_token_id": 2, "eos_token_id": [1, 106, 50], "pad_token_id": 0}
    files = {"tokenizer.json": content, "generation_config.json": ids}
    write_files(tmp_path, {**files, "config.json": {"model_type": "gemma4"}})
    found = read_tokenizer(tmp_path, 262144)
    # Nothing here reads scores of a vocabulary with merges, or uses a mask or a template.
    left_out = ("tokenizer.ggml.mask_token_id", "tokenizer.chat_template")
    _same(found, {key: value for key, value in golden.items() if key not in left_out})
    check_tokenizer(tmp_path, found)


def test_padding_of_a_real_vocabulary_is_read_back(data_dir: Path, tmp_path: Path) -> None:
    """A file with the metadata loads, and its padding encodes no text."""
    from powerinfer.gguf import write_gguf

    golden = _golden(data_dir, "ggml/ggml-vocab-gpt-neox.gguf")
    write_files(tmp_path, {"tokenizer.json": json_of_vocabulary(golden, GPT2)})
    found = read_tokenizer(tmp_path, 50432)
    write_gguf(tmp_path / "vocab.gguf", found, [])
    tokenizer = Tokenizer.from_gguf(open_gguf(tmp_path / "vocab.gguf"))
    assert tokenizer.vocab_size == 50432
    text = "[PAD50300] a"
    assert max(tokenizer.encode(text)) < 50277
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert json.loads((tmp_path / "tokenizer.json").read_text())["model"]["type"] == "BPE"
