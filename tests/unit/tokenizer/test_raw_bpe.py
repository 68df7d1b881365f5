"""Gemma 4's kind of vocabulary against the tokenizers library: a model trained here."""

from functools import cache
from typing import Any

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers, trainers

from powerinfer.errors import TokenizerError
from powerinfer.tokenizer import Tokenizer
from tokenizer_metadata import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, Metadata

SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>", "<|tool_response>"]
VISIBLE = ["<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>']
BYTES = [f"<0x{value:02X}>" for value in range(256)]
WORDS = "the cat sat on the mat and the hat that Tom's café has at 12 or 345 naïve 你好 世界"
SAMPLES = [
    "the cat sat on the mat",
    "  two,   three and    four     spaces ",
    "a\nb\n\nc\n\n\n\nd\n \n",
    "naïve café 你好 🦙 \x00\ufffd",
    "tab\tand\t\ttabs",
    "",
    " ",
    "\n",
    "\n" * 9,
]


def _lines() -> list[str]:
    words = WORDS.split()
    lines = [
        " ".join(words[(start * step + step) % len(words)] for step in range(1, 9))
        for start in range(200)
    ]
    return [*lines, "\n\n\n\n", "\n\n", "a  b    c"]


@cache
def _library() -> Any:
    """As Gemma 4's tokenizer.json: spaces replaced, nothing split, bytes as fallback."""
    trained = tokenizers.Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    # Only while training: the library would learn tokens of whole sentences.
    trained.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=[*SPECIAL, *VISIBLE, *BYTES], show_progress=False
    )
    trained.train_from_iterator(_lines(), trainer)
    model = models.BPE(trained.get_vocab(), _merges(trained), byte_fallback=True, unk_token="<unk>")
    whole = tokenizers.Tokenizer(model)
    whole.normalizer = trained.normalizer
    return whole


def _merges(trained: Any) -> list[tuple[str, str]]:
    import json

    pairs = json.loads(trained.to_str())["model"]["merges"]
    halves = (pair.split(" ", 1) if isinstance(pair, str) else pair for pair in pairs)
    return [(first, second) for first, second in halves]


@cache
def _metadata() -> Metadata:
    library = _library()
    vocab = library.get_vocab()
    tokens = sorted(vocab, key=vocab.__getitem__)
    types = [NORMAL] * len(tokens)
    for kind, names in ((CONTROL, SPECIAL), (USER_DEFINED, VISIBLE), (BYTE, BYTES)):
        for name in names:
            types[vocab[name]] = kind
    types[vocab["<unk>"]] = UNKNOWN
    types[vocab["<|tool_response>"]] = USER_DEFINED
    return {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [int(kind) for kind in types],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in _merges(library)],
        "tokenizer.ggml.bos_token_id": vocab["<bos>"],
        "tokenizer.ggml.eos_token_id": vocab["<eos>"],
        "tokenizer.ggml.unknown_token_id": vocab["<unk>"],
        "tokenizer.ggml.add_bos_token": False,
    }


@cache
def _tokenizer() -> Tokenizer:
    return Tokenizer.from_metadata(_metadata())


def _expected(text: str) -> list[int]:
    ids: list[int] = _library().encode(text, add_special_tokens=False).ids
    return ids


@given(st.text(alphabet=st.sampled_from("the catson \n12é你🦙\t▁<>"), max_size=60))
@example(SAMPLES[1])
@example(SAMPLES[2])
@example(SAMPLES[3])
def test_ids_are_the_librarys(text: str) -> None:
    assert _tokenizer().encode(text, add_bos=False) == _expected(text)


@pytest.mark.parametrize("text", SAMPLES)
def test_text_comes_back(text: str) -> None:
    tokenizer = _tokenizer()
    ids = tokenizer.encode(text)
    assert ids[0] == tokenizer.bos_id
    assert tokenizer.decode(ids) == text


def test_long_lines_are_cut_where_nothing_changes() -> None:
    text = "the cat sat on  the mat " * 3000
    assert _tokenizer().encode(text, add_bos=False) == _expected(text)


def test_bytes_that_are_no_text_come_back() -> None:
    tokenizer = _tokenizer()
    given = b"\xff\xfethe cat\x80"
    assert tokenizer.decode_bytes(tokenizer.encode(given)) == given


def test_a_run_of_newlines_with_a_token_is_one() -> None:
    """Even if no merges make it, as llama.cpp does."""
    metadata = _metadata()
    tokens = [*metadata["tokenizer.ggml.tokens"], "\n" * 7]
    types = [*metadata["tokenizer.ggml.token_type"], int(NORMAL)]
    changed = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    tokenizer = Tokenizer.from_metadata(metadata | changed)
    assert tokenizer.encode("a" + "\n" * 7 + "b", add_bos=False)[1] == len(tokens) - 1


def test_marks_are_shown_and_ends_end() -> None:
    tokenizer, vocab = _tokenizer(), _library().get_vocab()
    text = '<|tool_call>call:f{a:<|"|>b<|"|>}<tool_call|>'
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert {vocab["<turn|>"], vocab["<|tool_response>"], vocab["<eos>"]} <= tokenizer.eog_ids
    # A user's text can neither end its turn nor begin a result.
    ids = tokenizer.encode("<turn|><|tool_response>", add_bos=False)
    assert not {vocab["<turn|>"], vocab["<|tool_response>"]} & set(ids)


def test_bytes_without_tokens_are_unknown() -> None:
    metadata = _metadata()
    tokens = [text.replace("<0xF0>", "<gone>") for text in metadata["tokenizer.ggml.tokens"]]
    tokenizer = Tokenizer.from_metadata(metadata | {"tokenizer.ggml.tokens": tokens})
    unknown = metadata["tokenizer.ggml.unknown_token_id"]
    assert tokenizer.encode("🦙", add_bos=False)[0] == unknown


def test_a_vocabulary_without_merges_is_refused() -> None:
    metadata = {key: value for key, value in _metadata().items() if not key.endswith("merges")}
    with pytest.raises(TokenizerError, match=r"tokenizer\.ggml\.merges is missing"):
        Tokenizer.from_metadata(metadata)
