"""Added tokens, ids with a meaning and chat templates of checkpoints as metadata."""

from pathlib import Path

import pytest

from checked_tokenizers import ROWS, read_checked, read_json
from powerinfer.convert.tokenizers import check_tokenizer, read_tokenizer
from powerinfer.errors import TokenizerError, UnsupportedError
from powerinfer.tokenizer import Tokenizer
from tokenizer_checkpoints import (
    GPT2,
    added,
    bos_template,
    byte_level_json,
    byte_level_step,
    write_files,
)

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
    found = read_json(tmp_path, content, tokenizer_config=config)
    assert found["tokens"][340:346] == ["<tool>", "<|sys|>", "   ", "<v4>", "<tool2>", "[PAD345]"]
    assert list(found["token_type"][340:346]) == [4, 3, 4, 3, 3, 5]


def test_added_tokens_without_a_row_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = byte_level_json(GPT2)
    content["added_tokens"] += [added(340, "<a>"), added(341, "<b>")]
    found = read_json(tmp_path, content, rows=341)
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
    assert read_json(tmp_path, content)["tokens"][340:342] == ["cat", "dog"]


def test_an_id_that_the_library_would_not_give_is_found(tmp_path: Path) -> None:
    content = byte_level_json(GPT2)
    content["added_tokens"].append(added(350, "<far>"))
    write_files(tmp_path, {"tokenizer.json": content})
    metadata = read_tokenizer(tmp_path, ROWS)
    with pytest.raises(TokenizerError, match=r"encodes '<far>' unlike .* \[350\], not \[340\]"):
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
    found = read_json(tmp_path, content, tokenizer_config=config)
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
    found = read_json(tmp_path, content, tokenizer_config=config)
    assert (found["add_bos_token"], found["add_eos_token"]) == (True, True)


def test_what_no_file_asks_for_is_not_added(tmp_path: Path) -> None:
    found = read_json(tmp_path, byte_level_json(GPT2) | {"post_processor": None})
    assert (found["add_bos_token"], found["add_eos_token"]) == (False, False)
    plain = byte_level_json(GPT2) | {"post_processor": byte_level_step(use_regex=True)}
    config = {"add_bos_token": True, "add_eos_token": True, "bos_token": "<|end|>"}
    found = read_json(tmp_path, plain, tokenizer_config=config)
    assert (found["add_bos_token"], found["add_eos_token"]) == (True, False)


def test_several_tokens_in_front_are_refused(tmp_path: Path) -> None:
    content = byte_level_json(GPT2)
    end = content["model"]["vocab"]["<|end|>"]
    template = bos_template("<|end|>", end)
    template["single"].insert(0, template["single"][0])
    write_files(tmp_path, {"tokenizer.json": content | {"post_processor": template}})
    with pytest.raises(UnsupportedError, match="puts 2 tokens before"):
        read_tokenizer(tmp_path, ROWS)


def test_every_end_of_an_answer_is_named_or_known(tmp_path: Path) -> None:
    special = ("<|begin|>", "<|end|>", "<a>", "<b>", "<c>", "<|im_end|>")
    content = byte_level_json(GPT2, special)
    ids = content["model"]["vocab"]
    ends = [ids[text] for text in ("<|end|>", "<a>", "<|im_end|>", "<b>")]
    found = read_json(
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
    found = read_json(
        tmp_path, content, generation_config={"eos_token_id": [0, 1, 2, 3, 9999, True]}
    )
    assert [found[f"{name}_token_id"] for name in ("eos", "eot", "eom")] == [0, 1, 2]
    assert "dropped [3]" in caplog.text


def test_ids_of_a_nested_configuration_are_read(tmp_path: Path) -> None:
    config = {"text_config": {"eos_token_id": 5, "pad_token_id": 6}}
    found = read_json(tmp_path, byte_level_json(GPT2), config=config)
    assert (found["eos_token_id"], found["padding_token_id"]) == (5, 6)


def test_names_are_read_from_the_map_of_special_tokens_too(tmp_path: Path) -> None:
    named = {"eos_token": {"content": "<|end|>"}, "unk_token": "", "pad_token": None}
    content = byte_level_json(GPT2)
    found = read_json(tmp_path, content, special_tokens_map=named)
    assert found["eos_token_id"] == content["model"]["vocab"]["<|end|>"]
    assert "unknown_token_id" not in found


# Chat templates


def test_the_template_file_comes_first(tmp_path: Path) -> None:
    files: dict[str, object] = {
        "tokenizer.json": byte_level_json(GPT2),
        "chat_template.json": {"chat_template": "third"},
    }
    assert read_checked(write_files(tmp_path, files))["tokenizer.chat_template"] == "third"
    files["tokenizer_config.json"] = {"chat_template": "second"}
    assert read_checked(write_files(tmp_path, files))["tokenizer.chat_template"] == "second"
    files["chat_template.jinja"] = "first\n"
    files["additional_chat_templates.jinja"] = "other"
    assert read_checked(write_files(tmp_path, files))["tokenizer.chat_template"] == "first\n"


@pytest.mark.parametrize(
    "templates",
    [
        [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}],
        {"tool_use": "t", "default": "d"},
    ],
)
def test_of_several_templates_the_default_is_taken(templates: object, tmp_path: Path) -> None:
    config = {"chat_template": templates}
    found = read_json(tmp_path, byte_level_json(GPT2), tokenizer_config=config)
    assert found["tokenizer.chat_template"] == "d"


def test_no_template_is_guessed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = {"chat_template": [{"name": "rag", "template": "r"}]}
    found = read_json(tmp_path, byte_level_json(GPT2), tokenizer_config=config)
    assert "tokenizer.chat_template" not in found
    assert "none of the chat templates (rag) is named default" in caplog.text
    assert "tokenizer.chat_template" not in read_json(
        tmp_path, byte_level_json(GPT2), tokenizer_config={}
    )
