"""Vocabularies of made-up tokens, with the published chat template of a family."""

from pathlib import Path

import numpy as np

from powerinfer.tokenizer.pieces import BYTE_CHARACTERS
from powerinfer.tokenizer.vocabulary import TokenType

__all__ = ["vocabulary_of"]

_TEMPLATES = Path(__file__).resolve().parents[2] / "tests" / "golden" / "templates"
_SPACE = "\u0120"
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_FAMILIES = {
    "qwen35": ("Qwen3.5-4B", "<|endoftext|>"),
    "lfm2": ("LFM2.5", "<|startoftext|>"),
    "nemotron_h": ("", "<s>"),
}
# Rules that split text into words, if they are not called as the family.
_RULES = {"nemotron_h": "pixtral"}
_CONTROLS = ("<|im_start|>", "<|im_end|>")
_THOUGHTS = ("<think>", "</think>")


def vocabulary_of(family: str, size: int) -> dict[str, object]:
    """Return the keys of a vocabulary of `size` tokens, as the family has it."""
    return _raw_bpe(size) if family == "gemma4" else _byte_level(family, size)


def _raw_bpe(size: int) -> dict[str, object]:
    """Return one of characters, bytes and fillers, for speed only."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *_LETTERS]
    tokens += [f"\u2581{letter}" for letter in _LETTERS]
    num_known = len(tokens)
    tokens += [f"\u2581{number:05x}" for number in range(size - num_known)]
    kinds = [TokenType.CONTROL] * 3 + [TokenType.UNKNOWN] + [TokenType.BYTE] * 256
    kinds += [TokenType.NORMAL] * (len(tokens) - len(kinds))
    return {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.zeros(len(tokens), np.float32),
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.merges": [f"\u2581 {letter}" for letter in _LETTERS],
        "tokenizer.ggml.bos_token_id": np.uint32(2),
        "tokenizer.ggml.eos_token_id": np.uint32(1),
        "tokenizer.ggml.unknown_token_id": np.uint32(3),
        "tokenizer.ggml.add_bos_token": True,
    }


def _byte_level(family: str, size: int) -> dict[str, object]:
    """Return the keys of a vocabulary in which " a" is one token and other text is single bytes.

    Further tokens up to `size` give the head its true size; the special tokens come last.

    Args:
        family: `qwen35`, `lfm2` or, without a template, `nemotron_h`.
        size: number of tokens, at least 287.
    """
    template, start = _FAMILIES[family]
    special = [start, *_CONTROLS, *_THOUGHTS]
    tokens = [*BYTE_CHARACTERS, *(_SPACE + letter for letter in _LETTERS)]
    num_fillers = size - len(tokens) - len(special)
    if num_fillers < 0:
        raise SystemExit(f"error: a vocabulary of {size} tokens is too small")
    tokens += [f"{_SPACE}{number:05x}" for number in range(num_fillers)]
    kinds = [TokenType.NORMAL] * len(tokens)
    kinds += [TokenType.CONTROL] * (1 + len(_CONTROLS)) + [TokenType.USER_DEFINED] * len(_THOUGHTS)
    start_id = np.uint32(len(tokens))
    is_lfm = family == "lfm2"
    found: dict[str, object] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": _RULES.get(family, family),
        "tokenizer.ggml.tokens": [*tokens, *special],
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.merges": [f"{_SPACE} {letter}" for letter in _LETTERS],
        "tokenizer.ggml.bos_token_id": start_id,
        "tokenizer.ggml.eos_token_id": start_id + np.uint32(special.index("<|im_end|>")),
        "tokenizer.ggml.padding_token_id": start_id,
        "tokenizer.ggml.add_bos_token": is_lfm,
    }
    if template:
        path = _TEMPLATES / f"{template}.jinja"
        found["tokenizer.chat_template"] = path.read_text(encoding="utf-8")
    return found
