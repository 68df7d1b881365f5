"""Types of tokens, and the texts of the tokens that end an answer.

GGUF names one or two tokens that end a text, but models have more. llama.cpp recognises the others
by their texts; the lists here are those of its `llama-vocab.cpp`.
"""

from collections.abc import Collection, Mapping, MutableSequence, Sequence
from enum import IntEnum

__all__ = ["TokenType", "call_marks", "end_ids", "harmony_marks", "mark_end_texts"]


class TokenType(IntEnum):
    """Values of `tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Tokens that end an answer; they are control tokens whatever their type.
_END_TEXTS = frozenset(
    (
        *("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>"),
        *("<|flush|>", "<|calls|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>"),
        *("<EOT>", "_<EOT>", "[EOT]", "<end_of_utterance>", "<｜end▁of▁sentence｜>"),
        # Models of code continue with another file there.
        *("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>"),
        *("<reponame>", "<|file_sep|>"),
        # Gemma 4 hands over there for the result of a call; its converter calls it user-defined.
        "<|tool_response>",
    )
)
# These also occur in text: `</s>` is HTML in Gemma's vocabularies.
_END_TEXTS_IF_CONTROL = frozenset(
    ("</s>", "<eos>", "[EOS]", "<turn|>", "[e~[", "<PAD>", "[PAD]", "<REPO>")
)
# If both texts of a pair exist, <|end|> only closes a part of an answer.
_MANY_PARTS = (("<|return|>", "<|call|>"), ("<|calls|>", "<|flush|>"))
# Marks of the parts of an answer in the format "harmony" of gpt-oss.
_HARMONY = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>")
# Marks of tool calls and of reasoning in other models' answers, where they are control tokens.
_CALLS = (
    *("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "<|python_tag|>", "<tool_call>", "</tool_call>"),
    *("[THINK]", "[/THINK]", "<think>", "</think>", "<|tool_call_start|>", "<|tool_call_end|>"),
    *("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>'),
)


def mark_end_texts(ids: Mapping[str, int], types: MutableSequence[TokenType]) -> None:
    """Turn tokens with the text of an end of an answer into control tokens, in `types`."""
    for text in _END_TEXTS & ids.keys():
        types[ids[text]] = TokenType.CONTROL


def end_ids(
    ids: Mapping[str, int], types: Sequence[TokenType], named: Collection[int]
) -> frozenset[int]:
    """Return the ids of tokens that end an answer: those the file names and those known by text."""
    known = (ids[text] for text in (_END_TEXTS | _END_TEXTS_IF_CONTROL) & ids.keys())
    ends = {*named, *(token_id for token_id in known if types[token_id] is TokenType.CONTROL)}
    if any(first in ids and second in ids for first, second in _MANY_PARTS):
        ends.discard(ids.get("<|end|>", -1))
    return frozenset(ends)


def harmony_marks(ids: Mapping[str, int]) -> frozenset[int]:
    """Return the ids of marks between the parts of an answer; none for other formats."""
    first, second = _MANY_PARTS[0]
    is_harmony = first in ids and second in ids and "<|channel|>" in ids
    return frozenset(ids[text] for text in _HARMONY if text in ids) if is_harmony else frozenset()


def call_marks(ids: Mapping[str, int]) -> frozenset[int]:
    """Ids of the marks around tool calls and around reasoning; see `harmony_marks`."""
    return frozenset(ids[text] for text in _CALLS if text in ids)
