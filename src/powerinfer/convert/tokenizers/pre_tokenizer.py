r"""Search for a pre-tokenizer that splits text as a checkpoint's does.

A GGUF file names one of `tokenizer.pre_tokenizers`, ``tokenizer.json`` spells it out, and one
expression can be written in many ways. So results are compared on five texts: everyday cases; runs
of digits and blanks, which some expressions count; contractions; every triple of characters that
represent the classes known to expressions; and every Unicode character next to a letter, a digit
and a space.
"""

import json
import sys
import unicodedata
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from string import ascii_letters

import tokenizers
from tokenizers import pre_tokenizers

from powerinfer.convert.tokenizers.outside_errors import library_errors
from powerinfer.convert.tokenizers.tokenizer_json import entries_of
from powerinfer.errors import UnsupportedError
from powerinfer.tokenizer.byte_level import library_pre_tokenizer
from powerinfer.tokenizer.pre_tokenizers import PreTokenizer, main_names, pre_tokenizer

__all__ = ["cuts_bytes", "find_pre_tokenizers"]

_EVERYDAY = (
    "Hello world, it's 12345 o'clock: I'VE 'told we'll\r\n\n  x = y+1;\t\tf(a_b)  \n\n \n"
    "HTTPServer iPhone camelCase don'T/\n/ ÉCOLEs 3.14 1,000,000 ½ ²x a\u0301B e\u0301\u0301'd\n"
    "你好，世界。 こんにちは カタカナ 안녕 ١٢٣ नमस्ते 👍🏽 «a» (b) [c] {d} <e> #f @g $1 ~h `i` ^j |\n"
    "IMGIMGABZ <sentinel:1>"
)
_RUNS = "".join(
    f"{run * count}{end}"
    for run in ("7", "٣", "½", " ", "\n", "\t", "a ", " \n")
    for count in (*range(1, 18), 33, 65, 130, 260, 520, 1030)
    for end in ("x", "!", "\n")
)
# An apostrophe with two letters is a contraction or the start of a word.
_CONTRACTIONS = "".join(
    f"x'{a}{b}y '{a}{b}y" for a in f"{ascii_letters}ſ" for b in f"{ascii_letters}ſ"
)
# One or two characters of each class that expressions distinguish.
_CLASSES = (
    *("a", "s", "t", "S", "T", "l", "L", "e", "z", "Z", "É", "é", "ǅ", "ʰ", "ª"),  # letters
    *("你", "あ", "ア", "한", "ا", "\u0301", "\u0903", "\u20dd"),  # other letters, marks
    *("0", "9", "٣", "½", "Ⅷ"),  # numbers
    *(" ", "\t", "\n", "\r", "\u00a0", "\u3000", "\u0085"),  # blanks
    *("'", "\u2019", ".", "/", "_", "$", "^", "😀", "\u200d", "\u0007"),  # others
)
# Falcon's pre-tokenizer also splits at digits after characters have become bytes, where ² or ¼
# stand for parts of letters. Its merges were learned from such pieces, so none crosses these
# splits, whether they are made or not.
_FALCON = (
    ("Punctuation", "Contiguous", None),
    ("ByteLevel", True, None),
    ("Digits", False, None),
    ("Split", "Isolated", "[0-9][0-9][0-9]"),
)


def cuts_bytes(stages: list[Mapping[str, object]]) -> bool:
    """Return whether text is written in the byte alphabet of GPT-2."""
    return any(stage.get("type") == "ByteLevel" for stage in stages)


def find_pre_tokenizers(value: object, path: Path) -> list[tuple[str, PreTokenizer]]:
    """Names and rules of all matching pre-tokenizers; they differ in `ignore_merges`."""
    stages = entries_of(value, path, "pretokenizers")
    if any(s.get("type") == "ByteLevel" and s.get("add_prefix_space") is True for s in stages):
        raise UnsupportedError(
            f"{path}: the pre-tokenizer prepends a space to a text (add_prefix_space), which "
            "byte-level vocabularies of GGUF files do not support"
        )
    if tuple(map(_facts, stages)) == _FALCON:
        return [("falcon", pre_tokenizer("falcon"))]
    try:
        names = _names_that_cut_alike(json.dumps(value))
    except UnsupportedError as error:
        raise UnsupportedError(f"{path}: {error}") from None
    if not names:
        raise UnsupportedError(f"{path}: the pre-tokenizer is unknown: {_described(stages)}")
    return [(name, pre_tokenizer(name)) for name in names]


@lru_cache
def _names_that_cut_alike(value: str) -> tuple[str, ...]:
    """Main names of the pre-tokenizers that split all test texts like the given JSON."""
    own = _library_object(value)
    found = main_names()
    for text in _probes():
        wanted = _pieces(own, text)
        found = tuple(
            name
            for name in found
            if _pieces(library_pre_tokenizer(pre_tokenizer(name)), text) == wanted
        )
    return found


def _facts(stage: Mapping[str, object]) -> tuple[object, object, object]:
    """Properties that distinguish the stages of Falcon's pre-tokenizer."""
    kind = stage.get("type")
    detail = {"ByteLevel": "use_regex", "Digits": "individual_digits"}.get(str(kind), "behavior")
    pattern = stage.get("pattern")
    return kind, stage.get(detail), pattern.get("Regex") if isinstance(pattern, dict) else None


def _library_object(value: str) -> pre_tokenizers.PreTokenizer:
    content = (
        '{"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}'
        f', "pre_tokenizer": {value}}}'
    )
    problem = "the tokenizers library rejects the pre-tokenizer"
    with library_errors(problem, UnsupportedError):
        own: pre_tokenizers.PreTokenizer = tokenizers.Tokenizer.from_str(content).pre_tokenizer
        return own


def _pieces(cutting: pre_tokenizers.PreTokenizer, text: str) -> list[str]:
    with library_errors("the pre-tokenizer fails on a test text", UnsupportedError):
        return [piece for piece, _ in cutting.pre_tokenize_str(text)]


def _described(stages: list[Mapping[str, object]]) -> str:
    parts = []
    for stage in stages:
        pattern = stage.get("pattern")
        regex = f" {next(iter(pattern.values()), None)!r:.80}" if isinstance(pattern, dict) else ""
        parts.append(f"{stage.get('type')}{regex}")
    return ", ".join(parts)[:300] or "none at all"


@cache
def _probes() -> tuple[str, ...]:
    return _EVERYDAY, _RUNS, _CONTRACTIONS, _all_triples("".join(_CLASSES)), _all_characters()


def _all_triples(alphabet: str) -> str:
    """De Bruijn cycle: each triple of characters occurs once (Lyndon words in order)."""
    length, count = 3, len(alphabet)
    word, out = [-1], []
    while word:
        word[-1] += 1
        if length % len(word) == 0:
            out += word
        word = [word[place % len(word)] for place in range(length)]
        while word and word[-1] == count - 1:
            word.pop()
    return "".join(alphabet[place] for place in (*out, *out[: length - 1]))


def _all_characters() -> str:
    """Every assigned character in context; every 61st of the large uniform scripts."""
    out = []
    for code in range(sys.maxunicode + 1):
        if _is_large_script(code) and code % 61:
            continue
        character = chr(code)
        if unicodedata.category(character) not in ("Cn", "Co", "Cs"):
            out.append(f"a{character}b {character}1{character}.")
    return "".join(out)


def _is_large_script(code: int) -> bool:
    """Ideographs and Hangul, except their first and last ones."""
    ranges = ((0x3410, 0x4DB0), (0x4E10, 0x9FA0), (0xAC10, 0xD790), (0x17010, 0x18CC0))
    return code >= 0x20010 or any(start <= code < end for start, end in ranges)
