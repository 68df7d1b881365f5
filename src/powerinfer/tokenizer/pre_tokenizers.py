r"""Splitting of text into words before byte-level merging, by `tokenizer.ggml.pre`.

Each entry is a list of regular expressions applied one after the other: a stage isolates its
matches, and the next stage works on the pieces, matched or not. The expressions are those the
models were trained with (the `pre_tokenizer` of their Hugging Face files), in Oniguruma's dialect;
two changes keep the meaning and avoid backtracking:

- ``\s*[\r\n]+`` is written ``(?>(?:[^\S\r\n]*+[\r\n]+)+)``, so that a long run of spaces without a
  line end fails at once instead of giving back one space at a time;
- nothing follows ``\s+(?!\S)`` in the GPT-2 family, because unmatched text becomes a piece anyway.
"""

import logging
from dataclasses import dataclass

__all__ = ["PreTokenizer", "main_names", "pre_tokenizer"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PreTokenizer:
    """Stages of splitting, and other implications of the name for the vocabulary.

    Attributes:
        stages: regular expressions, each isolating its matches in the pieces of the one before.
        ignore_merges: a word that is a token is used whole, without merging.
        add_bos: prompts start with BOS unless the file says otherwise.
    """

    stages: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_NEWLINES = r"(?>(?:[^\S\r\n]*+[\r\n]+)+)"
_BLANKS = r"\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_DIGIT = r"\p{N}"
_THREE_DIGITS = r"\p{N}{1,3}"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"


def _words(numbers: str, contractions: str = f"{_CONTRACTIONS}|", tail: str = _NEWLINES) -> str:
    """Expression of the Llama 3 and Qwen2 families, which differ in the grouping of digits."""
    return (
        rf"{contractions}[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{numbers}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{tail}|{_BLANKS}"
    )


def _cased_words(numbers: str, suffix: str = "") -> str:
    """Expression of the GPT-4o family: words break where lower case turns to upper case."""
    upper, lower = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
    lead = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{lead}[{upper}]*[{lower}]+{suffix}|{lead}[{upper}]+[{lower}]*{suffix}|{numbers}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_NEWLINES}|{_BLANKS}"
    )


_LLAMA3 = _words(_THREE_DIGITS)
_QWEN2 = _words(_DIGIT)
_GPT4O = _cased_words(_THREE_DIGITS, f"{_CONTRACTIONS}?")

# Punctuation as Hugging Face's pre-tokenizer of that name sees it: ASCII signs and category P.
_PUNCTUATION = r"[\p{P}\$\+<=>\^~\|`]+"
_PUNCTUATION_WITHOUT_BACKTICK = r"[\p{P}\$\+<=>\^~\|]+"
_ASCII_TRIPLES = "[0-9][0-9][0-9]"
_LINE_END = r"[\r\n]"
_EAST_ASIAN = r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+"
_HAN_AND_KANA = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+"
_SIGN_THEN_WORD = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"

# The cased letters (Lu, Ll, Lt) that DeepSeek LLM lists, as ranges of code points: scripts with two
# cases in the Unicode of that time, without mathematical alphabets.
_CASED_SPANS = (
    "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F "
    "386 388-38A 38C 38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD "
    "1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 "
    "1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 "
    "1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 "
    "2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 "
    "2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B A722-A76F A771-A787 "
    "A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 "
    "104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943"
)
_CASED_LETTERS = "".join(
    "-".join(rf"\x{{{end}}}" for end in span.split("-")) for span in _CASED_SPANS.split()
)
_WIDE_SIGNS = r"\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}"
_DEEPSEEK_V3 = (
    _THREE_DIGITS,
    _HAN_AND_KANA,
    rf"{_SIGN_THEN_WORD}|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*"
    rf"|{_NEWLINES}|{_BLANKS}",
)
_SENTENCE_SIGNS = r" ?[^(\s|.,!?…。，、।۔،)]+"
_HALVED_BLANKS = "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4))

_DEFAULT = PreTokenizer((_PUNCTUATION_WITHOUT_BACKTICK, _GPT2, r"\p{N}+", _ASCII_TRIPLES))
_WHOLE_WORDS_FIRST = PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)

_FAMILIES: dict[str, PreTokenizer] = {
    "default": _DEFAULT,
    "gpt-2 phi-2 mpt olmo jais roberta-bpe jina-v1-en jina-v2-code jina-es jina-de jina-v2-es "
    "jina-v2-de gigachat a.x-4.0 mellum modern-bert exaone4 trillion "
    "granite-docling": PreTokenizer((_GPT2,)),
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 "
    "jina-v5-nano": _WHOLE_WORDS_FIRST,
    "dbrx smaug-bpe chatglm-bpe": PreTokenizer((_LLAMA3,)),
    "glm4 glm5": PreTokenizer((_LLAMA3,), ignore_merges=True),
    "minicpm5": PreTokenizer((_THREE_DIGITS, _words(r"\p{N}+")), ignore_merges=True),
    "jais-2": PreTokenizer(
        (_LLAMA3.removesuffix(_BLANKS) + rf"{_HALVED_BLANKS}|\s{{1,2}}(?!\S)|\s",)
    ),
    "qwen2 stablelm2 hunyuan megrez deepseek-r1-qwen solar-open grok-2 kormo f2llmv2": PreTokenizer(
        (_QWEN2,)
    ),
    "qwen35": PreTokenizer(
        (
            rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
            rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_NEWLINES}|{_BLANKS}",
        )
    ),
    "seed-coder": PreTokenizer(
        (
            rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}"
            rf"| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_NEWLINES}|{_BLANKS}",
        )
    ),
    "bailingmoe bailingmoe2 llada-moe": PreTokenizer(
        (_words(_DIGIT, r"'(?i:[sdmt]|ll|ve|re)|", r"\s*[\r\n]"),)
    ),
    "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2": PreTokenizer(
        (_DIGIT, _GPT2)
    ),
    "falcon": PreTokenizer((_PUNCTUATION, _GPT2, _ASCII_TRIPLES)),
    "deepseek-llm": PreTokenizer(
        (
            _LINE_END,
            rf"\s?[{_CASED_LETTERS}]+",
            rf"\s?[!-/:-~{_WIDE_SIGNS}]+",
            r"\s+$",
            _EAST_ASIAN,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": PreTokenizer((_LINE_END, r"\s?\p{L}+", r"\s?\p{P}+", _EAST_ASIAN, _DIGIT)),
    "deepseek-v3 hunyuan-dense joyai-llm hy_v4": PreTokenizer(_DEEPSEEK_V3),
    "bloom gpt3-finnish poro-chat": PreTokenizer((_SENTENCE_SIGNS,)),
    "viking": PreTokenizer((_SENTENCE_SIGNS, _DIGIT)),
    "tekken": PreTokenizer((_cased_words(_DIGIT),), ignore_merges=True, add_bos=True),
    "gpt-4o llama4 kanana2 minimax-m2 talkie": PreTokenizer((_GPT4O,)),
    "tiny_aya cohere2moe": PreTokenizer((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O)),
    "chameleon": PreTokenizer(
        (
            "<sentinel:[0-9]+>",
            "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            r"([\t\n]|    |  )",
            _DIGIT,
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
        add_bos=True,
    ),
}
_BY_NAME = {name: entry for names, entry in _FAMILIES.items() for name in names.split()}

# One name of each family; the default is for unknown names and belongs to no model.
_MAIN_NAMES = tuple(names.split()[0] for names in _FAMILIES if names != "default")

# Files older than `tokenizer.ggml.pre`, PowerInfer's among them, lack it; these architectures have
# only one pre-tokenizer each.
_BY_ARCHITECTURE = {
    "bloom": "bloom",
    "codeshell": "codeshell",
    "command-r": "command-r",
    "falcon": "falcon",
    "gpt2": "gpt-2",
    "gptneox": "gpt-2",
    "mpt": "mpt",
    "opt": "gpt-2",
    "phi2": "phi-2",
    "qwen": "qwen2",
    "qwen2": "qwen2",
    "refact": "refact",
    "starcoder": "starcoder",
}


def main_names() -> tuple[str, ...]:
    """Return one name of each pre-tokenizer of models; the others are synonyms."""
    return _MAIN_NAMES


def pre_tokenizer(name: str | None, architecture: str = "") -> PreTokenizer:
    """Look up a pre-tokenizer.

    Args:
        name: `tokenizer.ggml.pre`, or None if the file lacks it. An unknown name gives the default
            with a warning: it splits text, though perhaps not exactly as in training.
        architecture: `general.architecture`, used if there is no name.
    """
    if name is None:
        name = _BY_ARCHITECTURE.get(architecture, "default")
        _log.info("no pre-tokenizer named; using %r", name)
    if name not in _BY_NAME:
        _log.warning(
            "pre-tokenizer %r is unknown; using the default, which may split text differently from "
            "the model's training",
            name,
        )
        return _DEFAULT
    return _BY_NAME[name]
