"""Gemma's kind of vocabulary against SentencePiece: a model trained here, as GGUF keys.

Like Gemma's it puts no space in front, falls back to bytes, has its special tokens in the order
pad, end, begin, unknown, and has tokens for runs of spaces and newlines and for HTML.
"""

import io
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import sentencepiece
from hypothesis import example, given
from hypothesis import strategies as st

from powerinfer.tokenizer import Tokenizer
from tokenizer_metadata import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, Metadata

TURNS = ["<start_of_turn>", "<end_of_turn>"]
ADDED = ["\n", "\n\n", "\n\n\n", "\t", "▁▁", "▁▁▁", "▁▁▁▁", "<table>", "</s>", "[multimodal]"]
WORDS = "the cat sat on the mat and the hat that Tom's café has at 12 or 345 naïve 你好 世界"
SAMPLES = [
    "the cat sat on the mat",
    "  two,   three and    four     spaces ",
    "a\nb\n\nc\n\n\n\nd\n \n",
    "x <table><b>y</b></s></table> z",
    "naïve café 你好 🦙 \x00\ufffd",
    "tab\tand\t\ttabs",
    "12345 + 678 = 13023",
    "",
    " ",
    "the",
]


def _sentences() -> Iterator[str]:
    words = WORDS.split()
    for start in range(200):
        yield " ".join(words[(start * step + step) % len(words)] for step in range(1, 9))


@cache
def _library() -> Any:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=_sentences(),
        model_writer=model,
        model_type="bpe",
        vocab_size=380,
        byte_fallback=True,
        split_digits=True,
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        normalization_rule_name="identity",
        hard_vocab_limit=False,
        user_defined_symbols=[*TURNS, *ADDED],
        minloglevel=2,
        num_threads=1,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        pad_piece="<pad>",
        eos_piece="<eos>",
        bos_piece="<bos>",
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


@cache
def _metadata() -> Metadata:
    """As llama.cpp's converter writes it: user-defined tokens have spaces, turns are control."""
    library = _library()
    texts, types = [], []
    for token_id in range(library.GetPieceSize()):
        text, kind = library.IdToPiece(token_id), NORMAL
        if library.IsUnknown(token_id):
            kind = UNKNOWN
        elif library.IsControl(token_id) or text in TURNS:
            kind = CONTROL
        elif library.IsByte(token_id):
            kind = BYTE
        elif text in ADDED:
            kind, text = USER_DEFINED, text.replace("▁", " ")
        texts.append(text)
        types.append(int(kind))
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.scores": [library.GetScore(token_id) for token_id in range(len(texts))],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": False,
    }


@cache
def _gemma() -> Tokenizer:
    return Tokenizer.from_metadata(_metadata())


def test_the_vocabulary_has_what_gemmas_has() -> None:
    library = _library()
    assert [library.IdToPiece(token_id) for token_id in range(6)] == [
        *("<pad>", "<eos>", "<bos>", "<unk>"),
        *TURNS,
    ]
    merged = [text for text in _metadata()["tokenizer.ggml.tokens"] if text.startswith("▁th")]
    assert merged
    assert len({library.GetScore(i) for i in range(library.GetPieceSize())}) > 20


@pytest.mark.parametrize("text", SAMPLES)
def test_samples_equal_sentencepiece(text: str) -> None:
    ids = _gemma().encode(text, add_bos=False)
    assert ids == _library().EncodeAsIds(text)
    assert _gemma().decode(ids) == text
    assert _gemma().encode(text) == [2, *ids]


LETTERS = st.sampled_from(
    [*WORDS, " ", "  ", "   ", "\n", "\n\n", "\t", "<", "table>", "</s>", "é"]
)
TEXTS = st.lists(LETTERS | st.characters(codec="utf-8", exclude_characters="▁"), max_size=60).map(
    "".join
)


@given(text=TEXTS)
@example(text="     " * 7 + "\n" * 7 + "<table></s>" + " the cat")
@example(text="[multimodal")
def test_any_text_equals_sentencepiece(text: str) -> None:
    ids = _gemma().encode(text, add_bos=False)
    if not any(turn in text for turn in TURNS):
        assert ids == _library().EncodeAsIds(text)
    assert _gemma().decode(ids) == text


@given(text=st.text("the cat", max_size=30))
def test_the_best_score_merges_first_and_of_equals_the_leftmost(text: str) -> None:
    metadata = _metadata()
    pieces = metadata["tokenizer.ggml.tokens"]
    ids = {piece: token_id for token_id, piece in enumerate(pieces)}
    symbols = list(text.replace(" ", "▁"))
    while True:
        pairs = [a + b for a, b in pairwise(symbols)]
        known = [(-_library().GetScore(ids[p]), at) for at, p in enumerate(pairs) if p in ids]
        if not known:
            break
        _, at = min(known)
        symbols[at : at + 2] = [pairs[at]]
    # Runs of spaces are tokens of their own here, which no merge makes.
    if "  " not in text:
        assert _gemma().encode(text, add_bos=False) == [ids[symbol] for symbol in symbols]


def test_turns_and_ends() -> None:
    tokenizer = _gemma()
    assert tokenizer.eog_ids == {1, 5}
    html = tokenizer.encode("</s>", add_bos=False)
    assert len(html) == 1
    assert not tokenizer.is_special(html[0])
    prompt = "<bos><start_of_turn>user\nthe cat<end_of_turn>\n"
    ids = tokenizer.encode(prompt, add_bos=False, parse_special=True)
    assert ids[:2] == [2, 4]
    assert ids[-2:] == [5, tokenizer.encode("\n", add_bos=False)[0]]
    assert tokenizer.decode(ids) == "user\nthe cat\n"
    assert tokenizer.decode(ids, skip_special=False) == prompt
    assert 5 not in tokenizer.encode("<end_of_turn>")


def test_bytes_that_no_piece_has_are_written_one_by_one() -> None:
    tokenizer, llama_bytes = _gemma(), "🦙".encode()
    ids = tokenizer.encode("🦙", add_bos=False)
    assert [tokenizer.piece_bytes(token_id) for token_id in ids] == [
        bytes((b,)) for b in llama_bytes
    ]
    assert tokenizer.decode_bytes(tokenizer.encode(b"\xff\xfea")) == b"\xff\xfea"
    stream = tokenizer.new_stream()
    assert [stream.push(token_id) for token_id in ids] == ["", "", "", "🦙"]
