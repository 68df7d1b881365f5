"""Tokenizers as transformers saves them, against transformers' own encoding."""

import json
from pathlib import Path
from typing import Any

import pytest

from powerinfer.convert.tokenizers import check_tokenizer, read_tokenizer
from powerinfer.tokenizer import Tokenizer
from tokenizer_checkpoints import (
    BYTE_LEVEL,
    GPT2,
    Json,
    added,
    bos_template,
    byte_fallback_json,
    byte_level_json,
    write_files,
)

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

TEXTS = [
    "the cat sat on the mat",
    "Tom's café has 12345 things,  you know?\n\n  naïve 你好 世界",
    "<|end|> and <tool>x",
    "",
]


def _saved(folder: Path, content: Json, **config: object) -> Any:
    """Write a checkpoint, let transformers load and save it, and return its tokenizer."""
    own = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
    source = write_files(
        folder / "source", {"tokenizer.json": content, "tokenizer_config.json": own}
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(source))
    tokenizer.save_pretrained(str(folder / "saved"))
    return tokenizer


def _compare(folder: Path, tokenizer: Any) -> Tokenizer:
    metadata = read_tokenizer(folder, 400)
    check_tokenizer(folder, metadata)
    ours = Tokenizer.from_metadata(metadata)
    for text in TEXTS:
        wanted = tokenizer(text)["input_ids"]
        assert ours.encode(text, parse_special=True, add_eos=ours.add_eos) == wanted, text
    return ours


@pytest.mark.parametrize("family", BYTE_LEVEL)
@pytest.mark.parametrize("folder", ["source", "saved"])
def test_byte_level(family: str, folder: str, tmp_path: Path) -> None:
    _, pre, ignore_merges = BYTE_LEVEL[family]
    content = byte_level_json(pre, ignore_merges=ignore_merges)
    content["added_tokens"].append(added(340, "<tool>", special=False))
    end = content["model"]["vocab"]["<|end|>"]
    content["post_processor"] = bos_template("<|end|>", end)
    tokenizer = _saved(tmp_path, content, eos_token="<|end|>", bos_token="<|end|>")
    ours = _compare(tmp_path / folder, tokenizer)
    assert (ours.bos_id, ours.eos_id, ours.add_bos) == (end, end, True)


@pytest.mark.parametrize("prefix", ["Prepend", "always", "first", "never", ""])
@pytest.mark.parametrize("folder", ["source", "saved"])
def test_byte_fallback(prefix: str, folder: str, tmp_path: Path) -> None:
    content = byte_fallback_json(prefix=prefix) | {"post_processor": bos_template("<s>", 1)}
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    tokenizer = _saved(tmp_path, content, **names)
    ours = _compare(tmp_path / folder, tokenizer)
    assert (ours.bos_id, ours.eos_id) == (1, 2)


def test_templates_and_added_tokens_that_transformers_saves(tmp_path: Path) -> None:
    """Version 5 writes the template and the texts of special tokens into files of their own."""
    tokenizer = _saved(tmp_path, byte_level_json(GPT2), eos_token="<|end|>")
    tokenizer.add_special_tokens({"pad_token": "<|pad|>", "bos_token": "<|begin|>"})
    tokenizer.add_tokens(["<tool>"])
    tokenizer.chat_template = "{{ messages }}"
    folder = tmp_path / "again"
    tokenizer.save_pretrained(str(folder))
    metadata = read_tokenizer(folder, 400)
    check_tokenizer(folder, metadata)
    assert metadata["tokenizer.chat_template"] == "{{ messages }}"
    ids = tokenizer.convert_tokens_to_ids(["<|pad|>", "<|begin|>", "<tool>"])
    tokens = metadata["tokenizer.ggml.tokens"]
    assert [tokens[i] for i in ids] == ["<|pad|>", "<|begin|>", "<tool>"]  # type: ignore[index]
    types = metadata["tokenizer.ggml.token_type"]
    assert [types[i] for i in ids] == [3, 3, 4]  # type: ignore[index]
    assert metadata["tokenizer.ggml.bos_token_id"] == ids[1]
    assert metadata["tokenizer.ggml.padding_token_id"] == ids[0]


def test_the_form_of_transformers_4(tmp_path: Path) -> None:
    """Added tokens, special or not, with all their flags in the configuration."""
    flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    content = byte_level_json(GPT2)
    content["added_tokens"] += [added(340, "<tool>", special=False), added(341, "<|im_end|>")]
    end = content["model"]["vocab"]["<|end|>"]
    texts = {end: ("<|end|>", True), 340: ("<tool>", False), 341: ("<|im_end|>", True)}
    entries = {
        str(token_id): {"content": text, "special": special, **flags}
        for token_id, (text, special) in texts.items()
    }
    config = {
        "add_bos_token": False,
        "added_tokens_decoder": entries,
        "additional_special_tokens": ["<|im_end|>"],
        "bos_token": None,
        "chat_template": "{{ messages }}",
        "clean_up_tokenization_spaces": False,
        "eos_token": {"__type": "AddedToken", "content": "<|end|>", "special": True, **flags},
        "model_max_length": 131072,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }
    tokenizer = _saved(tmp_path, content, **config)
    ours = _compare(tmp_path / "source", tokenizer)
    assert ours.eos_id == end
    assert ours.chat_template == "{{ messages }}"
    assert json.loads((tmp_path / "saved" / "tokenizer_config.json").read_text()) != config
    again = _compare(tmp_path / "saved", tokenizer)
    assert (again.eos_id, again.chat_template) == (ours.eos_id, ours.chat_template)
