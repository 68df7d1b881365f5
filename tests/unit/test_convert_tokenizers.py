"""Tokenizers of checkpoints as metadata: every kind, made here, against the checkpoint's own."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from powerinfer.convert.tokenizers import check_tokenizer, read_tokenizer
from powerinfer.errors import TokenizerError, UnsupportedError
from powerinfer.gguf import open_gguf, write_gguf
from powerinfer.tokenizer import Tokenizer
from powerinfer.tokenizer.vocabulary import TokenType
from tokenizer_checkpoints import (
    BYTE_LEVEL,
    DIGITS_GPT2,
    GPT2,
    LLAMA3,
    QWEN2,
    Json,
    added,
    bos_template,
    byte_fallback_json,
    byte_level_json,
    byte_level_step,
    sentencepiece_file,
    sequence,
    split,
    write_files,
)

ROWS = 448


def _read(folder: Path, rows: int = ROWS) -> dict[str, Any]:
    """The metadata, after the check and the way through a file."""
    metadata = read_tokenizer(folder, rows)
    check_tokenizer(folder, metadata)
    write_gguf(folder / "vocab.gguf", metadata, [])
    check_tokenizer(folder, open_gguf(folder / "vocab.gguf").metadata)
    return {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}


def _json(folder: Path, content: Json, rows: int = ROWS, **files: object) -> dict[str, Any]:
    named = {f"{name}.json": value for name, value in files.items()}
    return _read(write_files(folder, {"tokenizer.json": content, **named}), rows)


# Byte-level BPE


@pytest.mark.parametrize("family", BYTE_LEVEL)
def test_the_pre_tokenizer_is_found_by_what_it_does(family: str, tmp_path: Path) -> None:
    name, pre, ignore_merges = BYTE_LEVEL[family]
    content = byte_level_json(pre, ignore_merges=ignore_merges)
    found = _json(tmp_path, content)
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
    with pytest.raises(UnsupportedError, match="none of those that are known") as caught:
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
    assert _json(tmp_path / "idle", content)["pre"] == "starcoder"
    content["model"]["vocab"]["Ġaardvark"] = len(content["model"]["vocab"])
    write_files(tmp_path / "used", {"tokenizer.json": content})
    with pytest.raises(UnsupportedError, match="ignore_merges is true beside"):
        read_tokenizer(tmp_path / "used", ROWS)


def test_merges_may_be_texts_or_pairs(tmp_path: Path) -> None:
    content = byte_level_json(GPT2)
    assert isinstance(content["model"]["merges"][0], list)
    pairs = _json(tmp_path / "pairs", content)
    content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]
    texts = _json(tmp_path / "texts", content)
    assert texts["merges"] == pairs["merges"]


def test_of_a_merge_that_is_named_twice_the_last_counts(tmp_path: Path) -> None:
    content = byte_level_json(GPT2)
    merges = content["model"]["merges"]
    content["model"]["merges"] = [*merges, merges[0]]
    found = _json(tmp_path, content)
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
    found = _read(write_files(tmp_path, files))
    end = content["model"]["vocab"]["<|end|>"]
    assert (found["bos_token_id"], found["eos_token_id"], found["add_bos_token"]) == (
        end,
        end,
        True,
    )
    assert found["pre"] == "gpt-2"
    files["tokenizer_config.json"] = {"tokenizer_class": "XTokenizer"}
    write_files(tmp_path, files)
    with pytest.raises(UnsupportedError, match=r"nothing says how text is cut .*'XTokenizer'"):
        read_tokenizer(tmp_path, ROWS)


def test_qwens_form_of_vocab_and_merges_is_known_by_the_model_too(tmp_path: Path) -> None:
    content = byte_level_json(sequence(split(QWEN2)))
    files = {
        "vocab.json": content["model"]["vocab"],
        "merges.txt": "\n".join(" ".join(pair) for pair in content["model"]["merges"]),
        "config.json": {"model_type": "qwen2"},
        "added_tokens.json": {"<|im_end|>": 340},
    }
    found = _read(write_files(tmp_path, files))
    assert found["pre"] == "qwen2"
    assert found["tokens"][340] == "<|im_end|>"
    assert found["token_type"][340] == TokenType.USER_DEFINED


def test_composed_texts_are_compared_where_the_tokenizer_composes(tmp_path: Path) -> None:
    assert (
        _json(tmp_path, byte_level_json(GPT2) | {"normalizer": {"type": "NFC"}})["pre"] == "gpt-2"
    )
    for normalizer in ({"type": "NFKC"}, {"type": "Lowercase"}):
        both = {"type": "Sequence", "normalizers": [{"type": "NFC"}, normalizer]}
        write_files(tmp_path, {"tokenizer.json": byte_level_json(GPT2) | {"normalizer": both}})
        with pytest.raises(UnsupportedError, match=f"normalizer '{normalizer['type']}'"):
            read_tokenizer(tmp_path, ROWS)


# BPE with byte fallback


@pytest.mark.parametrize("prefix", ["Prepend", "always", "first", "never", ""])
def test_byte_fallback_becomes_a_sentencepiece_vocabulary(prefix: str, tmp_path: Path) -> None:
    found = _json(tmp_path, byte_fallback_json(prefix=prefix))
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


def test_old_metaspace_without_a_scheme(tmp_path: Path) -> None:
    content = byte_fallback_json(prefix="always")
    step = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True, "split": False}
    assert _json(tmp_path, content | {"pre_tokenizer": step})["add_space_prefix"] is True


def test_cutting_at_spaces_matters_only_to_tokens_with_one_inside(tmp_path: Path) -> None:
    content = byte_fallback_json(prefix="always")
    content["pre_tokenizer"]["split"] = True
    assert _json(tmp_path, content)["model"] == "llama"
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
    with pytest.raises(UnsupportedError, match="neither cuts bytes"):
        read_tokenizer(tmp_path, ROWS)


# SentencePiece


def test_a_sentencepiece_model_alone(tmp_path: Path) -> None:
    found = _read(write_files(tmp_path, {"tokenizer.model": sentencepiece_file()}))
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
    assert _read(write_files(tmp_path, files))["add_space_prefix"] is prefix


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
    found = _read(write_files(tmp_path, files))
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
        ({"treat_whitespace_as_suffix": True}, "puts spaces behind words"),
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
    found = _read(write_files(tmp_path, files))
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
    assert _read(write_files(tmp_path, files))["model"] == "gpt2"
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(UnsupportedError, match=r"tokenizer\.model: a tokenizer of this kind"):
        read_tokenizer(tmp_path, ROWS)


# Added tokens


def test_added_tokens_are_control_tokens_if_special(tmp_path: Path) -> None:
    content = byte_level_json(GPT2)
    content["added_tokens"] += [
        added(340, "<tool>", special=False),
        added(341, "<|sys|>"),
        added(342, "   ", special=False, normalized=True),
    ]
    config = {
        "added_tokens_decoder": {"343": {"content": "<v4>", "special": True}},
        "additional_special_tokens": ["<tool2>", {"content": "<v4>"}],
    }
    content["added_tokens"].append(added(344, "<tool2>", special=False))
    # Numbers of the library, which counts on.
    content["added_tokens"].sort(key=lambda entry: entry["id"])
    found = _json(tmp_path, content, tokenizer_config=config)
    assert found["tokens"][340:346] == ["<tool>", "<|sys|>", "   ", "<v4>", "<tool2>", "[PAD345]"]
    assert list(found["token_type"][340:346]) == [4, 3, 4, 3, 3, 5]


def test_added_tokens_without_a_row_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = byte_level_json(GPT2)
    content["added_tokens"] += [added(340, "<a>"), added(341, "<b>")]
    found = _json(tmp_path, content, rows=341)
    assert found["tokens"][340] == "<a>"
    assert len(found["tokens"]) == 341
    assert "1 added tokens, from id 341 on, have no row in the embedding of 341" in caplog.text


def test_a_token_without_a_row_is_an_error(tmp_path: Path) -> None:
    write_files(tmp_path, {"tokenizer.json": byte_level_json(GPT2)})
    with pytest.raises(TokenizerError, match=r"has the id 339; the embedding has 300 rows"):
        read_tokenizer(tmp_path, 300)


def test_white_space_that_added_tokens_swallow_is_not_compared(tmp_path: Path) -> None:
    content = byte_level_json(GPT2)
    content["added_tokens"] += [
        added(340, "cat", special=False, lstrip=True, rstrip=True),
        added(341, "dog", special=False, single_word=True),
    ]
    assert _json(tmp_path, content)["tokens"][340:342] == ["cat", "dog"]


def test_an_id_that_the_library_would_not_give_is_found(tmp_path: Path) -> None:
    content = byte_level_json(GPT2)
    content["added_tokens"].append(added(350, "<far>"))
    write_files(tmp_path, {"tokenizer.json": content})
    metadata = read_tokenizer(tmp_path, ROWS)
    with pytest.raises(TokenizerError, match=r"encodes '<far>' otherwise .* \[350\], not \[340\]"):
        check_tokenizer(tmp_path, metadata)


# Ids with a meaning


def test_the_post_processor_says_what_is_put_in_front(tmp_path: Path) -> None:
    content = byte_level_json(GPT2, ("<|begin|>", "<|end|>"))
    ids = content["model"]["vocab"]
    bos, eos = ids["<|begin|>"], ids["<|end|>"]
    template = bos_template("<|begin|>", bos)
    content["post_processor"] = {
        "type": "Sequence",
        "processors": [byte_level_step(use_regex=True), template],
    }
    # transformers 5 does not hear the configuration beside a post-processor.
    config = {"add_bos_token": False, "eos_token": "<|end|>"}
    found = _json(tmp_path, content, tokenizer_config=config)
    assert found["bos_token_id"] == bos
    assert found["eos_token_id"] == eos
    assert found["add_bos_token"] is True
    assert found["add_eos_token"] is False
    content["post_processor"] = {
        "type": "RobertaProcessing",
        "sep": ["<|end|>", eos],
        "cls": ["<|begin|>", bos],
        "trim_offsets": True,
        "add_prefix_space": False,
    }
    found = _json(tmp_path, content, tokenizer_config=config)
    assert (found["add_bos_token"], found["add_eos_token"]) == (True, True)


def test_what_no_file_asks_for_is_not_added(tmp_path: Path) -> None:
    found = _json(tmp_path, byte_level_json(GPT2) | {"post_processor": None})
    assert (found["add_bos_token"], found["add_eos_token"]) == (False, False)
    plain = byte_level_json(GPT2) | {"post_processor": byte_level_step(use_regex=True)}
    config = {"add_bos_token": True, "add_eos_token": True, "bos_token": "<|end|>"}
    found = _json(tmp_path, plain, tokenizer_config=config)
    assert (found["add_bos_token"], found["add_eos_token"]) == (True, False)


def test_several_tokens_in_front_are_refused(tmp_path: Path) -> None:
    content = byte_level_json(GPT2)
    end = content["model"]["vocab"]["<|end|>"]
    template = bos_template("<|end|>", end)
    template["single"].insert(0, template["single"][0])
    write_files(tmp_path, {"tokenizer.json": content | {"post_processor": template}})
    with pytest.raises(UnsupportedError, match="puts 2 tokens in front"):
        read_tokenizer(tmp_path, ROWS)


def test_every_end_of_an_answer_is_named_or_known(tmp_path: Path) -> None:
    special = ("<|begin|>", "<|end|>", "<a>", "<b>", "<c>", "<|im_end|>")
    content = byte_level_json(GPT2, special)
    ids = content["model"]["vocab"]
    ends = [ids[text] for text in ("<|end|>", "<a>", "<|im_end|>", "<b>")]
    found = _json(
        tmp_path,
        content,
        tokenizer_config={"eos_token": "<|im_end|>", "bos_token": "<|begin|>"},
        generation_config={"eos_token_id": ends},
        config={"eos_token_id": ids["<a>"], "bos_token_id": 7, "pad_token_id": -1},
    )
    assert found["eos_token_id"] == ids["<|im_end|>"]
    assert (found["eot_token_id"], found["eom_token_id"]) == (ids["<a>"], ids["<b>"])
    assert found["bos_token_id"] == ids["<|begin|>"]
    assert "padding_token_id" not in found
    metadata = read_tokenizer(tmp_path, ROWS)
    assert Tokenizer.from_metadata(metadata).eog_ids == {*ends, ids["<|im_end|>"]}


def test_more_ends_than_keys_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    content = byte_level_json(GPT2, ("<a>", "<b>", "<c>", "<d>"))
    found = _json(tmp_path, content, generation_config={"eos_token_id": [0, 1, 2, 3, 9999, True]})
    assert [found[f"{name}_token_id"] for name in ("eos", "eot", "eom")] == [0, 1, 2]
    assert "left out [3]" in caplog.text


def test_ids_of_a_nested_configuration_are_read(tmp_path: Path) -> None:
    config = {"text_config": {"eos_token_id": 5, "pad_token_id": 6}}
    found = _json(tmp_path, byte_level_json(GPT2), config=config)
    assert (found["eos_token_id"], found["padding_token_id"]) == (5, 6)


def test_names_are_read_from_the_map_of_special_tokens_too(tmp_path: Path) -> None:
    named = {"eos_token": {"content": "<|end|>"}, "unk_token": "", "pad_token": None}
    content = byte_level_json(GPT2)
    found = _json(tmp_path, content, special_tokens_map=named)
    assert found["eos_token_id"] == content["model"]["vocab"]["<|end|>"]
    assert "unknown_token_id" not in found


# Chat templates


def test_the_template_file_comes_first(tmp_path: Path) -> None:
    files: dict[str, object] = {
        "tokenizer.json": byte_level_json(GPT2),
        "chat_template.json": {"chat_template": "third"},
    }
    assert _read(write_files(tmp_path, files))["tokenizer.chat_template"] == "third"
    files["tokenizer_config.json"] = {"chat_template": "second"}
    assert _read(write_files(tmp_path, files))["tokenizer.chat_template"] == "second"
    files["chat_template.jinja"] = "first\n"
    files["additional_chat_templates.jinja"] = "other"
    assert _read(write_files(tmp_path, files))["tokenizer.chat_template"] == "first\n"


@pytest.mark.parametrize(
    "templates",
    [
        [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}],
        {"tool_use": "t", "default": "d"},
    ],
)
def test_of_several_templates_the_default_is_taken(templates: object, tmp_path: Path) -> None:
    config = {"chat_template": templates}
    found = _json(tmp_path, byte_level_json(GPT2), tokenizer_config=config)
    assert found["tokenizer.chat_template"] == "d"


def test_no_template_is_guessed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = {"chat_template": [{"name": "rag", "template": "r"}]}
    found = _json(tmp_path, byte_level_json(GPT2), tokenizer_config=config)
    assert "tokenizer.chat_template" not in found
    assert "none of the chat templates (rag) is named default" in caplog.text
    assert "tokenizer.chat_template" not in _json(
        tmp_path, byte_level_json(GPT2), tokenizer_config={}
    )


# The check


def _changed(folder: Path, content: Json, **changes: object) -> str:
    """The error of the check where the file would have other metadata."""
    write_files(folder, {"tokenizer.json": content})
    metadata = read_tokenizer(folder, ROWS)
    check_tokenizer(folder, metadata)
    renamed = {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    with pytest.raises(TokenizerError) as caught:
        check_tokenizer(folder, metadata | renamed)
    message = str(caught.value)
    assert "otherwise than the checkpoint's" in message
    assert "\n" not in message
    assert len(message) < 600
    return message


def test_the_check_finds_another_pre_tokenizer(tmp_path: Path) -> None:
    message = _changed(tmp_path, byte_level_json(GPT2), pre="falcon")
    assert str(tmp_path / "tokenizer.json") in message


def test_the_check_finds_tokens_in_another_order(tmp_path: Path) -> None:
    content = byte_level_json(GPT2)
    tokens = sorted(content["model"]["vocab"], key=content["model"]["vocab"].__getitem__)
    a, b = (content["model"]["vocab"][text] for text in "ab")
    tokens[a], tokens[b] = tokens[b], tokens[a]
    tokens += [f"[PAD{i}]" for i in range(len(tokens), ROWS)]
    assert f"encodes 'a' otherwise than the checkpoint's: [{b}], not [{a}]" in _changed(
        tmp_path, content, tokens=tokens
    )


def test_the_check_finds_a_lost_merge_in_a_rare_word(tmp_path: Path) -> None:
    content = byte_level_json(GPT2)
    content["model"]["vocab"]["qzqz"] = len(content["model"]["vocab"])
    content["model"]["vocab"]["qz"] = len(content["model"]["vocab"])
    merges = [*content["model"]["merges"], ["q", "z"], ["qz", "qz"]]
    content["model"]["merges"] = merges
    lost = [" ".join(pair) for pair in merges[:-1]]
    assert "from token" in _changed(tmp_path, content, merges=lost)


def test_the_check_finds_a_lost_space(tmp_path: Path) -> None:
    message = _changed(tmp_path, byte_fallback_json(), add_space_prefix=False)
    assert "encodes ' ' otherwise" in message


def test_the_check_finds_that_bos_is_missing(tmp_path: Path) -> None:
    content = byte_fallback_json() | {"post_processor": bos_template("<s>", 1)}
    message = _changed(tmp_path, content, add_bos_token=False)
    assert "encodes 'Hello' otherwise" in message
    assert "not [1, " in message


def test_the_check_shows_long_texts_and_lists_shortened(tmp_path: Path) -> None:
    content = byte_level_json(DIGITS_GPT2)
    vocab, merges = content["model"]["vocab"], content["model"]["merges"]
    word = next(text for text, token_id in vocab.items() if token_id == 280)
    vocab |= {"qz": 280, word: 340}
    content["model"]["merges"] = [*merges, ["q", "z"]]
    message = _changed(tmp_path, content, merges=[" ".join(pair) for pair in merges])
    assert "..." in message
    assert " more]" in message


def test_the_check_of_a_sentencepiece_model(tmp_path: Path) -> None:
    write_files(tmp_path, {"tokenizer.model": sentencepiece_file()})
    metadata = read_tokenizer(tmp_path, ROWS)
    scores = metadata["tokenizer.ggml.scores"]
    with pytest.raises(TokenizerError, match="otherwise than the checkpoint's"):
        check_tokenizer(tmp_path, metadata | {"tokenizer.ggml.scores": -scores})  # type: ignore[operator]


def test_what_the_library_refuses_is_an_error(tmp_path: Path) -> None:
    content = byte_level_json(GPT2)
    content["model"]["merges"].append(["never", "there"])
    write_files(tmp_path, {"tokenizer.json": content})
    with pytest.raises(TokenizerError, match="the tokenizers library refuses it"):
        check_tokenizer(tmp_path, read_tokenizer(tmp_path, ROWS))


# Damaged files


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"no tokenizer: wanted tokenizer\.json, a Sent"):
        read_tokenizer(tmp_path, ROWS)
    with pytest.raises(TokenizerError, match="no tokenizer"):
        check_tokenizer(tmp_path, {})
    write_files(tmp_path, {"vocab.json": {"a": 0}})
    with pytest.raises(TokenizerError, match="no tokenizer"):
        read_tokenizer(tmp_path, ROWS)
    write_files(tmp_path, {"tekken.json": {}})
    with pytest.raises(UnsupportedError, match=r"tekken\.json: a tokenizer of this kind"):
        read_tokenizer(tmp_path, ROWS)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "damaged"),
        ("{", "damaged"),
        ("[]", "damaged: list; an object is needed"),
        ('{"model": ', "damaged"),
        ("[" * 100_000, "nested too deeply"),
        (b"\xff\xfe{}", "not UTF-8 at byte 0"),
        ("{}", "model is None"),
        ('{"model": {"type": "Unigram", "vocab": []}}', "kind 'Unigram' is not supported"),
        ('{"model": {"type": "WordPiece", "vocab": {}}}', "kind 'WordPiece' is not supported"),
        ('{"model": {"vocab": {}}}', "kind None"),
    ],
)
def test_damaged_json_is_one_line(text: str | bytes, words: str, tmp_path: Path) -> None:
    write_files(tmp_path, {"tokenizer.json": text})
    with pytest.raises((TokenizerError, UnsupportedError), match=words) as caught:
        read_tokenizer(tmp_path, ROWS)
    assert str(caught.value).startswith(f"{tmp_path / 'tokenizer.json'}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"vocab": []}, "model.vocab is"),
        ({"vocab": {"a": "0"}}, "token 'a' has the id '0'"),
        ({"vocab": {"a": -1}}, "token 'a' has the id -1"),
        ({"vocab": {"a": True}}, "token 'a' has the id True"),
        ({"vocab": {"a": 0, "b": 0}}, "two tokens have the same id"),
        ({"vocab": {"a": 10**30}}, "the embedding has 448 rows"),
        ({"vocab": {"\ud800": 7}}, "no Unicode text"),
        ({"merges": {}}, "merges is"),
        ({"merges": ["ab"]}, "merge 0 is 'ab'; two texts"),
        ({"merges": [["a"]]}, "merge 0 is"),
        ({"merges": [["a", ""]]}, "merge 0 is"),
        ({"merges": [["a", 1]]}, "merge 0 is"),
        ({"merges": [["a ", "b"]]}, "has a space"),
        ({"merges": [["\ud800", "b"]]}, "no Unicode text"),
        ({"dropout": 0.1}, "model.dropout is 0.1"),
        ({"end_of_word_suffix": "</w>"}, "model.end_of_word_suffix is '</w>'"),
    ],
)
def test_damaged_models_are_one_line(change: Json, words: str, tmp_path: Path) -> None:
    write_files(tmp_path, {"tokenizer.json": byte_level_json(GPT2, **change)})
    with pytest.raises((TokenizerError, UnsupportedError), match=words) as caught:
        read_tokenizer(tmp_path, ROWS)
    assert str(caught.value).startswith(f"{tmp_path / 'tokenizer.json'}: ")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"added_tokens": {}}, "added_tokens is"),
        ({"added_tokens": [1]}, "no object"),
        ({"added_tokens": [{"id": "1", "content": "x"}]}, "the id '1'"),
        ({"added_tokens": [{"id": 1, "content": ""}]}, "added token 1 is ''"),
        ({"added_tokens": [added(1, "a"), added(1, "b")]}, "the id 1 twice"),
        ({"normalizer": 3}, "normalizers has 3"),
        ({"normalizer": {"type": "Sequence"}}, "normalizers is None"),
        ({"pre_tokenizer": [1]}, "pretokenizers has"),
        ({"pre_tokenizer": None}, "neither cuts bytes"),
        ({"post_processor": {"type": "TemplateProcessing"}}, "post_processor is malformed"),
        ({"post_processor": {"type": "RobertaProcessing"}}, "post_processor names None"),
        ({"post_processor": bos_template("x", 9999)}, "post_processor names the id 9999"),
    ],
)
def test_damaged_parts_are_one_line(change: Json, words: str, tmp_path: Path) -> None:
    write_files(tmp_path, {"tokenizer.json": byte_level_json(GPT2) | change})
    with pytest.raises((TokenizerError, UnsupportedError), match=words) as caught:
        read_tokenizer(tmp_path, ROWS)
    assert str(caught.value).startswith(f"{tmp_path / 'tokenizer.json'}: ")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tokenizer_config.json", "{", "damaged"),
        ("tokenizer_config.json", {"added_tokens_decoder": []}, "added_tokens_decoder"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {}}}, "has the id 'x'"),
        ("tokenizer_config.json", {"chat_template": 5}, "chat_template is 5"),
        ("tokenizer_config.json", {"chat_template": "\ud800"}, "no Unicode text"),
        ("added_tokens.json", {"<a>": "1"}, "has the id '1'"),
        ("generation_config.json", "nothing", "damaged"),
        ("config.json", "[]", "an object is needed"),
        ("chat_template.jinja", b"\xff", "not UTF-8"),
    ],
)
def test_damaged_files_beside_it_are_named(
    name: str, content: object, words: str, tmp_path: Path
) -> None:
    write_files(tmp_path, {"tokenizer.json": byte_level_json(GPT2), name: content})
    with pytest.raises(TokenizerError, match=words) as caught:
        read_tokenizer(tmp_path, ROWS)
    assert str(caught.value).startswith(f"{tmp_path / name}: ")


def test_files_of_absurd_size_are_not_read(tmp_path: Path) -> None:
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(TokenizerError, match=r"1,099,511,627,776 bytes; a tokenizer has at most"):
        read_tokenizer(tmp_path, ROWS)


def test_a_folder_in_the_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").mkdir()
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: not a file"):
        read_tokenizer(tmp_path, ROWS)


@pytest.mark.parametrize("end", [1, 2, 5, 100, -1])
def test_a_cut_sentencepiece_model_is_damaged(end: int, tmp_path: Path) -> None:
    write_files(tmp_path, {"tokenizer.model": sentencepiece_file()[:end]})
    with pytest.raises(TokenizerError, match=r"tokenizer\.model: damaged") as caught:
        read_tokenizer(tmp_path, ROWS)
    assert "\n" not in str(caught.value)


def test_json_written_by_python_alone_is_what_the_files_hold() -> None:
    """The tokenizers of these tests are what the library writes, not only what it reads."""
    assert json.loads(json.dumps(byte_level_json(GPT2)))["model"]["type"] == "BPE"
