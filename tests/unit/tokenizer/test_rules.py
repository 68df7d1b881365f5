"""Small rules of vocabularies, special tokens and templates, each with a case on both sides."""

import logging
from typing import Any

import numpy as np
import pytest

from powerinfer.errors import GGUFError, PromptError
from powerinfer.tokenizer import Tokenizer, byte_level, sentencepiece_bpe
from powerinfer.tokenizer.chat import render_chat
from powerinfer.tokenizer.pieces import BYTE_CHARACTERS, _byte_characters
from powerinfer.tokenizer.pre_tokenizers import _cased_words, _words, pre_tokenizer
from powerinfer.tokenizer.vocabulary import load_vocabulary
from tokenizer_metadata import byte_level as byte_level_metadata
from tokenizer_metadata import sentencepiece, small_byte_level, small_sentencepiece

# Long texts are encoded in stretches

TEXT = "hello world, hello  wor ld\nhe llo. world hello 世界 or <tool> he world " * 3


@pytest.mark.parametrize("stretch", [1, 2, 7, 20])
def test_where_a_long_text_is_cut_makes_no_difference(
    stretch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for metadata in (small_byte_level(), small_sentencepiece()):
        tokenizer = Tokenizer.from_metadata(metadata)
        whole = tokenizer.encode(TEXT)
        with monkeypatch.context() as patch:
            patch.setattr(byte_level, "_STRETCH", stretch)
            patch.setattr(sentencepiece_bpe, "_STRETCH", stretch)
            assert tokenizer.encode(TEXT) == whole
        assert tokenizer.decode(whole) == TEXT


def test_a_token_with_a_space_inside_is_not_cut_there(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = [("▁", -9.0), ("a", -9.0), ("b", -9.0), ("a▁", -2.0), ("a▁b", -1.0), ("▁b", -3.0)]
    tokenizer = Tokenizer.from_metadata(sentencepiece(pieces, add_space_prefix=False))
    # "b b" may be cut behind the first b, "a b" may not.
    wanted = [263, 264, 264]
    monkeypatch.setattr(sentencepiece_bpe, "_STRETCH", 1)
    assert tokenizer.encode("a b b b", add_bos=False) == wanted
    assert tokenizer.encode("b a b", add_bos=False) == [261, 259, 263]


# Special tokens


def _phi3(**changes: Any) -> Tokenizer:
    metadata = {**small_sentencepiece(), "general.name": "Phi-3 mini"}
    tokens = [*metadata["tokenizer.ggml.tokens"], "<|user|>", "<|endoftext|>"]
    types = [*metadata["tokenizer.ggml.token_type"], 3, 3]
    scores = [*metadata["tokenizer.ggml.scores"], 0.0, 0.0]
    return Tokenizer.from_metadata(
        metadata
        | {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
        | {"tokenizer.ggml.scores": scores, "tokenizer.ggml.add_space_prefix": False}
        | changes
    )


def _parsed(tokenizer: Tokenizer, text: str) -> str:
    ids = tokenizer.encode(text, add_bos=False, parse_special=True)
    return tokenizer.decode(ids, skip_special=False)


@pytest.mark.parametrize("name", ["Phi-3 mini", "phi3", "PHI-3"])
def test_white_space_behind_special_tokens_of_phi3_is_swallowed(name: str) -> None:
    tokenizer = _phi3(**{"general.name": name})
    assert _parsed(tokenizer, "he<|user|> \t\n\v\f\rhe <|user|>he") == "he<|user|>he <|user|>he"
    # Not other blanks, and not behind these three.
    for text in ("<|user|>\u00a0he", "<s> he", "<unk>\nhe", "<|endoftext|> he"):
        assert _parsed(tokenizer, text) == text
    assert _parsed(_phi3(**{"general.name": "phi-2"}), "<|user|> he") == "<|user|> he"


def test_special_tokens_are_found_leftmost_and_longest() -> None:
    user_defined = ["<a>", "<a>b", "a>", "<", "<<"]
    metadata = byte_level_metadata(BYTE_CHARACTERS, user_defined=user_defined)
    tokenizer = Tokenizer.from_metadata(metadata)
    a, ab, tail, one, two = range(256, 261)
    space, letter_a, letter_x = (BYTE_CHARACTERS.index(character) for character in "Ġax")
    for text, wanted in {
        "<a><a>b": [a, ab],
        "a>": [tail],
        "<<a>": [two, tail],
        "<<<a>": [two, a],
        "< <": [one, space, one],
        "<a": [one, letter_a],
        "x<": [letter_x, one],
    }.items():
        assert tokenizer.encode(text) == wanted, text


def test_of_tokens_that_start_alike_the_short_one_is_found_too() -> None:
    """A token of one character beside one of which only the beginning stands there."""
    metadata = byte_level_metadata(BYTE_CHARACTERS, user_defined=["世", "世ab"])
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.encode("世ac") == [256, BYTE_CHARACTERS.index("a"), BYTE_CHARACTERS.index("c")]


def test_text_does_not_merge_to_a_control_token() -> None:
    metadata = byte_level_metadata(BYTE_CHARACTERS, ["a b"], special=["ab"])
    assert Tokenizer.from_metadata(metadata).encode("ab") == [ord("a"), ord("b")]


def test_merges_of_parts_that_are_not_there_are_left_out() -> None:
    tokens = [*BYTE_CHARACTERS, "abc", "bc"]
    tokenizer = Tokenizer.from_metadata(byte_level_metadata(tokens, ["ab c", "b c"]))
    assert tokenizer.encode("abc") == [ord("a"), 257]


# What modules make once


def test_the_alphabet_of_bytes_is_that_of_gpt2() -> None:
    """Printable Latin-1 stands for itself, the others from U+0100 on in their order."""
    found = _byte_characters()
    assert found == BYTE_CHARACTERS
    assert len(found) == 256
    changed = [*range(0x21), *range(0x7F, 0xA1), 0xAD]
    assert [ord(found[byte]) for byte in changed] == list(range(0x100, 0x144))
    assert all(ord(found[byte]) == byte for byte in set(range(256)) - set(changed))


def test_expressions_are_those_that_were_published() -> None:
    """But for line ends, which are written so that a long run of spaces fails at once."""
    ends = r"(?>(?:[^\S\r\n]*+[\r\n]+)+)"
    blanks = r"\s+(?!\S)|\s+"
    short = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    other = r"[^\r\n\p{L}\p{N}]?"
    llama3 = (
        rf"{short}|{other}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{ends}|{blanks}"
    )
    assert _words(r"\p{N}{1,3}") == llama3
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    words = rf"{other}{upper}*{lower}+|{other}{upper}+{lower}*"
    signs = r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*"
    assert _cased_words(r"\p{N}") == f"{words}|{signs}|{ends}|{blanks}"


# Vocabularies


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "an array of nothing"),
        ([1, "a"], "an array of int and str"),
        (np.zeros(3, np.int16), "an array of int16"),
        (float("inf"), "inf"),
        (1.5, "float 1.5"),
        (1, "int 1"),
        ("x" * 60, "str '" + "x" * 39),
    ],
)
def test_errors_say_what_was_found(value: object, words: str) -> None:
    metadata = small_byte_level() | {"tokenizer.ggml.add_bos_token": value}
    with pytest.raises(GGUFError) as caught:
        Tokenizer.from_metadata(metadata, source="a file")
    assert str(caught.value).startswith(f"a file: tokenizer.ggml.add_bos_token is {words};")


def test_an_empty_text_gets_a_name_by_its_id() -> None:
    vocabulary = load_vocabulary(byte_level_metadata(["a", "", "b"]), source="test")
    assert vocabulary.texts == ("a", "[EMPTY_1]", "b")


def test_merges_are_pairs_cut_at_the_first_space() -> None:
    metadata = byte_level_metadata(["a"], ["a b", "a b c", "ab", " a", "a ", "a b"])
    vocabulary = load_vocabulary(metadata, source="test")
    assert vocabulary.merges == (("a", "b"), ("a", "b c"))


def test_scores_are_as_f32_and_zeros_where_there_are_none() -> None:
    metadata = sentencepiece([("a", 0.1)])
    assert load_vocabulary(metadata, source="test").scores[-1] == float(np.float32(0.1))
    del metadata["tokenizer.ggml.scores"]
    assert load_vocabulary(metadata, source="test").scores == (0.0,) * 260
    assert load_vocabulary(small_byte_level(), source="test").scores == ()


def test_special_ids_are_sentencepieces_own_where_the_file_has_none() -> None:
    found = load_vocabulary(small_sentencepiece(), source="test")
    assert (found.bos_id, found.eos_id, found.unknown_id) == (1, 2, 0)
    named = small_sentencepiece(bos_token_id=5, eos_token_id=0, unknown_token_id=281)
    found = load_vocabulary(named, source="test")
    assert (found.bos_id, found.eos_id, found.unknown_id) == (5, 0, 281)
    metadata = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["a", "b"]}
    small = load_vocabulary(metadata, source="test")
    assert (small.bos_id, small.eos_id, small.unknown_id) == (1, None, 0)


def test_special_ids_are_control_tokens_where_the_file_has_no_types() -> None:
    metadata = small_sentencepiece(bos_token_id=260)
    del metadata["tokenizer.ggml.token_type"]
    tokenizer = Tokenizer.from_metadata(metadata)
    is_special = [tokenizer.is_special(token_id) for token_id in range(tokenizer.vocab_size)]
    assert [token_id for token_id, special in enumerate(is_special) if special] == [0, 2, 260]
    typed = Tokenizer.from_metadata(small_sentencepiece(bos_token_id=260))
    assert not typed.is_special(260)


def test_flags_may_come_from_numpy_and_say_when_they_mean_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert Tokenizer.from_metadata(small_sentencepiece(add_eos_token=np.bool_(True))).add_eos
    with caplog.at_level(logging.WARNING):
        plain = Tokenizer.from_metadata(small_byte_level(add_eos_token=True), source="a file")
    assert not plain.add_eos
    assert caplog.messages == [
        "a file: tokenizer.ggml.add_eos_token is set, but there is no such token"
    ]


def test_a_warning_about_an_unknown_id_gives_the_valid_ones(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        Tokenizer.from_metadata(small_byte_level(eos_token_id=266), source="a file")
    assert caplog.messages == [
        "a file: tokenizer.ggml.eos_token_id is 266, but the vocabulary has the ids 0 to 265; "
        "ignored"
    ]
    assert Tokenizer.from_metadata(small_byte_level(eos_token_id=265)).eos_id == 265
    assert Tokenizer.from_metadata(small_byte_level(eos_token_id=0)).eos_id == 0


def test_files_without_a_pre_tokenizer_are_cut_as_their_architecture_does() -> None:
    metadata = small_byte_level() | {"general.architecture": "falcon"}
    assert load_vocabulary(metadata, source="test").pre is pre_tokenizer("falcon")


def test_token_11_ends_texts_where_it_is_there_and_a_control_token() -> None:
    eleven = load_vocabulary(byte_level_metadata("abcdefghijk"), source="test")
    assert (eleven.bos_id, eleven.eos_id) == (None, None)
    twelve = load_vocabulary(byte_level_metadata("abcdefghijk", special=["<|x|>"]), source="test")
    assert (twelve.bos_id, twelve.eos_id) == (11, 11)


def test_a_chat_template_is_a_text_or_nothing() -> None:
    key = "tokenizer.chat_template"
    assert Tokenizer.from_metadata(small_byte_level() | {key: "{{ x }}"}).chat_template == "{{ x }}"
    assert Tokenizer.from_metadata(small_byte_level() | {key: ""}).chat_template is None
    assert Tokenizer.from_metadata(small_byte_level()).chat_template is None
    with pytest.raises(GGUFError, match=r"tokenizer\.chat_template is int 3; a string is needed"):
        Tokenizer.from_metadata(small_byte_level() | {key: 3})


# Templates


def _render(template: str, **extra: Any) -> str:
    return render_chat(template, [{"role": "user", "content": "Hi"}], **extra)


def test_a_template_may_repeat_up_to_a_mebibyte() -> None:
    assert _render("{{ ('a' * 1048576) | length }}{{ (1048576 * [1]) | length }}") == "1048576" * 2
    for product in ("'a' * 1048577", "1048577 * 'a'", "[1] * 1048577", "(1, 2) * 524289"):
        with pytest.raises(PromptError, match=r"forbidden: a repetition of . times"):
            _render("{{ " + product + " }}")
    # Numbers are multiplied as they are.
    assert _render("{{ 3000000 * 3000000 }}{{ 'ab' * 2 }}{{ 2 * 'ab' }}") == "9000000000000abababab"


def test_a_template_may_raise_to_the_64th_power() -> None:
    assert _render("{{ 2 ** 64 }}") == str(2**64)
    assert _render("{{ 2 ** -64 > 0 }}") == "True"
    for power in (65, -65):
        with pytest.raises(PromptError, match=f"forbidden: {power} is too large an exponent"):
            _render("{{ 2 ** " + str(power) + " }}")


def test_json_in_templates_is_not_escaped_unless_asked_for() -> None:
    assert _render("{{ 'é<' | tojson }}") == '"é<"'
    assert _render("{{ 'é' | tojson(ensure_ascii=true) }}") == '"\\u00e9"'
    assert _render("{{ [1] | tojson }}{{ [1] | tojson(indent=1) }}") == "[1][\n 1\n]"


def test_blocks_leave_no_blanks_and_loops_can_be_left() -> None:
    template = "a\n  {% for n in [1, 2, 3, 4] %}\n{% if n == 2 %}{% continue %}{% endif %}\n"
    template += "{% if n == 4 %}{% break %}{% endif %}\n{{ n }}\n  {% endfor %}\nb"
    assert _render(template) == "a\n1\n3\nb"


def test_a_template_gets_what_the_caller_gives() -> None:
    template = "{{ bos_token }}|{{ eos_token }}|{{ add_generation_prompt }}|{{ tools }}"
    assert _render(template) == "||True|None"
    given = _render(template, bos_token="<s>", eos_token="</s>", tools=3)
    assert given == "<s>|</s>|True|3"
    assert _render(template, add_generation_prompt=False) == "||False|None"


def test_an_error_about_a_malformed_message_gives_its_number() -> None:
    good = {"role": "user", "content": "Hi"}
    with pytest.raises(PromptError, match=r"^message 0 is 'Hi'; expected a mapping"):
        render_chat(None, ["Hi"])  # type: ignore[list-item]
    with pytest.raises(PromptError, match=r"^message 1 is \{\}; expected a mapping"):
        render_chat(None, [good, {}])
