"""Cutting text into words, against the published expressions run by the `regex` package.

Ours run in Oniguruma with two rewritings (see `pre_tokenizers`); these are the originals, each with
the way the models' own files apply it.
"""

import pytest
import regex
from hypothesis import example, given
from hypothesis import strategies as st

from powerinfer.tokenizer.byte_level import library_pre_tokenizer
from powerinfer.tokenizer.pieces import BYTE_CHARACTERS
from powerinfer.tokenizer.pre_tokenizers import pre_tokenizer

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
# As transformers writes it in `models/qwen3_5/tokenization_qwen3_5.py`.
QWEN35 = (
    CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# As tiktoken writes it in `tiktoken_ext/openai_public.py`, of gpt-oss too.
O200K = "|".join(
    [
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""\p{N}{1,3}""",
        r""" ?[^\s\p{L}\p{N}]+[\r\n/]*""",
        r"""\s*[\r\n]+""",
        r"""\s+(?!\S)""",
        r"""\s+""",
    ]
)
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+"
    rf"|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PUBLISHED = {
    "gpt-2": [GPT2],
    "mpt": [GPT2],
    "olmo": [GPT2],
    "llama-bpe": [LLAMA3],
    "lfm2": [LLAMA3],
    "dbrx": [LLAMA3],
    "chatglm-bpe": [LLAMA3],
    "qwen2": [QWEN2],
    "qwen35": [QWEN35],
    "stablelm2": [QWEN2],
    "starcoder": [r"\p{N}", GPT2],
    "refact": [r"\p{N}", GPT2],
    "command-r": [r"\p{N}", GPT2],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
    "deepseek-coder": [
        r"[\r\n]",
        r"\s?\p{L}+",
        r"\s?\p{P}+",
        "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
        r"\p{N}",
    ],
    "deepseek-v3": [
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
        r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    "bloom": [r" ?[^(\s|.,!?…。，、।۔،)]+"],
    "viking": [r" ?[^(\s|.,!?…。，、।۔،)]+", r"\p{N}"],
    "tekken": [TEKKEN],
    "gpt-4o": [O200K],
    "llama4": [O200K],
}

BYTE_OF = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}
# Unassigned characters are left out: the libraries know different versions of Unicode.
CHARACTERS = st.one_of(
    st.sampled_from(" \t\n\r\v\f\u00a0\u2028\u3000'\"!?.,-_/$+<=>^~|`09½²٣五aAzZsStTdDmMéÉßǅʰाｱ한"),
    st.sampled_from(["'s", "'RE", "'lL", "\r\n", "  ", "123", "1234567", "Ll", "你好", "👍🏽"]),
    st.sampled_from(
        ["a\u0301", "\u0301", " \u0301\u0301", "नमस्ते", "क्ष", "\u20dd", "e\u0301\u0301'd"]
    ),
    st.characters(codec="utf-8", exclude_categories=("Cn", "Co", "Cs")),
)
TEXTS = st.lists(CHARACTERS, max_size=40).map("".join)


def _reference(stages: list[str], text: str) -> list[str]:
    pieces = [text]
    for stage in stages:
        pieces = [part for piece in pieces for part in _isolate(stage, piece)]
    return pieces


def _isolate(expression: str, text: str) -> list[str]:
    parts, start = [], 0
    for match in regex.finditer(expression, text):
        parts += [text[start : match.start()], match.group()]
        start = match.end()
    return [part for part in [*parts, text[start:]] if part]


@pytest.mark.parametrize("name", PUBLISHED)
@given(text=TEXTS)
@example(text="\n \n\n \t\t  x  \r\n\r\n  y \n")
@example(text="HTTPServer's iPhone'LL ǅa ÉCOLEs don'T/\n/ 1234567 a\u0301B e\u0301\u0301'd ʰx")
@example(text="!\u0301\u0301 \u0301x .\u0903\n 1\u0301 नमस्ते, क्षेत्र 你\u0301好 👍\u20dd\u0301")
@example(text="I'VE 'told we'll 3 33 3333 ½ 3.3 ...3 \t ?\n\n!")
def test_cuts_as_published(name: str, text: str) -> None:
    words = library_pre_tokenizer(pre_tokenizer(name)).pre_tokenize_str(text)
    found = [bytes(BYTE_OF[c] for c in word).decode() for word, _ in words]
    assert found == _reference(PUBLISHED[name], text)
