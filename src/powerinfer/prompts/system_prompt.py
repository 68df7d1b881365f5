"""The system prompt that a chat template writes when the messages have none."""

from itertools import takewhile
from operator import eq

from powerinfer.errors import PromptError
from powerinfer.prompts.messages import Message, chat_text
from powerinfer.tokenizer import Tokenizer

__all__ = ["builtin_system_prompt"]

# Texts that no template contains; the first message and its answer, the second, a system message.
_FIRST, _ANSWER, _SECOND, _SYSTEM = "first~message", "an~answer", "second~message", "some~system"


def builtin_system_prompt(tokenizer: Tokenizer) -> str | None:
    """What the chat template of a model says in place of a system message, None if nothing.

    It is what stands where a given system message would. Where such a message goes to another
    place (gpt-oss), it is all that precedes the first message, marks included.
    """
    if tokenizer.chat_template is None:
        return None
    user: Message = {"role": "user", "content": _FIRST}
    before = _before_message(tokenizer, [user])
    if before is None:
        return None
    given = _before_message(tokenizer, [{"role": "system", "content": _SYSTEM}, user])
    begin, _, end = (given or "").partition(_SYSTEM)
    if end and before.startswith(begin) and before.endswith(end):
        instead = before[len(begin) : len(before) - len(end)].strip()
        if instead:
            return instead
    return _not_of_each_turn(tokenizer, before, user)


def _before_message(tokenizer: Tokenizer, messages: list[Message]) -> str | None:
    """The text before the first message of the user; None if the template refuses the messages."""
    try:
        before, found, _ = chat_text(tokenizer, messages).partition(_FIRST)
    except PromptError:
        return None
    return before if found else None


def _not_of_each_turn(tokenizer: Tokenizer, before: str, user: Message) -> str | None:
    """What precedes the first message, without what precedes each of them."""
    turns: list[Message] = [
        user,
        {"role": "assistant", "content": _ANSWER},
        {"role": "user", "content": _SECOND},
    ]
    try:
        between = chat_text(tokenizer, turns).partition(_ANSWER)[2].partition(_SECOND)[0]
    except PromptError:
        return None
    of_turn = sum(takewhile(bool, map(eq, reversed(before), reversed(between))))
    bos = "" if tokenizer.bos_id is None else tokenizer.piece(tokenizer.bos_id)
    rest = before[: len(before) - of_turn].removeprefix(bos).strip()
    return rest or None
