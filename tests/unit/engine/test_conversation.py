"""Conversations and the context: what is forgotten, what is kept, what comes back."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from powerinfer import LLM, PowerInferError, PromptError, SamplingParams
from powerinfer.engine.conversation import Conversation
from powerinfer.sampling.logprobs import TokenLogprob
from powerinfer.store.default_model import story_text
from powerinfer.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("no_end_tokens")


def _joined(messages: Sequence[dict[str, str]]) -> str:
    return "".join(each["content"] for each in messages)


def talk_on(tiny: Path, context_length: int, max_tokens: int | None) -> Conversation:
    llm = LLM(tiny, kernels="reference", context_length=context_length, reuse_prefix=True)
    return Conversation(llm, SamplingParams(seed=2, max_tokens=max_tokens))


@pytest.mark.parametrize(("max_tokens", "room"), [(None, 32), (20, 20), (100, 64), (0, 0)])
def test_room_for_an_answer_is_kept(tiny: Path, max_tokens: int | None, room: int) -> None:
    """As many tokens as were asked for, at most half of the context; else a quarter of it."""
    talk = talk_on(tiny, 128, 4)
    for _ in range(8):
        list(talk.ask("hello world, hello"))
    talk.params = SamplingParams(seed=2, max_tokens=max_tokens)
    talk.messages.append({"role": "user", "content": "hello"})
    assert len(talk._prompt_ids()) <= 128 - room
    first = talk.num_dropped
    assert first >= 2
    assert len(talk._prompt_ids()) == len(talk._encode(first))


def test_a_full_context_is_emptied_by_half_and_not_for_every_message(tiny: Path) -> None:
    """The prompt's beginning, and with it what was computed, stays for several messages."""
    talk = talk_on(tiny, 256, 8)
    dropped, computed = [0], []
    for _ in range(24):
        list(talk.ask("hello"))
        assert talk.last is not None
        dropped.append(talk.num_dropped)
        computed.append(talk.last.metrics.prefill_tokens)
    jumps = [later - earlier for earlier, later in pairwise(dropped) if later > earlier]
    assert len(jumps) >= 2
    assert min(jumps) >= 6
    assert sum(num > 60 for num in computed) == len(jumps)
    assert max(computed) <= 128


def test_undo_removes_from_the_last_question_on(tiny: Path) -> None:
    """Also one that has no answer."""
    talk = talk_on(tiny, 128, 4)
    list(talk.ask("hello"))
    talk.messages.append({"role": "user", "content": "and"})
    assert talk.undo() == "and"
    assert [each["content"] for each in talk.messages[::2]] == ["hello"]


def test_a_closed_model_leaves_no_question_behind(tiny: Path) -> None:
    talk = talk_on(tiny, 128, 4)
    list(talk.ask("hello"))
    talk._llm.close()
    with pytest.raises(PowerInferError, match="was closed"):
        list(talk.ask("again"))
    assert len(talk.messages) == 2


def test_answers_without_end_leave_the_conversation_alive(tiny: Path) -> None:
    talk = talk_on(tiny, 64, None)
    for _ in range(4):
        assert list(talk.ask("hello"))
        assert talk.last is not None
        assert len(talk.last.token_ids) >= 16
        assert talk.last.finish_reason == "length"
    assert talk.num_dropped == 6
    assert len(talk.messages) == 8


def test_a_message_that_fits_only_alone_is_answered(tiny: Path) -> None:
    talk = talk_on(tiny, 64, None)
    list(talk.ask("hello"))
    list(talk.ask("x" * 30))
    assert talk.num_dropped == 2
    with pytest.raises(PromptError, match="context holds 64"):
        list(talk.ask("x" * 100))
    assert len(talk.messages) == 4


def test_undo_brings_back_what_the_message_pushed_out(tiny: Path) -> None:
    talk = talk_on(tiny, 128, 8)
    assert talk.undo() is None
    list(talk.ask("hello"))
    list(talk.ask("x" * 70))
    assert talk.num_dropped == 2
    assert talk.undo() == "x" * 70
    list(talk.ask("go on"))
    assert talk.num_dropped == 0
    assert [each["content"] for each in talk.transcript[::2]] == ["hello", "go on"]
    talk.clear()
    assert talk.transcript == []


def test_changed_parameters_keep_the_stop_of_the_plain_dialogue(tiny: Path) -> None:
    talk = talk_on(tiny, 128, 4)
    talk.params = SamplingParams(stop="END", max_tokens=2)
    assert talk._params.stop_strings == ("END", "\nUser:")
    assert talk.params.stop_strings == ("END",)
    list(talk.ask("hello"))
    assert talk.last is not None
    assert len(talk.last.token_ids) == 2


def test_earlier_answers_are_computed_once_and_count_as_generated(tiny: Path) -> None:
    """Logits of an answer are those of the conversation, whatever the model did in between."""
    # Letters alone, which are one token each wherever they stand.
    letters = dict.fromkeys(range(260, 286), 100.0)
    params = SamplingParams(seed=2, max_tokens=6, logprobs=0, logit_bias=letters)

    def talk(
        *, is_disturbed: bool, reuse_prefix: bool = True
    ) -> tuple[list[TokenLogprob] | None, list[int]]:
        llm = LLM(tiny, context_length=256, reuse_prefix=reuse_prefix)
        talk = Conversation(llm, params, as_text=_joined)
        computed = []
        for text in ("hello", "world", "again"):
            if is_disturbed:
                llm.generate("something else", params)
            list(talk.ask(text))
            assert talk.last is not None
            computed.append(talk.last.metrics.prefill_tokens)
        return talk.last.logprobs if talk.last else None, computed

    calm, few = talk(is_disturbed=False)
    disturbed, as_few = talk(is_disturbed=True)
    assert calm == disturbed
    # The last token of an answer is computed with what follows, and so is the new message.
    assert few[1:] == [1 + len("world"), 1 + len("again")]
    assert as_few[1:] == few[1:]
    again, all_of_it = talk(is_disturbed=False, reuse_prefix=False)
    assert again == calm
    assert all_of_it[2] > len("helloworldagain") + 12


def test_marks_are_one_per_token_of_the_prompt(tiny: Path) -> None:
    llm = LLM(tiny)
    with pytest.raises(PromptError, match="is_prompt has 2 entries, the prompt has 3 tokens"):
        llm.stream([1, 2, 3], is_prompt=[True, False])
    with pytest.raises(PromptError, match="is_prompt has 2 entries, the prompt has 3 tokens"):
        llm.astream([1, 2, 3], is_prompt=[True, False])
    for wrong in (3, "abc", [True, False, None]):
        with pytest.raises(PromptError, match="is_prompt must be one bool for each token, got"):
            llm.stream([1, 2, 3], is_prompt=wrong)  # type: ignore[arg-type]


def test_a_prompt_may_be_written_without_a_template(tiny: Path) -> None:
    llm = LLM(tiny, kernels="reference")
    shown: list[list[str]] = []

    def as_text(messages: Sequence[dict[str, str]]) -> str:
        shown.append([each["content"] for each in messages])
        return "once"

    talk = Conversation(llm, SamplingParams(max_tokens=1), system="a tale", as_text=as_text)
    list(talk.ask("hello"))
    assert shown == [["a tale", "hello"]]
    assert talk._encode() == llm.encode("once")


def test_a_story_by_turns() -> None:
    turns = ["Once upon a time", ", there was a fox.", "A bear came.", "It was big."]
    roles = ["user", "assistant"] * 2
    messages = [{"role": r, "content": c} for r, c in zip(roles, turns, strict=True)]
    assert story_text(messages) == ("Once upon a time, there was a fox.\nA bear came. It was big.")
    assert story_text([]) == ""


@pytest.mark.parametrize("end", ["<think>", "<think>\n"])
def test_thoughts_that_the_prompt_begins_have_both_marks(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Templates find the end of the thoughts in the content, and the user their beginning."""
    template = "{% for m in messages %}{{ m.content }}|{% endfor %}" + end
    monkeypatch.setattr(Tokenizer, "chat_template", property(lambda _: template))
    talk = talk_on(tiny, 128, 8)
    pieces = list(talk.ask("hi"))
    assert talk.last is not None
    assert "".join(pieces) == "<think>\n" + talk.last.text
    assert talk.messages[-1]["content"] == ("<think>\n" + talk.last.text).strip()
    talk.messages[-1]["content"] = "so"
    monkeypatch.setattr(Tokenizer, "chat_template", property(lambda _: template + "</think>"))
    assert "".join(talk.ask("hi")) == talk.last.text
    monkeypatch.setattr(Tokenizer, "chat_template", property(lambda _: template))
    talk.params = SamplingParams(max_tokens=0)
    assert not list(talk.ask("hi"))
    assert talk.messages[-1]["content"] == ""
