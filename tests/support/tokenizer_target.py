"""What fuzzing the tokenizer runs: load a vocabulary, then encode and decode with it.

Shared by the hypothesis tests, the kept crashers and ``scripts/fuzz``. Only `PowerInferError` may
come out of loading; what loads must encode any text and decode any of its own ids.
"""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import gguf_bytes as gb
from powerinfer.errors import PowerInferError
from powerinfer.gguf import open_gguf, write_gguf
from powerinfer.tokenizer import Tokenizer

TEXTS: list[str | bytes] = ["", "héllo  wörld\n🦙 aaaa", "<s>a b</s>", b"\xff\xfe ab\x00"]


def _texts(*values: str) -> bytes:
    return gb.array(gb.STRING, len(values), b"".join(map(gb.text, values)))


def _sentencepiece() -> bytes:
    tokens = ["<unk>", "<s>", "</s>", "<0x61>", "▁", "a", "b", "ab", "▁ab"]
    types = struct.pack("<9i", 2, 3, 3, 6, 1, 1, 1, 1, 1)
    return bytes(
        gb.Image(
            entries=[
                gb.entry("tokenizer.ggml.model", gb.STRING, gb.text("llama")),
                gb.entry("tokenizer.ggml.tokens", gb.ARRAY, _texts(*tokens)),
                gb.entry(
                    "tokenizer.ggml.scores",
                    gb.ARRAY,
                    gb.array(gb.F32, 9, struct.pack("<9f", *range(9))),
                ),
                gb.entry("tokenizer.ggml.token_type", gb.ARRAY, gb.array(gb.I32, 9, types)),
                gb.u32("tokenizer.ggml.bos_token_id", 1),
                gb.entry("tokenizer.ggml.add_bos_token", gb.BOOL, b"\x01"),
                gb.entry("tokenizer.ggml.add_space_prefix", gb.BOOL, b"\x01"),
            ]
        )
    )


def _byte_level() -> bytes:
    return bytes(
        gb.Image(
            entries=[
                gb.entry("tokenizer.ggml.model", gb.STRING, gb.text("gpt2")),
                gb.entry("tokenizer.ggml.pre", gb.STRING, gb.text("qwen2")),
                gb.entry(
                    "tokenizer.ggml.tokens", gb.ARRAY, _texts("a", "b", "Ġ", "ab", "Ġab", "<|e|>")
                ),
                gb.entry("tokenizer.ggml.merges", gb.ARRAY, _texts("a b", "Ġ ab")),
                gb.entry(
                    "tokenizer.ggml.token_type",
                    gb.ARRAY,
                    gb.array(gb.I32, 6, struct.pack("<6i", 1, 1, 1, 1, 1, 3)),
                ),
                gb.u32("tokenizer.ggml.eos_token_id", 5),
            ]
        )
    )


def seeds() -> list[bytes]:
    """Small valid vocabularies of both kinds."""
    return [_sentencepiece(), _byte_level()]


def use_file(path: Path) -> Tokenizer | None:
    """Load the vocabulary of a file and use it; None where the file is refused."""
    try:
        tokenizer = Tokenizer.from_gguf(open_gguf(path))
    except PowerInferError as error:
        message = str(error)
        if not message or len(message) > 2000:
            raise RuntimeError(f"not a clear message: {message[:3000]!r}") from error
        return None
    for text in TEXTS:
        for parse_special in (False, True):
            _use(tokenizer, text, parse_special=parse_special)
    return tokenizer


def use_metadata(path: Path, metadata: Mapping[str, Any]) -> Tokenizer | None:
    """Write `metadata` to `path` and use it as `use_file` does."""
    write_gguf(path, metadata, [])
    return use_file(path)


def _use(tokenizer: Tokenizer, text: str | bytes, *, parse_special: bool) -> None:
    ids = tokenizer.encode(text, parse_special=parse_special)
    if not all(0 <= token_id < tokenizer.vocab_size for token_id in ids):
        raise RuntimeError(f"ids outside the vocabulary: {ids}")
    whole = tokenizer.decode(ids, skip_special=False)
    stream = tokenizer.new_stream(skip_special=False)
    pieces = "".join([*(stream.push(token_id) for token_id in ids), stream.finish()])
    if whole != pieces:
        raise RuntimeError(f"streamed text differs: {pieces!r}, not {whole!r}")


def arrays_for(count: int, values: list[int]) -> "np.ndarray[Any, np.dtype[np.int32]]":
    """Repeat or cut `values` to `count` token types."""
    return np.resize(np.array(values or [1], np.int32), count)
