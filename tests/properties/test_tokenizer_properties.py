"""What must hold for every vocabulary and every text, and our results against naive algorithms."""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import regex
import sentencepiece
from hypothesis import example, given
from hypothesis import strategies as st

from powerinfer.errors import PowerInferError
from powerinfer.tokenizer import Tokenizer, byte_level, sentencepiece_bpe
from powerinfer.tokenizer.pieces import BYTE_CHARACTERS
from tokenizer_metadata import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    Metadata,
    gguf_metadata,
    small_byte_level,
    small_sentencepiece,
)
from tokenizer_metadata import (
    sentencepiece as sentencepiece_metadata,
)

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
TEXTS = st.text(
    st.one_of(
        st.sampled_from("abcdehlorw  \n\t.,'1é½你👍"),
        st.characters(codec="utf-8", exclude_categories=("Cn", "Co", "Cs")),
    ),
    max_size=60,
)
# U+2581 is SentencePiece's own sign for a space and comes back as one.
ROUND_TRIPS = st.binary(max_size=40) | TEXTS.map(str.encode)
WORDS = st.text(st.sampled_from("abcdehlorw "), max_size=60)

SMALL = {
    "byte-level": Tokenizer.from_metadata(small_byte_level(pre="gpt-2")),
    "llama 3": Tokenizer.from_metadata(small_byte_level(pre="llama-bpe", bos_token_id=264)),
    "sentencepiece": Tokenizer.from_metadata(small_sentencepiece()),
    "no space in front": Tokenizer.from_metadata(small_sentencepiece(add_space_prefix=False)),
}
# What single tokens stand for, the longest of them, and what none does.
LONG = [
    b"hello",
    b" wor",
    b" ",
    "▁".encode(),
    b"<|end|>",
    b"<tool>",
    b"</s>",
    b"\xff",
    "é".encode(),
]
EVERY = pytest.mark.parametrize("name", SMALL)


@EVERY
@given(content=ROUND_TRIPS)
@example(content=b" \xff\xfe hello\xc3")
def test_bytes_come_back(name: str, content: bytes) -> None:
    tokenizer = SMALL[name]
    content = content.replace("▁".encode(), b"")
    assert tokenizer.decode_bytes(tokenizer.encode(content)) == content
    assert tokenizer.decode(tokenizer.encode(content)) == content.decode(errors="replace")


@EVERY
@given(data=st.data())
def test_stream_equals_batch(name: str, data: st.DataObject) -> None:
    tokenizer = SMALL[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=30))
    stream = tokenizer.new_stream()
    parts = [stream.push(token_id) for token_id in ids]
    assert "".join(parts) + stream.finish() == tokenizer.decode(ids)
    for part in parts:
        part.encode()


@EVERY
@given(text=TEXTS, data=st.data())
def test_stream_continues_a_prompt(name: str, text: str, data: st.DataObject) -> None:
    tokenizer = SMALL[name]
    ids = tokenizer.encode(text.replace("▁", ""))
    cut = data.draw(st.integers(0, len(ids)))
    prompt, rest = ids[:cut], ids[cut:]
    stream = tokenizer.new_stream(prompt)
    continued = "".join(stream.push(token_id) for token_id in rest) + stream.finish()
    # A cut inside a character leaves its first bytes with the prompt.
    whole = tokenizer.decode(prompt)
    assert tokenizer.decode(ids) in (whole + continued, whole.rstrip("\ufffd") + continued)


@EVERY
@given(text=TEXTS)
def test_stretches_change_nothing(name: str, text: str) -> None:
    tokenizer = SMALL[name]
    whole = tokenizer.encode(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(byte_level, "_STRETCH", 3)
        patch.setattr(sentencepiece_bpe, "_STRETCH", 3)
        assert tokenizer.encode(text) == whole


@EVERY
@given(content=ROUND_TRIPS, at_most=st.integers(0, 20))
def test_stopping_early_gives_the_first_tokens(name: str, content: bytes, at_most: int) -> None:
    tokenizer = SMALL[name]
    whole = tokenizer.encode(content, parse_special=True)
    with pytest.MonkeyPatch.context() as patch:
        for encoder in (byte_level, sentencepiece_bpe):
            patch.setattr(encoder, "_STRETCH", 3)
        first = tokenizer.encode(content, parse_special=True, at_most=at_most)
    assert first == whole[: len(first)]
    assert len(first) > at_most or first == whole


@EVERY
@given(content=ROUND_TRIPS | st.lists(st.sampled_from(LONG), max_size=30).map(b"".join))
def test_no_text_has_fewer_tokens_than_its_length_says(name: str, content: bytes) -> None:
    tokenizer = SMALL[name]
    for text in (content, content.decode("utf-8", "surrogateescape")):
        num_tokens = len(tokenizer.encode(text, add_bos=False, parse_special=True))
        assert tokenizer.least_tokens(text) <= num_tokens
    if len(content) > 1000:
        assert tokenizer.least_tokens(content) > 0


def _naive_merges(symbols: list[str], rank: Any) -> list[str]:
    """Merge the adjacent pair with the lowest rank, leftmost first, until none has one."""
    while True:
        ranked = [
            (rank(a, b), index)
            for index, (a, b) in enumerate(pairwise(symbols))
            if rank(a, b) is not None
        ]
        if not ranked:
            return symbols
        at = min(ranked)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]


def _naive_byte_level(metadata: Metadata, text: str) -> list[int]:
    ids = {token: index for index, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    order = {merge: index for index, merge in enumerate(metadata["tokenizer.ggml.merges"])}
    found: list[int] = []
    for word in regex.findall(GPT2, text):
        symbols = [BYTE_CHARACTERS[byte] for byte in word.encode()]
        merged = _naive_merges(symbols, lambda a, b: order.get(f"{a} {b}"))
        found += [ids[symbol] for symbol in merged]
    return found


def _naive_sentencepiece(pieces: Sequence[tuple[str, float]], text: str) -> list[int]:
    scores = dict(pieces)
    ids = {piece: 259 + index for index, (piece, _) in enumerate(pieces)}
    symbols = list((" " + text).replace(" ", "▁")) if text else []
    merged = _naive_merges(symbols, lambda a, b: -scores[a + b] if a + b in scores else None)
    found: list[int] = []
    for symbol in merged:
        found += [ids[symbol]] if symbol in ids else [3 + byte for byte in symbol.encode()]
    return found


@given(text=WORDS | TEXTS)
def test_byte_level_equals_the_naive_algorithm(text: str) -> None:
    metadata = small_byte_level(pre="gpt-2")
    assert SMALL["byte-level"].encode(text) == _naive_byte_level(metadata, text)


PIECES = st.lists(
    st.tuples(st.text("ab▁", min_size=1, max_size=5), st.sampled_from([-1.0, -2.0, -3.0])),
    unique_by=lambda piece: piece[0],
    max_size=25,
)


@given(pieces=PIECES, text=st.text("abc ", max_size=30))
@example(
    pieces=[(piece, 0.0) for piece in ("a", "b", "ab", "ba", "aba")],
    text="abababa",
)
def test_equal_scores_merge_leftmost(pieces: list[tuple[str, float]], text: str) -> None:
    tokenizer = Tokenizer.from_metadata(sentencepiece_metadata(pieces))
    assert tokenizer.encode(text, add_bos=False) == _naive_sentencepiece(pieces, text)


@cache
def _gpt2(data: Path) -> tuple[Tokenizer, Metadata]:
    metadata = gguf_metadata(data / "vocab" / "ggml" / "ggml-vocab-gpt-2.gguf")
    return Tokenizer.from_metadata(metadata), metadata


@given(text=TEXTS)
def test_gpt2_equals_the_naive_algorithm(data_dir: Path, text: str) -> None:
    tokenizer, metadata = _gpt2(data_dir)
    assert tokenizer.encode(text) == _naive_byte_level(metadata, text)


MODELS = (
    "llama2/tokenizer.model",
    "mistral/tokenizer.model.v1",
    "mistral/mistral_instruct_tokenizer_240323.model.v3",
)


@cache
def _model(path: Path) -> tuple[Tokenizer, Any]:
    """A tokenizer from what the library says of each piece, and the library on the file itself."""
    library = sentencepiece.SentencePieceProcessor(model_file=str(path))
    count = library.get_piece_size()

    def kind(token_id: int) -> int:
        if library.IsByte(token_id):
            return BYTE
        if library.IsControl(token_id):
            return CONTROL
        return UNKNOWN if library.IsUnknown(token_id) else NORMAL

    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [library.IdToPiece(token_id) for token_id in range(count)],
        "tokenizer.ggml.scores": [library.GetScore(token_id) for token_id in range(count)],
        "tokenizer.ggml.token_type": [int(kind(token_id)) for token_id in range(count)],
    }
    return Tokenizer.from_metadata(metadata), library


@pytest.mark.parametrize("name", MODELS)
@given(text=TEXTS)
def test_equals_the_original_model(data_dir: Path, name: str, text: str) -> None:
    tokenizer, library = _model(data_dir / "vocab" / name)
    assert tokenizer.encode(text, add_bos=False) == library.EncodeAsIds(text)
    assert tokenizer.decode(tokenizer.encode(text)) == library.DecodeIds(library.EncodeAsIds(text))


KEYS = (
    *("model", "pre", "tokens", "scores", "token_type", "merges", "bos_token_id", "eos_token_id"),
    *("unknown_token_id", "eot_token_id", "add_bos_token", "add_space_prefix"),
)
ODD_TEXT = st.text(max_size=8) | st.sampled_from(
    ["", " ", "\0", "<0x0A>", "<|eot_id|>", "a" * 9000]
)
ODD_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64),
    st.floats(),
    ODD_TEXT,
    st.lists(ODD_TEXT, max_size=6),
    st.lists(st.integers(-5, 300), max_size=6),
    st.lists(st.floats(), max_size=6),
    st.lists(st.lists(st.integers(), max_size=2), max_size=2),
)


@pytest.mark.parametrize("build", [small_byte_level, small_sentencepiece])
@given(changes=st.dictionaries(st.sampled_from(KEYS), ODD_VALUES, max_size=4), text=TEXTS)
def test_absurd_vocabularies_load_or_are_refused(
    build: Any, changes: dict[str, Any], text: str
) -> None:
    metadata = build()
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    try:
        tokenizer = Tokenizer.from_metadata(metadata)
        ids = tokenizer.encode(text, parse_special=True)
    except PowerInferError:
        return
    assert all(0 <= token_id < tokenizer.vocab_size for token_id in ids)
    tokenizer.decode(ids, skip_special=False)


@pytest.mark.parametrize("build", [small_byte_level, small_sentencepiece])
@given(data=st.data())
def test_changed_elements_load_or_are_refused(build: Any, data: st.DataObject) -> None:
    metadata = build()
    arrays = {key: list(value) for key, value in metadata.items() if isinstance(value, list)}
    for key in data.draw(st.lists(st.sampled_from(sorted(arrays)), max_size=5)):
        at = data.draw(st.integers(0, len(arrays[key]) - 1))
        kind = ODD_TEXT if isinstance(arrays[key][0], str) else st.integers(-1, 7) | st.floats()
        arrays[key][at] = data.draw(kind | st.sampled_from(arrays[key]))
    try:
        tokenizer = Tokenizer.from_metadata({**metadata, **arrays})
    except PowerInferError:
        return
    ids = tokenizer.encode("hello world <|end|> \x00\n", parse_special=True)
    assert all(0 <= token_id < tokenizer.vocab_size for token_id in ids)
