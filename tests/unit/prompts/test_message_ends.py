"""Ends of the messages in prompts, where later prompts of a chat may go on otherwise."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chat_tokenizers import chat_tokenizer
from powerinfer.errors import PromptError
from powerinfer.prompts.messages import Message, message_ends, message_ids
from template_cases import TEMPLATES

QWEN, LLAMA = "Qwen-Qwen3-0.6B", "meta-llama-Llama-3.1-8B-Instruct"
DEEPSEEK = (
    "{% for m in messages %}{{ '<User>' ~ m.content if m.role == 'user' else '<Assistant>' ~ "
    "m.content ~ '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}<Assistant><think>\n{% endif %}"
)


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def assistant(content: str) -> Message:
    return {"role": "assistant", "content": content}


TALK = [user("Hi"), assistant("Hello.\n"), user(" Well\n\nyes ")]


def parts(template: str, messages: Sequence[Message] = (), **variables: Any) -> list[str]:
    """The prompt of `TALK`, cut at the ends that are found."""
    tokenizer = chat_tokenizer(template)
    ids = message_ids(tokenizer, TALK, 4096, **variables)
    ends = message_ends(tokenizer, ids, messages, **variables)
    cuts = zip((0, *ends), (*ends, len(ids)), strict=True)
    return [tokenizer.decode(ids[start:end], skip_special=False) for start, end in cuts]


def test_messages_end_behind_the_tokens_that_end_answers() -> None:
    assert parts(QWEN) == [
        "<|im_start|>user\nHi<|im_end|>\n",
        "<|im_start|>assistant\nHello.\n<|im_end|>\n",
        "<|im_start|>user\n Well\n\nyes <|im_end|>\n",
        "<|im_start|>assistant\n",
    ]


@pytest.mark.parametrize("thinks", [False, True])
def test_the_last_message_ends_where_the_beginning_of_the_answer_starts(thinks: bool) -> None:
    assert parts(QWEN, TALK, enable_thinking=thinks)[:3] == parts(QWEN)[:3]
    assert parts(DEEPSEEK)[1:] == ["<User> Well\n\nyes <Assistant><think>\n"]
    assert parts(DEEPSEEK, TALK)[1:] == ["<User> Well\n\nyes ", "<Assistant><think>\n"]


def test_a_template_may_write_no_beginning_of_an_answer() -> None:
    nemo = "mistralai-Mistral-Nemo-Instruct-2407"
    assert parts(nemo, TALK) == parts(nemo)


def test_a_short_beginning_of_an_answer_is_not_looked_for() -> None:
    template = (
        "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
        "{{ 'answer:' if add_generation_prompt else raise_exception('rendered again') }}"
    )
    assert parts(template, TALK) == parts(template)
    with pytest.raises(PromptError, match="rendered again"):
        parts(template.replace("answer:", "answer:" * 3), TALK)


def test_any_text_may_hold_messages() -> None:
    tokenizer = chat_tokenizer(QWEN)
    ids = tokenizer.encode("a<|im_end|><|im_end|>\n \nb<|im_end|>", parse_special=True)
    assert message_ends(tokenizer, ids) == (2, 6)
    assert message_ends(tokenizer, []) == ()


@given(
    texts=st.lists(st.text("ab \n<|"), min_size=1, max_size=4),
    template=st.sampled_from([*TEMPLATES, DEEPSEEK]),
)
def test_the_next_prompt_begins_with_one_of_the_ends_or_all(
    texts: list[str], template: str
) -> None:
    """All but the beginning of the answer comes again when a chat goes on."""
    tokenizer = chat_tokenizer(template)
    talk = [turn for text in texts for turn in (user(f"{text}?"), assistant(f"{text}!"))]
    talk.append(user("Ok"))
    for count in range(1, len(talk), 2):
        try:
            ids = message_ids(tokenizer, talk[:count], 1 << 16)
            later = message_ids(tokenizer, talk[: count + 2], 1 << 16)
        except PromptError:
            return
        ends = message_ends(tokenizer, ids, talk[:count])
        assert list(ends) == sorted({*ends})
        assert all(0 < end < len(ids) for end in ends)
        pairs = enumerate(zip(ids, later, strict=False))
        shared = next((at for at, (one, other) in pairs if one != other), len(ids))
        last = max((end for end in (*ends, len(ids)) if end <= shared), default=0)
        assert shared - last < 60, tokenizer.decode(ids[last:shared])
