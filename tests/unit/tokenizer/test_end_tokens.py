"""Which tokens end an answer: those of the keys, and those that llama.cpp knows by their texts."""

import pytest

from powerinfer.tokenizer import Tokenizer
from powerinfer.tokenizer.pieces import BYTE_CHARACTERS
from tokenizer_metadata import CONTROL, NORMAL, USER_DEFINED, byte_level, sentencepiece

# Special tokens of a family, the key of its GGUF files, and the texts that end an answer.
FAMILIES = {
    "qwen3": (
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|fim_pad|>", "<|repo_name|>"],
        {"eos_token_id": 258},
        {"<|endoftext|>", "<|im_end|>", "<|fim_pad|>", "<|repo_name|>"},
    ),
    "smallthinker": (
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        {"eos_token_id": 256},
        {"<|endoftext|>", "<|im_end|>"},
    ),
    "gpt-oss": (
        [
            *("<|startoftext|>", "<|endoftext|>", "<|return|>", "<|constrain|>", "<|channel|>"),
            *("<|start|>", "<|end|>", "<|message|>", "<|call|>"),
        ],
        {"eos_token_id": 258},
        {"<|endoftext|>", "<|return|>", "<|call|>"},
    ),
    "solar-open": (
        ["<|begin|>", "<|end|>", "<|calls|>", "<|flush|>", "<|think|>"],
        {"eos_token_id": 259},
        {"<|calls|>", "<|flush|>"},
    ),
    "phi-4": (["<|user|>", "<|end|>", "<|call|>"], {}, {"<|end|>", "<|call|>"}),
    "granite": (
        ["<|end_of_text|>", "<fim_prefix>", "<fim_pad>", "<reponame>", "<|start_of_role|>"],
        {"eos_token_id": 256},
        {"<|end_of_text|>", "<fim_pad>", "<reponame>"},
    ),
    "olmoe": (["<|endoftext|>", "<|padding|>"], {"eos_token_id": 256}, {"<|endoftext|>"}),
    "keys alone": (
        ["<a>", "<b>", "<c>", "<d>"],
        {"eos_token_id": 256, "eot_token_id": 257, "eom_token_id": 258},
        {"<a>", "<b>", "<c>"},
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_end_token_ends_a_generation(family: str) -> None:
    special, keys, ends = FAMILIES[family]
    tokenizer = Tokenizer.from_metadata(byte_level(BYTE_CHARACTERS, special=special, keys=keys))
    assert {tokenizer.piece(token_id) for token_id in tokenizer.eog_ids} == ends


def test_gemma_stops_at_its_turn_and_not_at_html() -> None:
    """Of its vocabulary `</s>` is an ordinary word; a control token of that text is an end."""
    pieces = [("<start_of_turn>", 0.0), ("<end_of_turn>", 0.0), ("<eos>", 0.0), ("</s >", 0.0)]
    metadata = sentencepiece(pieces, eos_token_id=261, bos_token_id=1)
    texts, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    types[259:262] = [int(CONTROL)] * 3
    assert texts[2] == "</s>"
    for kind, ends in ((NORMAL, {260, 261}), (USER_DEFINED, {260, 261}), (CONTROL, {2, 260, 261})):
        types[2] = int(kind)
        assert Tokenizer.from_metadata(metadata).eog_ids == ends


def test_end_tokens_are_control_tokens_whatever_their_type_says() -> None:
    tokenizer = Tokenizer.from_metadata(byte_level([*BYTE_CHARACTERS, "<|im_end|>"]))
    assert tokenizer.is_special(256)
    assert tokenizer.decode([256]) == ""
    assert tokenizer.eog_ids == {256}


def test_the_marks_of_a_harmony_answer_are_shown_but_no_text_of_a_user_makes_them() -> None:
    """llama.cpp shows them too. A key that names <|end|> as end of turn does not make it an end."""
    special = ["<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|return|>", "<|call|>"]
    keys = {"eot_token_id": 258, "eos_token_id": 260, "pre": "gpt-4o"}
    tokenizer = Tokenizer.from_metadata(byte_level(BYTE_CHARACTERS, special=special, keys=keys))
    assert tokenizer.eog_ids == {260, 261}
    ids = [256, ord("a"), 257, ord("b"), 258, 259, 260]
    assert tokenizer.decode(ids) == "<|channel|>a<|message|>b<|end|><|start|>"
    assert tokenizer.encode("<|end|>") == [ord(character) for character in "<|end|>"]
    assert tokenizer.encode("<|end|>", parse_special=True) == [258]


def test_the_same_texts_elsewhere_are_hidden() -> None:
    special = ["<|channel|>", "<|message|>", "<|end|>", "<|start|>"]
    tokenizer = Tokenizer.from_metadata(byte_level(BYTE_CHARACTERS, special=special))
    assert tokenizer.decode([256, 257, 259]) == ""
    assert tokenizer.eog_ids == {258}


def test_the_marks_of_calls_and_thoughts_are_shown() -> None:
    """Mistral's, Llama's and LFM2's are control tokens; without them nobody could read a call."""
    shown = ["[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "[THINK]", "<|tool_call_start|>"]
    special = [*shown, "[INST]"]
    tokenizer = Tokenizer.from_metadata(byte_level(BYTE_CHARACTERS, special=special))
    assert tokenizer.decode(range(256, 262)) == "".join(shown)
    assert tokenizer.encode("[ARGS]") == [ord(character) for character in "[ARGS]"]
    assert not tokenizer.is_harmony
