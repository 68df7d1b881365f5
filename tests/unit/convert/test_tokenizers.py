"""Vocabularies of checkpoints as metadata: every kind, made here, against the checkpoint's own."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from checked_tokenizers import ROWS, read_checked, read_json
from powerinfer.convert.tokenizers import read_tokenizer
from powerinfer.errors import UnsupportedError
from powerinfer.tokenizer.vocabulary import TokenType
from tokenizer_checkpoints import (
    BYTE_LEVEL,
    DIGITS_GPT2,
    GPT2,
    LLAMA3,
    QWEN2,
    QWEN35,
    Json,
    added,
    byte_fallback_json,
    byte_level_json,
    byte_level_step,
    sentencepiece_file,
    sequence,
    split,
    write_files,
)

# Byte-level BPE

SLOW = ("deepseek coder", "llama 3", "llama 3, as removed", "qwen 2")


@pytest.mark.parametrize(
    "family",
    [
        # Their expressions match, or nearly match, those of many others: more is compared.
        pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name
        for name in BYTE_LEVEL
    ],
)
def test_the_pre_tokenizer_is_found_by_what_it_does(family: str, tmp_path: Path) -> None:
    name, pre, ignore_merges = BYTE_LEVEL[family]
    content = byte_level_json(pre, ignore_merges=ignore_merges)
    found = read_json(tmp_path, content)
    assert found["model"] == "gpt2"
    assert found["pre"] == name
    assert found["merges"] == [" ".join(pair) for pair in content["model"]["merges"]]
    vocab = content["model"]["vocab"]
    assert found["tokens"][: len(vocab)] == sorted(vocab, key=vocab.__getitem__)
    assert found["tokens"][len(vocab) :] == [f"[PAD{i}]" for i in range(len(vocab), ROWS)]
    assert set(found["token_type"][len(vocab) :]) == {TokenType.UNUSED}
    assert found["token_type"][vocab["<|end|>"]] == TokenType.CONTROL


@pytest.mark.parametrize(
    "pre",
    [
        sequence(split(LLAMA3.replace("{1,3}", "{1,4}"))),
        sequence(split(QWEN2.replace("'ll|", ""))),
        sequence(split(QWEN2.replace(r"[^\s\p{L}", r"[^\s\p{L}\p{Lm}_"))),
        sequence({"type": "Whitespace"}),
        sequence({"type": "UnicodeScripts"}),
        sequence(),
        {
            "type": "Sequence",
            "pretokenizers": [GPT2, {"type": "Digits", "individual_digits": True}],
        },
    ],
)
def test_other_pre_tokenizers_are_refused(pre: Json, tmp_path: Path) -> None:
    content = byte_level_json(GPT2) | {"pre_tokenizer": pre}
    write_files(tmp_path, {"tokenizer.json": content})
    with pytest.raises(UnsupportedError, match="the pre-tokenizer is unknown") as caught:
        read_tokenizer(tmp_path, ROWS)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path / 'tokenizer.json'}: ")


def test_a_space_in_front_of_texts_is_refused(tmp_path: Path) -> None:
    pre = byte_level_step(use_regex=True) | {"add_prefix_space": True}
    write_files(tmp_path, {"tokenizer.json": byte_level_json(GPT2) | {"pre_tokenizer": pre}})
    with pytest.raises(UnsupportedError, match="add_prefix_space"):
        read_tokenizer(tmp_path, ROWS)


def test_ignoring_merges_is_needed_only_if_a_token_is_not_made_by_them(tmp_path: Path) -> None:
    """No pre-tokenizer named in GGUF files cuts like GPT-2's and ignores merges."""
    content = byte_level_json(DIGITS_GPT2, ignore_merges=True)
    assert read_json(tmp_path / "idle", content)["pre"] == "starcoder"
    content["model"]["vocab"]["Ġaardvark"] = len(content["model"]["vocab"])
    write_files(tmp_path / "used", {"tokenizer.json": content})
    with pytest.raises(UnsupportedError, match="ignore_merges is true beside"):
        read_tokenizer(tmp_path / "used", ROWS)


def test_merges_may_be_texts_or_pairs(tmp_path: Path) -> None:
    content = byte_level_json(GPT2)
    assert isinstance(content["model"]["merges"][0], list)
    pairs = read_json(tmp_path / "pairs", content)
    content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]
    texts = read_json(tmp_path / "texts", content)
    assert texts["merges"] == pairs["merges"]


def test_of_a_merge_that_is_named_twice_the_last_counts(tmp_path: Path) -> None:
    content = byte_level_json(GPT2)
    merges = content["model"]["merges"]
    content["model"]["merges"] = [*merges, merges[0]]
    found = read_json(tmp_path, content)
    assert found["merges"] == [" ".join(pair) for pair in [*merges[1:], merges[0]]]


def test_vocab_and_merges_alone(tmp_path: Path) -> None:
    content = byte_level_json(GPT2)
    lines = ["#version: 0.2", *(" ".join(pair) for pair in content["model"]["merges"]), ""]
    files = {
        "vocab.json": content["model"]["vocab"],
        "merges.txt": "\n".join(lines),
        "tokenizer_config.json": {
            "tokenizer_class": "GPT2Tokenizer",
            "add_bos_token": True,
            "bos_token": {"content": "<|end|>", "special": True},
            "eos_token": "<|end|>",
        },
    }
    found = read_checked(write_files(tmp_path, files))
    end = content["model"]["vocab"]["<|end|>"]
    assert (found["bos_token_id"], found["eos_token_id"], found["add_bos_token"]) == (
        end,
        end,
        True,
    )
    assert found["pre"] == "gpt-2"
    files["tokenizer_config.json"] = {"tokenizer_class": "XTokenizer"}
    write_files(tmp_path, files)
    with pytest.raises(UnsupportedError, match=r"the pre-tokenizer is unknown .*'XTokenizer'"):
        read_tokenizer(tmp_path, ROWS)


@pytest.mark.parametrize(
    ("model_type", "named", "expression", "pre"),
    [
        ("qwen2", {}, QWEN2, "qwen2"),
        ("qwen3_5_text", {}, QWEN35, "qwen35"),
        ("qwen3_5", {"tokenizer_class": "Qwen2Tokenizer"}, QWEN35, "qwen35"),
    ],
)
def test_qwens_form_of_vocab_and_merges_is_known_by_the_model_too(
    model_type: str, named: dict[str, str], expression: str, pre: str, tmp_path: Path
) -> None:
    content = byte_level_json(sequence(split(expression)))
    files = {
        "vocab.json": content["model"]["vocab"],
        "merges.txt": "\n".join(" ".join(pair) for pair in content["model"]["merges"]),
        "config.json": {"model_type": model_type},
        "tokenizer_config.json": named,
        "added_tokens.json": {"<|im_end|>": 340},
    }
    found = read_checked(write_files(tmp_path, files))
    assert found["pre"] == pre
    assert found["tokens"][340] == "<|im_end|>"
    assert found["token_type"][340] == TokenType.USER_DEFINED


def test_composed_texts_are_compared_where_the_tokenizer_composes(tmp_path: Path) -> None:
    assert (
        read_json(tmp_path, byte_level_json(GPT2) | {"normalizer": {"type": "NFC"}})["pre"]
        == "gpt-2"
    )
    for normalizer in ({"type": "NFKC"}, {"type": "Lowercase"}):
        both = {"type": "Sequence", "normalizers": [{"type": "NFC"}, normalizer]}
        write_files(tmp_path, {"tokenizer.json": byte_level_json(GPT2) | {"normalizer": both}})
        with pytest.raises(UnsupportedError, match=f"normalizer '{normalizer['type']}'"):
            read_tokenizer(tmp_path, ROWS)


# BPE with byte fallback


@pytest.mark.parametrize("prefix", ["Prepend", "always", "first", "never", ""])
def test_byte_fallback_becomes_a_sentencepiece_vocabulary(prefix: str, tmp_path: Path) -> None:
    found = read_json(tmp_path, byte_fallback_json(prefix=prefix))
    assert (found["model"], found["pre"]) == ("llama", "default")
    assert found["add_space_prefix"] is (prefix in ("Prepend", "always", "first"))
    assert "merges" not in found
    types = found["token_type"]
    assert list(types[:4]) == [
        *(TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, TokenType.BYTE)
    ]
    assert found["unknown_token_id"] == 0
    scores = found["scores"]
    made = [found["tokens"].index("".join(m)) for m in byte_fallback_json()["model"]["merges"]]
    assert all(scores[a] >= scores[b] for a, b in pairwise(made))


@pytest.mark.parametrize("model_type", ["gemma4", "gemma4_text"])
def test_merges_of_gemma_4_are_kept(model_type: str, tmp_path: Path) -> None:
    content = byte_fallback_json(prefix="")
    # No token of Gemma 4 has a line break and anything else.
    model = content["model"]
    model["merges"] = [pair for pair in model["merges"] if "\n" not in "".join(pair)]
    model["vocab"] = {text: id_ for text, id_ in model["vocab"].items() if "\n" not in text[1:]}
    vocab = model["vocab"]
    for text in ("<|tool_call>", "<|turn>"):
        content["added_tokens"].append(added(max(vocab.values()) + 1, text))
        vocab[text] = max(vocab.values()) + 1
    found = read_json(tmp_path, content, config={"model_type": model_type})
    assert (found["model"], found["add_space_prefix"]) == ("gemma4", False)
    assert found["merges"] == [" ".join(pair) for pair in content["model"]["merges"]]
    assert not {"scores", "pre"} & found.keys()
    types = dict(zip(found["tokens"], found["token_type"].tolist(), strict=True))
    assert types["<0x0A>"] == TokenType.BYTE and types["<|turn>"] == TokenType.CONTROL
    # As llama.cpp's converter writes it, whose parser of calls would miss a control token.
    assert types["<|tool_call>"] == TokenType.USER_DEFINED
    write_files(tmp_path, {"tokenizer.json": byte_fallback_json(prefix="always")})
    with pytest.raises(UnsupportedError, match="a space is put before texts"):
        read_tokenizer(tmp_path, ROWS)


def test_old_metaspace_without_a_scheme(tmp_path: Path) -> None:
    content = byte_fallback_json(prefix="always")
    step = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True, "split": False}
    assert read_json(tmp_path, content | {"pre_tokenizer": step})["add_space_prefix"] is True


def test_cutting_at_spaces_matters_only_to_tokens_with_one_inside(tmp_path: Path) -> None:
    content = byte_fallback_json(prefix="always")
    content["pre_tokenizer"]["split"] = True
    assert read_json(tmp_path, content)["model"] == "llama"
    vocab = content["model"]["vocab"]
    vocab["▁▁"] = len(vocab)
    content["model"]["merges"].append(["▁", "▁"])
    write_files(tmp_path, {"tokenizer.json": content})
    with pytest.raises(UnsupportedError, match="tokens with a space inside"):
        read_tokenizer(tmp_path, ROWS)


def test_other_steps_beside_byte_fallback_are_refused(tmp_path: Path) -> None:
    for key, step, words in (
        ("normalizer", {"type": "Lowercase"}, "normalizer 'Lowercase'"),
        ("normalizer", {"type": "Prepend", "prepend": "x"}, "normalizer 'Prepend'"),
        ("pre_tokenizer", {"type": "Digits", "individual_digits": True}, "pre-tokenizer 'Digits'"),
        ("normalizer", None, "spaces are not written as"),
    ):
        content = byte_fallback_json() | {key: step}
        write_files(tmp_path, {"tokenizer.json": content})
        with pytest.raises(UnsupportedError, match=words):
            read_tokenizer(tmp_path, ROWS)


def test_bpe_without_bytes_is_refused(tmp_path: Path) -> None:
    content = byte_fallback_json()
    content["model"]["byte_fallback"] = False
    write_files(tmp_path, {"tokenizer.json": content})
    with pytest.raises(UnsupportedError, match="neither byte-level splitting"):
        read_tokenizer(tmp_path, ROWS)


# SentencePiece


def test_a_sentencepiece_model_alone(tmp_path: Path) -> None:
    found = read_checked(write_files(tmp_path, {"tokenizer.model": sentencepiece_file()}))
    assert (found["model"], found["pre"]) == ("llama", "default")
    assert found["add_bos_token"] is True
    assert found["add_eos_token"] is False
    assert found["add_space_prefix"] is True
    ids = [found[f"{name}_token_id"] for name in ("unknown", "bos", "eos")]
    assert ids == [0, 1, 2]


@pytest.mark.parametrize("prefix", [True, False])
def test_the_configuration_overrules_the_space_in_front(prefix: bool, tmp_path: Path) -> None:
    files = {
        "tokenizer.model": sentencepiece_file(add_dummy_prefix=not prefix),
        "tokenizer_config.json": {"add_prefix_space": prefix},
    }
    assert read_checked(write_files(tmp_path, files))["add_space_prefix"] is prefix


def test_gemmas_form_of_a_sentencepiece_model(tmp_path: Path) -> None:
    user = ("<start_of_turn>", "<end_of_turn>", "\n", "\n\n", "▁▁", "▁▁▁", "<table>")
    ids = {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3}
    pieces = {"pad_piece": "<pad>", "eos_piece": "<eos>", "bos_piece": "<bos>"}
    model = sentencepiece_file(user_defined_symbols=user, add_dummy_prefix=False, **ids, **pieces)
    turns = {"4": {"content": user[0], "special": True}, "5": {"content": user[1], "special": True}}
    files = {
        "tokenizer.model": model,
        "tokenizer_config.json": {"added_tokens_decoder": turns, "pad_token": "<pad>"},
    }
    found = read_checked(write_files(tmp_path, files))
    assert found["add_space_prefix"] is False
    assert [found[f"{name}_token_id"] for name in ("padding", "eos", "bos", "unknown")] == [
        0,
        1,
        2,
        3,
    ]
    types = found["token_type"][:11]
    assert list(types[:6]) == [3, 3, 3, 2, 3, 3]
    assert list(types[6:]) == [TokenType.USER_DEFINED] * 5
    assert found["tokens"][8:11] == ["  ", "   ", "<table>"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "unigram"}, "kind Unigram"),
        ({"model_type": "char"}, "kind Character"),
        ({"normalization_rule_name": "nmt_nfkc"}, "normalizes text"),
        ({"remove_extra_whitespaces": True}, "removes extra spaces"),
        ({"treat_whitespace_as_suffix": True}, "appends spaces to words"),
    ],
)
def test_other_sentencepiece_models_are_refused(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    write_files(tmp_path, {"tokenizer.model": sentencepiece_file(**changes)})
    with pytest.raises(UnsupportedError, match=words):
        read_tokenizer(tmp_path, ROWS)


def test_tokens_added_beside_a_sentencepiece_model(tmp_path: Path) -> None:
    config = {
        "added_tokens_decoder": {
            "0": {"content": "<unk>", "special": True},
            "381": {"content": "<|im_end|>", "special": True},
            "382": {"content": "▁▁▁word", "special": False},
        },
        "add_prefix_space": False,
        "eos_token": "<|im_end|>",
    }
    files = {
        "tokenizer.model": sentencepiece_file(add_dummy_prefix=False),
        "tokenizer_config.json": config,
        "added_tokens.json": {"<old>": 380},
    }
    found = read_checked(write_files(tmp_path, files))
    assert found["tokens"][379:384] == [
        *(found["tokens"][379], "<old>", "<|im_end|>", "   word", "[PAD383]")
    ]
    assert list(found["token_type"][380:384]) == [4, 3, 4, 5]
    assert found["token_type"][0] == TokenType.UNKNOWN
    assert found["eos_token_id"] == 381
    assert "eot_token_id" not in found


def test_a_tiktoken_file_of_the_same_name_is_left_alone(tmp_path: Path) -> None:
    """Llama 3 has one beside its tokenizer.json; alone it cannot be read."""
    files = {"tokenizer.model": "IQ== 0\nIg== 1\n", "tokenizer.json": byte_level_json(GPT2)}
    assert read_checked(write_files(tmp_path, files))["model"] == "gpt2"
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(UnsupportedError, match=r"tokenizer\.model: a tokenizer of this kind"):
        read_tokenizer(tmp_path, ROWS)
