"""Test texts for comparing tokenizers: the bundled one, odd strings, the vocabulary."""

import importlib.resources
from collections.abc import Iterator, Sequence

from powerinfer.tokenizer.pieces import Detokenizer
from powerinfer.tokenizer.vocabulary import TokenType, Vocabulary

__all__ = ["ODD_STRINGS", "bundled_texts", "strings_with_tokens", "vocabulary_text"]

ODD_STRINGS: tuple[str, ...] = (
    *("", " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n \n ", "\t\t\n", "\u00a0", "\u3000"),
    *("a", " a", "a ", "  a  ", "a\n", "\na", "a\u00a0b", "\ufeffa", "a\u200bb", "a\u2028b"),
    "two  spaces, three   spaces,    four,     five,          ten.",
    "line\nline\n\nline\n\n\nline\r\nline\r\n\r\n  line\n\tline\n    def f(x):\n        return x",
    "0 1 12 123 1234 12345 123456 1234567 3.14159 1,000,000 1e-5 0x1F 2nd 10% $5 №7 ½ ² ٣٤٥ Ⅷ",
    "I'm you're he'll we've they'd it's don't I'M YOU'RE HE'LL 'tis 'twas rock'n'roll d'état",
    "camelCase PascalCase snake_case kebab-case HTTPServer iPhone15 x86_64 C++20 R&D AT&T",
    "https://example.org/a?b=c&d=e#f user@example.org /usr/bin/env ~/file.txt C:\\Windows",
    "!!! ??? ... --- === *** ### @@@ $$$ %%% ^^^ &&& ((( ))) [[[ ]]] {{{ }}} <<< >>> ``` '''",
    'for (int i = 0; i < n; ++i) { a[i] += b[i] * 2.0f; }  // sum\n<td class="x">1</td>\n</s>',
    "Ünïcödé naïve café Straße ﬁ Ǆ ǅ ẞ İı Zażółć gęślą jaźń Čeština Türkçe Tiếng Việt",
    "Съешь ещё этих мягких французских булок. Ξεσκεπάζω την ψυχοφθόρα. Հայերեն ქართული",
    "你好，世界！今天天气很好。こんにちは世界。カタカナ 안녕하세요 세계 繁體中文 ㄅㄆㄇ",
    "مرحبا بالعالم שלום עולם नमस्ते दुनिया สวัสดีชาวโลก ខ្មែរ မြန်မာ தமிழ் አማርኛ",
    "🙂🙃 👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇫🇷 ❤️ ☃ ♠♥ → ⇒ ∑∫√∞ ≤≥≠ ½¼¾ ℵ 𝔘𝔫𝔦 𝒽 𐍈 🦙",
    "e\u0301 a\u0300\u0301 \u0301x Z\u0351a\u0300l\u0334g\u0322o",
    "\u1100\u1161\u11a8 \u0915\u094d\u0937",
    "\x00 \x01\x02 \x07\x08 \x0b\x0c \x1b[31mred\x1b[0m",
    "\x7f \x80\x9f \u0085 \ufffd \ufffe \U0010ffff",
    "a" * 300 + " " * 100 + "\n" * 40 + "=" * 100 + "ab" * 60 + "7" * 50,
    *("<s> </s>", "a<unk>b", "<pad>", "<0x0A>", "<|im_start|>system", "<|endoftext|>"),
    *("[INST] a [/INST]", "[PAD7]", "<mask>", "a\u2581b"),
    "The quick brown fox jumps over the lazy dog. " * 3,
)

# More tokens than any model has that need short texts around them.
_MOST_TOKENS = 20_000


def bundled_texts() -> Iterator[str]:
    """Lines of the bundled text, to show a difference in a short one, then the whole text."""
    folder = importlib.resources.files("powerinfer").joinpath("data")
    text = folder.joinpath("calibration.txt").read_text(encoding="utf-8")
    yield from text.splitlines(keepends=True)
    yield text


def strings_with_tokens(texts: Sequence[str], *, only_at_end: bool) -> Iterator[str]:
    """Each special token in a text, and many of them together.

    Args:
        only_at_end: do not put text after a token, because a space may or may not be prepended to
            it.
    """
    for text in texts[:64]:
        yield text
        yield f"Hello.{text}" if only_at_end else f"Hello.{text}.world"
    if texts and not only_at_end:
        yield "." + ".".join(texts[:_MOST_TOKENS]) + "."


def vocabulary_text(vocabulary: Vocabulary) -> Iterator[str]:
    """All words of the vocabulary, some hundred per text."""
    detokenizer = Detokenizer(vocabulary)
    words: list[str] = []
    for token_id, token_type in enumerate(vocabulary.types):
        if token_type is not TokenType.NORMAL:
            continue
        try:
            words.append(detokenizer.piece(token_id).decode("utf-8"))
        except UnicodeDecodeError:
            continue
        if len(words) == 256:
            yield "\n".join(["Words:", *words])
            words = []
    yield "\n".join(["Words:", *words])
