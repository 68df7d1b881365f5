"""Reading vocabularies: what is refused, with which words, and what is mended."""

import logging
from typing import Any

import numpy as np
import pytest

from powerinfer.errors import GGUFError, UnsupportedError
from powerinfer.tokenizer import Tokenizer
from powerinfer.tokenizer.byte_level import library_pre_tokenizer
from powerinfer.tokenizer.pieces import BYTE_CHARACTERS
from powerinfer.tokenizer.pre_tokenizers import _BY_NAME, pre_tokenizer
from tokenizer_metadata import (
    byte_level,
    sentencepiece,
    small_byte_level,
    small_sentencepiece,
)

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no model": ({"model": None}, "model is missing"),
    "model is a number": ({"model": 3}, "model is int 3; a string is needed"),
    "no tokens": ({"tokens": None}, "tokens is missing"),
    "empty vocabulary": ({"tokens": []}, "tokens is empty"),
    "tokens are numbers": ({"tokens": np.arange(3)}, "tokens is an array of int64"),
    "tokens of two kinds": ({"tokens": ["a", 1]}, "array of int and str; an array of strings"),
    "tokens is a string": ({"tokens": "abc"}, "tokens is str 'abc'"),
    "scores too short": ({"scores": [1.0]}, "scores has 1 elements; there are 282 tokens"),
    "scores are text": ({"scores": ["a"] * 282}, "an array of numbers is needed"),
    "scores are NaN": ({"scores": [float("nan")] * 282}, "not finite"),
    "scores are infinite": ({"scores": np.full(282, 1e300)}, "not finite"),
    "types too long": ({"token_type": [1] * 283}, "token_type has 283 elements"),
    "type unknown": ({"token_type": [9] * 282}, "token_type has the value 9"),
    "types are nested": ({"token_type": [[1]] * 282}, "flat array of numbers"),
    "types are ragged": ({"token_type": [[], [1]]}, "arrays of unequal lengths"),
    "eos is a flag": ({"eos_token_id": True}, "eos_token_id is bool True"),
    "unknown is text": ({"unknown_token_id": "0"}, "unknown_token_id is str '0'"),
    "flag is a number": ({"add_bos_token": 1}, "add_bos_token is int 1; true or false"),
}


@pytest.mark.parametrize("case", WRONG)
def test_absurd_keys_are_refused_by_name(case: str) -> None:
    changes, message = WRONG[case]
    metadata = small_sentencepiece() | {f"tokenizer.ggml.{k}": v for k, v in changes.items()}
    with pytest.raises(GGUFError, match=f"^some.gguf: .*{message}"):
        Tokenizer.from_metadata(metadata, source="some.gguf")


@pytest.mark.parametrize("token_id", [282, -1, 2**32 - 1])
@pytest.mark.parametrize("name", ["bos", "eos", "eot"])
def test_special_ids_that_no_token_has_are_ignored(
    name: str, token_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    metadata = small_sentencepiece() | {f"tokenizer.ggml.{name}_token_id": token_id}
    with caplog.at_level(logging.WARNING):
        tokenizer = Tokenizer.from_metadata(metadata)
    assert f"{name}_token_id is {token_id}" in caplog.text
    assert (tokenizer.bos_id, tokenizer.eos_id) == (1, 2)


@pytest.mark.parametrize("merges", [None, "a b", np.arange(3), ["a b", 3]])
def test_merges_must_be_strings(merges: object) -> None:
    metadata = small_byte_level() | {"tokenizer.ggml.merges": merges}
    with pytest.raises(GGUFError, match=r"tokenizer\.ggml\.merges is"):
        Tokenizer.from_metadata(metadata)


@pytest.mark.parametrize("model", ["bert", "t5", "rwkv", "no_vocab", ""])
def test_other_kinds_of_vocabulary_are_named_as_unsupported(model: str) -> None:
    metadata = small_byte_level() | {"tokenizer.ggml.model": model}
    with pytest.raises(UnsupportedError, match=r"llama \(SentencePiece BPE\), gpt2 \(byte-level"):
        Tokenizer.from_metadata(metadata)


def test_merges_of_tokens_that_are_not_there_are_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    merges = ["a b", "x yz", "q", " ", "", "a a", "ab ab", "c \ud800", "b <|end|>"]
    metadata = byte_level([*BYTE_CHARACTERS, "ab", "abab"], merges, ["<|end|>", "b<|end|>"])
    with caplog.at_level(logging.WARNING):
        tokenizer = Tokenizer.from_metadata(metadata)
    assert "merges name missing tokens" in caplog.text
    assert tokenizer.encode("ababaa") == [257, 97, 97]


def test_of_a_repeated_merge_the_first_counts() -> None:
    merges = ["a b", "b c", "a b"]
    tokenizer = Tokenizer.from_metadata(byte_level([*BYTE_CHARACTERS, "ab", "bc"], merges))
    assert tokenizer.encode("abc") == [256, ord("c")]


def test_of_equal_tokens_the_last_is_written_and_all_are_read() -> None:
    twice = Tokenizer.from_metadata(byte_level([*BYTE_CHARACTERS, "ab", "ab"], ["a b"]))
    assert twice.encode("ab") == [257]
    assert twice.decode([256, 257]) == "abab"
    pieces = Tokenizer.from_metadata(sentencepiece([("a", 0.0), ("a", 0.0), ("b", 0.0)]))
    assert pieces.encode("ab", add_bos=False)[-2:] == [260, 261]
    assert pieces.decode([259, 260]) == "aa"


def test_empty_and_unprintable_tokens_do_no_harm() -> None:
    odd = ["", "\0", "\ud800", "a" * 5000]
    for metadata in (
        byte_level([*BYTE_CHARACTERS, *odd]),
        byte_level(BYTE_CHARACTERS, special=odd, user_defined=["\0\0"]),
        sentencepiece([(text, 0.0) for text in ["▁", *odd]]),
    ):
        tokenizer = Tokenizer.from_metadata(metadata)
        ids = tokenizer.encode("a\0b", add_bos=False, parse_special=True)
        assert tokenizer.decode(ids, skip_special=False) == "a\0b"
        for token_id in range(tokenizer.vocab_size):
            tokenizer.piece(token_id)


def test_an_endless_sentencepiece_token_is_refused() -> None:
    with pytest.raises(GGUFError, match=r"^some\.gguf: sentencepiece refuses .* too long"):
        Tokenizer.from_metadata(sentencepiece([("a" * 100_000, 0.0)]), source="some.gguf")


def test_byte_tokens_are_known_without_types() -> None:
    metadata = small_sentencepiece()
    del metadata["tokenizer.ggml.token_type"], metadata["tokenizer.ggml.scores"]
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.decode(tokenizer.encode("é hello")) == "é hello"


def test_a_flag_without_its_token_is_dropped_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        tokenizer = Tokenizer.from_metadata(small_byte_level(add_bos_token=True))
    assert not tokenizer.add_bos
    assert "add_bos_token is set, but there is no such token" in caplog.text


@pytest.mark.parametrize("name", sorted(_BY_NAME))
def test_every_expression_compiles_and_loses_nothing(name: str) -> None:
    text = "Hello, 12345 wörld's \r\n\n  ½ 你好 ａｂｃ …!? \t\n "
    words = library_pre_tokenizer(pre_tokenizer(name)).pre_tokenize_str(text)
    byte_of = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}
    assert bytes(byte_of[c] for word, _ in words for c in word).decode() == text


@pytest.mark.parametrize(
    ("architecture", "name"), [("falcon", "falcon"), ("gptneox", "gpt-2"), ("llama", "default")]
)
def test_old_files_are_cut_as_their_architecture_does(architecture: str, name: str) -> None:
    assert pre_tokenizer(None, architecture) == pre_tokenizer(name)
    assert pre_tokenizer("gpt-2", architecture) == pre_tokenizer("gpt-2")


@pytest.mark.parametrize(("name", "expected"), [("glm4", [257]), ("chatglm-bpe", [97, 256])])
def test_some_take_a_word_whole_that_merges_do_not_reach(name: str, expected: list[int]) -> None:
    metadata = byte_level([*BYTE_CHARACTERS, "bc", "abc"], ["b c"], keys={"pre": name})
    assert Tokenizer.from_metadata(metadata).encode("abc") == expected
