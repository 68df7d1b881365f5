"""Special tokens, BOS and EOS, bytes that are no UTF-8, decoding: the rules one by one."""

import logging
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import pre_tokenizers

from powerinfer.errors import GGUFError, TokenizerError
from powerinfer.gguf import open_gguf, write_gguf
from powerinfer.tokenizer import Tokenizer
from powerinfer.tokenizer.pieces import BYTE_CHARACTERS
from powerinfer.tokenizer.pre_tokenizers import pre_tokenizer
from tokenizer_metadata import (
    CONTROL,
    USER_DEFINED,
    byte_level,
    gguf_metadata,
    small_byte_level,
    small_sentencepiece,
)

END, TOOL = 264, 265


@pytest.fixture
def bytewise() -> Tokenizer:
    return Tokenizer.from_metadata(small_byte_level(pre="gpt-2"))


@pytest.fixture
def pieces() -> Tokenizer:
    return Tokenizer.from_metadata(small_sentencepiece())


def _ids(tokenizer: Tokenizer, *texts: str) -> list[int]:
    by_piece = {tokenizer.piece(index): index for index in range(259, tokenizer.vocab_size)}
    return [by_piece[text] for text in texts]


def test_control_tokens_in_text_are_text_unless_asked_for(bytewise: Tokenizer) -> None:
    plain = bytewise.encode("hello<|end|>")
    assert END not in plain
    assert bytewise.decode(plain) == "hello<|end|>"
    assert bytewise.encode("hello<|end|>hello", parse_special=True) == [259, END, 259]


def test_user_defined_tokens_are_always_matched(bytewise: Tokenizer) -> None:
    assert bytewise.encode("hello<tool>hello") == [259, TOOL, 259]
    assert bytewise.decode([259, TOOL]) == "hello<tool>"


def test_the_longest_special_token_wins() -> None:
    metadata = byte_level(BYTE_CHARACTERS, user_defined=["<a", "<a>", "<a>b", "x"])
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.encode("<a><a>b<ax<") == [257, 258, 256, 259, ord("<")]


def test_a_space_is_put_in_front_of_text_and_after_special_tokens(pieces: Tokenizer) -> None:
    hello = _ids(pieces, " hello")
    assert pieces.encode("hello", add_bos=False) == hello
    assert pieces.encode("hello</s>hello", add_bos=False, parse_special=True) == [
        *hello,
        2,
        *hello,
    ]
    assert pieces.encode("", add_bos=False) == []


def test_a_file_can_switch_the_space_off() -> None:
    tokenizer = Tokenizer.from_metadata(small_sentencepiece(add_space_prefix=False))
    assert tokenizer.encode("hello", add_bos=False) == _ids(tokenizer, "hello")
    assert tokenizer.decode(_ids(tokenizer, " hello")) == " hello"


def test_byte_level_text_gets_no_space_whatever_the_file_says() -> None:
    tokenizer = Tokenizer.from_metadata(small_byte_level(add_space_prefix=True))
    assert tokenizer.encode("hello") == [259]
    assert tokenizer.decode(tokenizer.encode(" hello")) == " hello"


def test_only_the_space_that_was_added_is_taken_away(pieces: Tokenizer) -> None:
    hello = _ids(pieces, " hello")
    assert pieces.decode([1, *hello, *hello]) == "hello hello"
    assert pieces.decode(pieces.encode("  hello")) == "  hello"


def test_a_stream_after_a_prompt_keeps_the_space_of_its_first_token(pieces: Tokenizer) -> None:
    world = _ids(pieces, " world")[0]
    assert pieces.new_stream(pieces.encode("hello")).push(world) == " world"
    assert pieces.new_stream([1]).push(world) == "world"
    assert pieces.new_stream().push(world) == "world"


def test_a_stream_never_splits_a_character(pieces: Tokenizer) -> None:
    stream = pieces.new_stream([1, 259])
    crab = [3 + byte for byte in "🦀".encode()]
    assert [stream.push(token_id) for token_id in crab] == ["", "", "", "🦀"]
    assert [stream.push(token_id) for token_id in crab[:2]] == ["", ""]
    assert stream.finish() == "\ufffd"
    assert stream.finish() == ""


def test_special_tokens_print_nothing_unless_asked_for(pieces: Tokenizer) -> None:
    ids = [1, *_ids(pieces, " hello"), 2, 0]
    assert pieces.decode(ids) == "hello"
    assert pieces.decode(ids, skip_special=False) == "<s>hello</s><unk>"
    assert [pieces.is_special(token_id) for token_id in (0, 1, 2, 3, 259)] == [True] * 3 + [
        False
    ] * 2


@pytest.mark.parametrize("wrong", [-1, 10**6])
def test_ids_outside_the_vocabulary_are_refused(bytewise: Tokenizer, wrong: int) -> None:
    for use in (bytewise.piece, bytewise.is_special, bytewise.new_stream().push):
        with pytest.raises(TokenizerError, match=f"token id {wrong} is outside .* 0 to 265"):
            use(wrong)
    with pytest.raises(TokenizerError, match="outside the vocabulary"):
        bytewise.decode([1, wrong])


def test_ids_may_be_numpy_integers(bytewise: Tokenizer) -> None:
    assert bytewise.decode(np.array([259, 262], dtype=np.int32)) == "hello wor"


def test_broken_utf8_is_written_with_byte_tokens(bytewise: Tokenizer, pieces: Tokenizer) -> None:
    content = b"\xffhello\xe2\x82"
    for tokenizer in (bytewise, pieces):
        assert tokenizer.decode_bytes(tokenizer.encode(content)) == content
    assert pieces.encode("\udcff", add_bos=False) == [259, 3 + 0xFF]
    assert pieces.decode_bytes(pieces.encode("\ud800")) == b"\xed\xa0\x80"


def test_without_byte_tokens_the_unknown_token_stands_in() -> None:
    metadata = byte_level(["<unk>", "a", "b"], special=[], keys={"unknown_token_id": 0})
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.encode("abc") == [1, 2, 0]
    assert tokenizer.encode(b"a\xff") == [1, 0]
    del metadata["tokenizer.ggml.unknown_token_id"]
    assert Tokenizer.from_metadata(metadata).encode(b"acb\xff") == [1, 2]


def test_sentencepiece_without_byte_tokens() -> None:
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "▁", "a", "<0x42>"],
        "tokenizer.ggml.token_type": [2, 3, 3, 1, 1, 6],
    }
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.encode("aéB") == [1, 3, 4, 0, 0, 5]
    assert tokenizer.decode([1, 3, 4, 5]) == "aB"


def test_bos_and_eos_follow_the_file_and_the_caller() -> None:
    llama = Tokenizer.from_metadata(small_sentencepiece())
    assert (llama.bos_id, llama.eos_id, llama.add_bos, llama.add_eos) == (1, 2, True, False)
    assert llama.encode("") == [1]
    assert llama.encode("", add_bos=False) == []
    assert llama.encode("", add_eos=True) == [1, 2]
    silent = Tokenizer.from_metadata(small_sentencepiece(add_bos_token=False, add_eos_token=True))
    assert (silent.add_bos, silent.add_eos) == (False, True)
    assert silent.encode("", add_bos=True) == [1]


def test_byte_level_files_have_no_bos_by_default(bytewise: Tokenizer) -> None:
    assert bytewise.bos_id is None
    assert bytewise.encode("hello") == [259]
    with pytest.raises(TokenizerError, match="no BOS token"):
        bytewise.encode("hello", add_bos=True)


def test_llama3_expects_bos_where_the_file_does_not_say() -> None:
    named = Tokenizer.from_metadata(small_byte_level(pre="llama-bpe", bos_token_id=END))
    assert named.encode("hello") == [END, 259]
    unnamed = Tokenizer.from_metadata(small_byte_level(pre="llama-bpe"))
    assert not unnamed.add_bos


def test_token_11_is_the_default_end_only_where_it_can_be() -> None:
    tokens = [f"t{index}" for index in range(11)]
    with_end = Tokenizer.from_metadata(byte_level([*tokens, "<|endoftext|>"]))
    assert (with_end.bos_id, with_end.eos_id, with_end.add_bos) == (11, 11, False)
    assert with_end.is_special(11)
    without = Tokenizer.from_metadata(byte_level([*tokens, "t11"]))
    assert (without.bos_id, without.eos_id, without.eog_ids) == (None, None, frozenset())


def test_phi3_swallows_white_space_after_its_special_tokens(data_dir: Path) -> None:
    path = data_dir / "vocab" / "ggml" / "ggml-vocab-phi-3.gguf"
    metadata = {**gguf_metadata(path), "general.name": "Phi-3 mini"}
    phi = Tokenizer.from_metadata(metadata)
    other = Tokenizer.from_metadata({**metadata, "general.name": "other"})
    text = "<|user|>\n Hi<|end|>\n<s> Hi"
    assert phi.encode(text, add_bos=False, parse_special=True) == [
        32010,
        6324,
        32007,
        1,
        29871,
        6324,
    ]
    blank, newline, hi = 29871, 13, 6324
    assert other.encode(text, add_bos=False, parse_special=True) == [
        *(32010, blank, newline, hi, 32007, blank, newline, 1, blank, hi)
    ]
    # </s> is user-defined there: found in any text.
    assert phi.encode("</s>", add_bos=False) == [2]
    assert phi.eog_ids == {32000, 32007}


def test_a_word_that_is_a_token_is_taken_whole_in_llama3() -> None:
    # No merge leads to "abc": only taking the word whole does.
    tokens = [*BYTE_CHARACTERS, "ab", "abc"]
    keys = {"pre": "llama-bpe"}
    whole = Tokenizer.from_metadata(byte_level(tokens, ["a b"], keys=keys))
    assert whole.encode("abc") == [257]
    merged = Tokenizer.from_metadata(byte_level(tokens, ["a b"], keys={"pre": "qwen2"}))
    assert merged.encode("abc") == [256, ord("c")]


def test_pieces_are_shown_with_their_spaces(bytewise: Tokenizer, pieces: Tokenizer) -> None:
    assert bytewise.piece(262) == " wor"
    assert bytewise.piece(END) == "<|end|>"
    assert pieces.piece(3 + 0x41) == "A"
    assert pieces.piece_bytes(3 + 0xE2) == b"\xe2"
    assert pieces.vocab_size == len(small_sentencepiece()["tokenizer.ggml.tokens"])


def test_a_file_with_nothing_but_a_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.gguf"
    metadata = small_sentencepiece()
    for key in ("scores", "token_type"):
        dtype = np.float32 if key == "scores" else np.int32
        metadata[f"tokenizer.ggml.{key}"] = np.array(metadata[f"tokenizer.ggml.{key}"], dtype)
    write_gguf(path, {"general.architecture": "llama", **metadata}, [])
    tokenizer = Tokenizer.from_gguf(open_gguf(path))
    assert tokenizer.decode(tokenizer.encode("hello world")) == "hello world"


def test_long_texts_without_any_boundary(bytewise: Tokenizer, pieces: Tokenizer) -> None:
    for tokenizer in (bytewise, pieces):
        for text in ("a" * 100_000, " " * 100_000, "\n" * 100_000, "é" * 100_000):
            assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.slow
def test_a_run_of_blanks_longer_than_any_backtracking_limit() -> None:
    # Oniguruma gives up after ten million steps back.
    (stage,) = pre_tokenizer("llama-bpe").stages
    split = pre_tokenizers.Split(tokenizers.Regex(stage), "isolated")
    assert len(split.pre_tokenize_str(" " * 11_000_000)) == 1


def test_unknown_pre_tokenizer_is_the_default_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        unknown = Tokenizer.from_metadata(small_byte_level(pre="no-such"))
    assert "pre-tokenizer 'no-such' is unknown" in caplog.text
    default = Tokenizer.from_metadata(small_byte_level(pre="default"))
    text = "hello 12345 ... world's"
    assert unknown.encode(text) == default.encode(text)


def test_types_of_special_tokens() -> None:
    assert (int(CONTROL), int(USER_DEFINED)) == (3, 4)
    assert issubclass(TokenizerError, GGUFError)


def test_nothing_is_known_of_lengths_where_text_is_dropped() -> None:
    """A prompt must not be refused for characters that become no token."""
    writes_no_b = Tokenizer.from_metadata(byte_level([c for c in BYTE_CHARACTERS if c != "b"]))
    assert writes_no_b.encode("a" + "b" * 100) == writes_no_b.encode("a")
    assert writes_no_b.least_tokens("b" * 10_000) == 0
    swallows = Tokenizer.from_metadata({**small_byte_level(), "general.name": "Phi-3"})
    assert len(swallows.encode("<tool>" + " " * 100)) == 1
    assert swallows.least_tokens("<tool>" + " " * 10_000) == 0
