"""Answers of gpt-oss: their marks, what is shown of them, what goes back to the model."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerinfer import LLM, SamplingParams
from powerinfer.engine.conversation import Conversation
from powerinfer.prompts.harmony import shown_parts, split_parts
from powerinfer.sampling.sampler import Sampler
from powerinfer.tokenizer import Tokenizer
from tiny_models import TINY_MODELS, write_model

REASONING = "<|channel|>analysis<|message|>They greet.\nI greet."
FINAL = "<|start|>assistant<|channel|>final<|message|>Hello!"
# What the model writes; reasoning and text that the template gets; what the user sees.
ANSWERS = {
    "reasoning and text": (
        f"{REASONING}<|end|>{FINAL}",
        ("They greet.\nI greet.", "Hello!"),
        "<think>\nThey greet.\nI greet.\n</think>\n\nHello!",
    ),
    "text alone": ("<|channel|>final<|message|>Hello!", (None, "Hello!"), "Hello!"),
    "no channel": ("<|message|>Hello!<|end|>", (None, "Hello!"), "Hello!"),
    "no marks": ("Hello < you |> <|x", (None, "Hello < you |> <|x"), "Hello < you |> <|x"),
    "cut in reasoning": (
        REASONING,
        ("They greet.\nI greet.", ""),
        "<think>\nThey greet.\nI greet.\n</think>\n",
    ),
    "cut in a header": (
        f"{REASONING}<|end|><|start|>assis",
        ("They greet.\nI greet.", ""),
        "<think>\nThey greet.\nI greet.\n</think>\n",
    ),
    "two parts of reasoning": (
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant"
        f"<|channel|>analysis<|message|>b<|end|>{FINAL}",
        ("a\n\nb", "Hello!"),
        "<think>\na\nb\n</think>\n\nHello!",
    ),
    "a word before": (
        "<|channel|>commentary<|message|>Wait.<|end|>" + FINAL,
        (None, "Wait.\n\nHello!"),
        "Wait.\n\nHello!",
    ),
    "a call": (
        REASONING + "<|end|><|start|>assistant<|channel|>commentary to=functions.f "
        '<|constrain|>json<|message|>{"a": 1}',
        ("They greet.\nI greet.", '{"a": 1}'),
        '<think>\nThey greet.\nI greet.\n</think>\n\n{"a": 1}',
    ),
    "reasoning that never end, then text": (
        f"{REASONING}{FINAL}",
        ("They greet.\nI greet.", "Hello!"),
        "<think>\nThey greet.\nI greet.\n</think>\n\nHello!",
    ),
    "an unknown mark": ("<|message|>a<|x|>b", (None, "a<|x|>b"), "a<|x|>b"),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_reasoning_and_text_are_told_apart(case: str) -> None:
    text, (reasoning, said), shown = ANSWERS[case]
    assert "".join(shown_parts([text])) == shown
    assert "".join(shown_parts(text)) == shown
    expected = {"role": "assistant", "content": said}
    expected |= {} if reasoning is None else {"reasoning_content": reasoning}
    assert split_parts({"role": "assistant", "content": text}) == expected


@given(case=st.sampled_from(sorted(ANSWERS)), cuts=st.lists(st.integers(0, 150), max_size=8))
def test_where_the_stream_was_cut_does_not_matter(case: str, cuts: list[int]) -> None:
    text, _, shown = ANSWERS[case]
    ends = [*sorted(cuts), len(text)]
    pieces = [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    assert "".join(shown_parts(pieces)) == shown


def test_text_is_shown_when_it_comes() -> None:
    """Only what may become a mark is held back."""
    sent: list[str] = []

    def pieces() -> Iterator[str]:
        for piece in ("<|channel|>", "final", "<|message|>", "a", " <", " b <|", "end|>"):
            sent.append(piece)
            yield piece

    seen = [(len(sent), text) for text in shown_parts(pieces())]
    assert seen == [
        (4, "a"),
        (5, " "),
        (6, "< b "),
    ]


def test_other_messages_stay_as_they_are() -> None:
    marked = f"{REASONING}<|end|>{FINAL}"
    for message in (
        {"role": "user", "content": marked},
        {"role": "assistant", "content": "Hi"},
        {"role": "assistant", "content": None},
        {"role": "assistant"},
    ):
        assert split_parts(message) is message
    kept = split_parts({"role": "assistant", "content": marked, "name": "x"})
    assert kept["name"] == "x"


@pytest.fixture
def llm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LLM:
    """A model that writes one of the answers, in bytes, and whose template shows what it gets."""
    text, _, _ = ANSWERS["reasoning and text"]
    ids: list[int] = []

    def sample(*_: object) -> int:
        if not ids:
            ids.extend([*(3 + byte for byte in text.encode()), 2])
        return ids.pop(0)

    template = "{% for m in messages %}{{ m.role }}({{ m.thinking }}|{{ m.content }}){% endfor %}"
    monkeypatch.setattr(Sampler, "sample", sample)
    monkeypatch.setattr(Tokenizer, "is_harmony", property(lambda _: True))
    monkeypatch.setattr(Tokenizer, "chat_template", property(lambda _: template))
    path = write_model(tmp_path / "tiny.gguf", TINY_MODELS["llama"])
    return LLM(path, kernels="reference", context_length=400, reuse_prefix=True)


def test_a_conversation_shows_thoughts_and_sends_them_apart(llm: LLM) -> None:
    talk = Conversation(llm, SamplingParams(max_tokens=200))
    _, (reasoning, said), shown = ANSWERS["reasoning and text"]
    assert "".join(talk.ask("hi")) == shown
    answer = {"role": "assistant", "content": said, "reasoning_content": reasoning}
    assert talk.messages[1:] == [answer]
    talk.messages.append({"role": "user", "content": "so"})
    prompt = f"user(|hi)assistant({reasoning}|{said})user(|so)"
    assert llm.decode(talk._encode()) == prompt


def test_an_answer_may_go_back_as_it_was_generated(llm: LLM) -> None:
    asked = {"role": "user", "content": "hi"}
    generated = llm.chat([asked], SamplingParams(max_tokens=200))
    text, (reasoning, said), _ = ANSWERS["reasoning and text"]
    assert generated.text == text
    ids = llm.chat_prompt([asked, {"role": "assistant", "content": generated.text}])
    assert llm.decode(ids) == f"user(|hi)assistant({reasoning}|{said})"
