"""Vocabularies as GGUF metadata, for tests: small ones spelled out, large ones from data files."""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from powerinfer.gguf import open_gguf
from powerinfer.tokenizer.pieces import BYTE_CHARACTERS
from powerinfer.tokenizer.vocabulary import TokenType

Metadata = dict[str, Any]
_SEPARATOR = "\n__ggml_vocab_test__\n"
NORMAL, UNKNOWN, CONTROL = TokenType.NORMAL, TokenType.UNKNOWN, TokenType.CONTROL
USER_DEFINED, BYTE = TokenType.USER_DEFINED, TokenType.BYTE


def vector_strings(path: Path) -> list[str]:
    """The strings of a file such as llama.cpp has beside its vocabularies."""
    return path.read_bytes().decode().split(_SEPARATOR)


def vector_ids(path: Path) -> list[list[int] | None]:
    """Expected ids, one line for each string, None where nothing is known ("-")."""
    lines = path.read_text().split("\n")
    return [None if line == "-" else [int(number) for number in line.split()] for line in lines]


def gguf_metadata(path: Path, **changes: object) -> Metadata:
    """Metadata of a vocabulary-only file, with some `tokenizer.ggml` keys replaced."""
    changed = {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return {**open_gguf(path).metadata, **changed}


def byte_level(
    tokens: Sequence[str],
    merges: Sequence[str] = (),
    special: Sequence[str] = (),
    user_defined: Sequence[str] = (),
    keys: Mapping[str, object] = MappingProxyType({}),
) -> Metadata:
    """A ``gpt2`` vocabulary: plain tokens first, then control tokens, then user-defined ones."""
    types = [NORMAL] * len(tokens) + [CONTROL] * len(special) + [USER_DEFINED] * len(user_defined)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [*tokens, *special, *user_defined],
        "tokenizer.ggml.token_type": [int(kind) for kind in types],
        "tokenizer.ggml.merges": list(merges),
        **{f"tokenizer.ggml.{key}": value for key, value in keys.items()},
    }


def small_byte_level(**keys: object) -> Metadata:
    """All bytes, a few English merges, <|end|> (id 264) and a user-defined <tool> (id 265)."""
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d"]
    tokens = [*BYTE_CHARACTERS, *(merge.replace(" ", "") for merge in merges)]
    return byte_level(tokens, merges, ["<|end|>"], ["<tool>"], keys)


def sentencepiece(pieces: Sequence[tuple[str, float]], **keys: object) -> Metadata:
    """A ``llama`` vocabulary: <unk>, <s>, </s>, 256 bytes, then the pieces with their scores."""
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(pieces)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*texts, *(text for text, _ in pieces)],
        "tokenizer.ggml.scores": [0.0] * len(texts) + [score for _, score in pieces],
        "tokenizer.ggml.token_type": [int(kind) for kind in types],
        **{f"tokenizer.ggml.{key}": value for key, value in keys.items()},
    }


def small_sentencepiece(**keys: object) -> Metadata:
    """Single letters and a few words; the first piece has id 259."""
    words = ["▁", *"abcdehlorw", "ll", "he", "▁w", "or", "hell", "▁wor", "ld", "hello", "▁world"]
    words += ["▁▁", "▁hello", "▁▁▁▁"]
    return sentencepiece([(word, -float(rank)) for rank, word in enumerate(words)], **keys)


def llama3_metadata(data_dir: Path, pre: str = "llama-bpe") -> Metadata:
    """Llama 3 from its ranks, as a converter would write it: all splits of a token are merges."""
    tokens, merges = _llama3(data_dir / "vocab" / "llama3" / "tokenizer.model")
    reserved = iter(range(256))
    named = {0: "<|begin_of_text|>", 1: "<|end_of_text|>", 6: "<|start_header_id|>"}
    named |= {7: "<|end_header_id|>", 9: "<|eot_id|>"}
    special = [
        named.get(index) or f"<|reserved_special_token_{next(reserved)}|>" for index in range(256)
    ]
    keys = {"pre": pre, "bos_token_id": 128000, "eos_token_id": 128009}
    return byte_level(tokens, merges, special, keys=keys)


@cache
def _llama3(path: Path) -> tuple[Sequence[str], Sequence[str]]:
    """Tokens and merges of the file of ranks, which takes long to read."""
    lines = path.read_bytes().split(b"\n")
    ranks = {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in lines if line}
    return tuple(map(_in_byte_characters, ranks)), tuple(_merges_of_ranks(ranks))


def _merges_of_ranks(ranks: dict[bytes, int]) -> Iterator[str]:
    for token in ranks:
        cuts = ((token[:at], token[at:]) for at in range(1, len(token)))
        splits = [(ranks[a], ranks[b], a, b) for a, b in cuts if a in ranks and b in ranks]
        for _, _, left, right in sorted(splits):
            yield f"{_in_byte_characters(left)} {_in_byte_characters(right)}"


def _in_byte_characters(token: bytes) -> str:
    return "".join(BYTE_CHARACTERS[byte] for byte in token)


def qwen2_metadata(data_dir: Path) -> Metadata:
    """Qwen2 from its Hugging Face files."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    keys = {"pre": "qwen2", "bos_token_id": 151643, "eos_token_id": 151645, "add_bos_token": False}
    return _hugging_face(data_dir / "vocab" / "qwen2", special, keys)


def roberta_metadata(data_dir: Path) -> Metadata:
    """OPT's files, whose ids are RoBERTa's."""
    return _hugging_face(data_dir / "vocab" / "opt", [], {"pre": "roberta-bpe"})


def _hugging_face(folder: Path, special: Sequence[str], keys: Mapping[str, object]) -> Metadata:
    tokens, merges = _vocabulary_and_merges(folder)
    return byte_level(tokens, merges, special, keys=keys)


@cache
def _vocabulary_and_merges(folder: Path) -> tuple[Sequence[str], Sequence[str]]:
    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    assert [vocabulary[token] for token in tokens] == list(range(len(tokens)))
    merges = (folder / "merges.txt").read_text(encoding="utf-8").rstrip("\n").split("\n")
    return tokens, merges[1:]
