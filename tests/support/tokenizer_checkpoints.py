"""Tokenizer files of checkpoints, for tests: tiny ones trained here, and real vocabularies.

What `tokenizer.json` says about cutting text is written as the models' own files write it.
"""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from powerinfer.tokenizer.pieces import BYTE_CHARACTERS
from powerinfer.tokenizer.vocabulary import TokenType

Json = dict[str, Any]

WORDS = (
    "the cat sat on the mat and the hat that Tom's café has at 12 or 345 naïve 你好 世界 "
    "don't We'll 2024 3.14 x+y=z a_b, (one) [two] <three>; HTTPServer iPhone  spaces\n\nline"
)
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = (
    CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
# Letters include the marks on them.
QWEN35 = QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}", r"[^\s\p{L}\p{M}")
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
LEAD, TAIL = r"[^\r\n\p{L}\p{N}]?", r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = (
    rf"{LEAD}[{UPPER}]*[{LOWER}]+{CONTRACTIONS}?|{LEAD}[{UPPER}]+[{LOWER}]*{CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}{TAIL}"
)
TEKKEN = rf"{LEAD}[{UPPER}]*[{LOWER}]+|{LEAD}[{UPPER}]+[{LOWER}]*|\p{{N}}{TAIL}"


def byte_level_step(*, use_regex: bool) -> Json:
    """The step that writes text in the byte alphabet."""
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def split(regex: str, behavior: str = "Isolated", *, invert: bool = False) -> Json:
    """A step that cuts at an expression."""
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": invert}


def sequence(*steps: Json) -> Json:
    """Steps, then the one that makes bytes."""
    return {"type": "Sequence", "pretokenizers": [*steps, byte_level_step(use_regex=False)]}


GPT2 = byte_level_step(use_regex=True)
DIGITS_GPT2 = {
    "type": "Sequence",
    "pretokenizers": [{"type": "Digits", "individual_digits": True}, GPT2],
}
FALCON = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Punctuation", "behavior": "Contiguous"},
        GPT2,
        {"type": "Digits", "individual_digits": False},
        split("[0-9][0-9][0-9]"),
    ],
}
DEEPSEEK_CODER = {
    "type": "Sequence",
    "pretokenizers": [
        split("[\r\n]"),
        split(r"\s?\p{L}+"),
        split(r"\s?\p{P}+"),
        split("[一-龥ࠀ-一가-퟿]+"),
        {"type": "Digits", "individual_digits": True},
        byte_level_step(use_regex=False),
    ],
}
# Name in GGUF files, pre-tokenizer of `tokenizer.json`, `ignore_merges`.
BYTE_LEVEL: dict[str, tuple[str, Json, bool]] = {
    "gpt-2, opt, olmoe": ("gpt-2", GPT2, False),
    "llama 3": ("llama-bpe", sequence(split(LLAMA3)), True),
    "llama 3, as removed": (
        "llama-bpe",
        sequence(split(LLAMA3, "Removed", invert=True)),
        True,
    ),
    "dbrx": ("dbrx", sequence(split(LLAMA3)), False),
    "qwen 2": ("qwen2", sequence(split(QWEN2)), False),
    "qwen 3.5": ("qwen35", sequence(split(QWEN35)), False),
    "granite, starcoder": ("starcoder", DIGITS_GPT2, False),
    "falcon": ("falcon", FALCON, False),
    "gpt-oss": ("gpt-4o", sequence(split(O200K)), False),
    "mistral nemo": ("tekken", sequence(split(TEKKEN)), True),
    "deepseek coder": ("deepseek-coder", DEEPSEEK_CODER, False),
}


def added(token_id: int, text: str, *, special: bool = True, **flags: bool) -> Json:
    """An entry of ``added_tokens``."""
    off = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": text, "special": special, **off, **flags}


def bos_template(text: str, token_id: int) -> Json:
    """A post-processor that puts one token in front."""
    first: Json = {"SpecialToken": {"id": text, "type_id": 0}}
    single = [first, {"Sequence": {"id": "A", "type_id": 0}}]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {text: {"id": text, "ids": [token_id], "tokens": [text]}},
    }


def write_files(folder: Path, files: Mapping[str, object]) -> Path:
    """Write texts, bytes and JSON into `folder`; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if isinstance(content, bytes):
            (folder / name).write_bytes(content)
        else:
            text = content if isinstance(content, str) else json.dumps(content)
            (folder / name).write_text(text, encoding="utf-8")
    return folder


def _sentences() -> Iterator[str]:
    words = WORDS.split(" ")
    for start in range(300):
        yield " ".join(words[(start * step + step) % len(words)] for step in range(1, 9))


@cache
def _trained(pre: str, special: tuple[str, ...]) -> str:
    tokenizer = Tokenizer(models.BPE())
    blank = json.loads(tokenizer.to_str()) | {"pre_tokenizer": json.loads(pre)}
    tokenizer = Tokenizer.from_str(json.dumps(blank))
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=list(special),
        initial_alphabet=list(BYTE_CHARACTERS),
        show_progress=False,
    )
    tokenizer.train_from_iterator(list(_sentences()), trainer)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer.to_str()


def byte_level_json(pre: Json, special: Sequence[str] = ("<|end|>",), **model: object) -> Json:
    """A byte-level ``tokenizer.json`` of 340 tokens, trained with this pre-tokenizer."""
    content: Json = json.loads(_trained(json.dumps(pre), tuple(special)))
    content["model"] |= {"ignore_merges": False, **model}
    return content


@cache
def _trained_with_fallback() -> str:
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("▁"), "merged_with_next")
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(list(_sentences()), trainer)
    return tokenizer.to_str()


def byte_fallback_json(*, prefix: str = "Prepend") -> Json:
    """A small ``tokenizer.json`` like Llama 2's or Mistral's.

    Args:
        prefix: ``Prepend`` (transformers 4), a scheme of ``Metaspace`` (``first``, ``always``,
            ``never``), or empty for Gemma's form.
    """
    content: Json = json.loads(_trained_with_fallback())
    content["added_tokens"] = content["added_tokens"][:3]
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    prepend = {"type": "Prepend", "prepend": "▁"}
    content |= {"normalizer": None, "pre_tokenizer": None}
    if prefix == "Prepend":
        content["normalizer"] = {"type": "Sequence", "normalizers": [prepend, replace]}
    elif prefix:
        content["pre_tokenizer"] = {
            "type": "Metaspace",
            "replacement": "▁",
            "prepend_scheme": prefix,
            "split": False,
        }
    else:
        content["normalizer"] = replace
        content["pre_tokenizer"] = {
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        }
    return content


@cache
def sentencepiece_file(**changes: object) -> bytes:
    """A small ``tokenizer.model`` like Llama 2's; `changes` are options of the trainer."""
    model = io.BytesIO()
    options: Json = {
        "model_type": "bpe",
        "vocab_size": 380,
        "byte_fallback": True,
        "split_digits": True,
        "remove_extra_whitespaces": False,
        "allow_whitespace_only_pieces": True,
        "normalization_rule_name": "identity",
        "hard_vocab_limit": False,
        "minloglevel": 2,
        "num_threads": 1,
    }
    options |= {k: list(v) if isinstance(v, tuple) else v for k, v in changes.items()}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=_sentences(), model_writer=model, **options
    )
    return model.getvalue()


def json_of_vocabulary(metadata: Mapping[str, Any], pre: Json, **model: object) -> Json:
    """What ``tokenizer.json`` a byte-level vocabulary of a GGUF file was made from."""
    texts, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    entries = [
        added(token_id, text, special=bool(types[token_id] == TokenType.CONTROL))
        for token_id, text in enumerate(texts)
        if types[token_id] in (TokenType.CONTROL, TokenType.USER_DEFINED)
        and text != f"[PAD{token_id}]"
    ]
    # The library numbers the added tokens that are not in the vocabulary behind it.
    end = 1 + max(i for i in range(len(texts)) if types[i] == TokenType.NORMAL)
    vocab = {text: i for i, text in enumerate(texts[:end])}
    merges = metadata["tokenizer.ggml.merges"]
    return {
        "version": "1.0",
        "added_tokens": entries,
        "normalizer": None,
        "pre_tokenizer": pre,
        "post_processor": None,
        "decoder": byte_level_step(use_regex=True),
        "model": {"type": "BPE", "vocab": vocab, "merges": merges, **model},
    }


def merges_of_scores(pieces: Sequence[tuple[str, float]]) -> list[tuple[str, str]]:
    """Ranked merges of a SentencePiece vocabulary, as transformers makes them."""
    ids = {text: token_id for token_id, (text, _) in enumerate(pieces)}
    found = []
    for text, score in pieces:
        cuts = ((text[:at], text[at:]) for at in range(1, len(text)))
        halves = [(left, right) for left, right in cuts if left in ids and right in ids]
        found += [(-score, ids[left], ids[right], left, right) for left, right in halves]
    return [(left, right) for _, _, _, left, right in sorted(found)]
