"""What the check of a converted tokenizer finds, and damaged tokenizers of checkpoints."""

import json
from pathlib import Path

import pytest

from checked_tokenizers import ROWS
from powerinfer.convert.tokenizers import check_tokenizer, read_tokenizer
from powerinfer.errors import TokenizerError, UnsupportedError
from tokenizer_checkpoints import (
    DIGITS_GPT2,
    GPT2,
    Json,
    added,
    bos_template,
    byte_fallback_json,
    byte_level_json,
    sentencepiece_file,
    write_files,
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
    assert "unlike the checkpoint's" in message
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
    assert f"encodes 'a' unlike the checkpoint's: [{b}], not [{a}]" in _changed(
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
    assert "encodes ' ' unlike" in message


def test_the_check_finds_that_bos_is_missing(tmp_path: Path) -> None:
    content = byte_fallback_json() | {"post_processor": bos_template("<s>", 1)}
    message = _changed(tmp_path, content, add_bos_token=False)
    assert "encodes 'Hello' unlike" in message
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
    with pytest.raises(TokenizerError, match="unlike the checkpoint's"):
        check_tokenizer(tmp_path, metadata | {"tokenizer.ggml.scores": -scores})  # type: ignore[operator]


def test_what_the_library_refuses_is_an_error(tmp_path: Path) -> None:
    content = byte_level_json(GPT2)
    content["model"]["merges"].append(["never", "there"])
    write_files(tmp_path, {"tokenizer.json": content})
    with pytest.raises(TokenizerError, match="the tokenizers library rejects it"):
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
        ("[]", "damaged: list; expected an object"),
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
        ({"vocab": {"\ud800": 7}}, "not valid Unicode"),
        ({"merges": {}}, "merges is"),
        ({"merges": ["ab"]}, "merge 0 is 'ab'; expected two strings"),
        ({"merges": [["a"]]}, "merge 0 is"),
        ({"merges": [["a", ""]]}, "merge 0 is"),
        ({"merges": [["a", 1]]}, "merge 0 is"),
        ({"merges": [["a ", "b"]]}, "has a space"),
        ({"merges": [["\ud800", "b"]]}, "not valid Unicode"),
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
        ({"pre_tokenizer": None}, "neither byte-level splitting"),
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
        ("tokenizer_config.json", {"chat_template": "\ud800"}, "not valid Unicode"),
        ("added_tokens.json", {"<a>": "1"}, "has the id '1'"),
        ("generation_config.json", "nothing", "damaged"),
        ("config.json", "[]", "expected an object"),
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
    with pytest.raises(TokenizerError, match="is too large for a tokenizer: more than 256 MiB"):
        read_tokenizer(tmp_path, ROWS)


def test_a_folder_in_the_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").mkdir()
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: cannot be read: Is a directory"):
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
