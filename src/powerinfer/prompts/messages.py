"""Prompts from the messages of a conversation, by the model's chat template."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from powerinfer.errors import PromptError
from powerinfer.prompts.harmony import split_parts
from powerinfer.prompts.long_prompts import encode_prompt, too_long
from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.tokenizer import Tokenizer

__all__ = [
    "FALLBACK_STOP",
    "Message",
    "chat_text",
    "message_ends",
    "message_ids",
    "plain_message_ids",
    "with_chat_stop",
]

Message = Mapping[str, object]
"""`role` (system, user, assistant or others that the template knows) and `content`, both texts."""

# The text with which a model without a template begins to speak for the user (FALLBACK_TEMPLATE).
FALLBACK_STOP = "\nUser:"
# Tokens that cost less to compute again than to find.
_FEW_TOKENS = 16


def message_ids(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    context_length: int,
    **variables: object,
) -> list[int]:
    """Token ids of the prompt that makes the model answer the last message.

    `variables` are more variables for the template (`tools`, `enable_thinking` ...).

    Raises:
        PromptError: the messages are malformed, the template refuses them, or they are too long.
    """
    _check_contents(messages)
    text = chat_text(tokenizer, messages, variables)
    token_ids = encode_prompt(tokenizer, text, context_length, add_bos=False)
    if not token_ids:
        raise PromptError("the prompt is empty: the chat template wrote nothing for the messages")
    return token_ids


# Stands for a content while a template is rendered; no template writes it.
_PLACE = re.compile("\0([0-9]+)\0")


def plain_message_ids(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    context_length: int,
    **variables: object,
) -> list[int]:
    """Token ids as of `message_ids`, but contents stay text.

    Names of special tokens in them are not parsed, so that untrusted text cannot end its message.

    Raises:
        PromptError: as for `message_ids`.
    """
    _check_contents(messages)
    places = [{**each, "content": f"\0{index}\0"} for index, each in enumerate(messages)]
    parts = _PLACE.split(chat_text(tokenizer, places, variables))
    token_ids: list[int] = []
    for index, part in enumerate(parts):
        # What the template wrote and the numbers of contents alternate.
        if index % 2:
            token_ids += tokenizer.encode_inside(str(messages[int(part)]["content"] or ""))
        else:
            inside = index > 0
            token_ids += tokenizer.encode(part, add_bos=False, parse_special=True, is_inside=inside)
        if len(token_ids) > context_length:
            raise too_long(f"at least {len(token_ids)}", context_length)
    return token_ids


def message_ends(
    tokenizer: Tokenizer,
    token_ids: Sequence[int],
    messages: Sequence[Message] = (),
    **variables: object,
) -> tuple[int, ...]:
    """Positions in a prompt at which a message has ended: numbers of tokens, ascending.

    Later prompts of a chat begin with the same tokens up to one of them. Messages end behind the
    tokens that end answers, and the white space after these, in whatever text.

    Args:
        token_ids: the prompt, of `message_ids` or not.
        messages: the messages of the prompt and their `variables`, as for `message_ids`: the last
            one ends where the beginning of the answer starts, which templates can leave out. They
            are rendered again if more tokens than such a beginning has follow the last end.

    Raises:
        PromptError: as for `message_ids`.
    """
    length, end_ids = len(token_ids), tokenizer.eog_ids
    ends = set()
    for end in (index + 1 for index, each in enumerate(token_ids) if each in end_ids):
        while end < length and tokenizer.piece(token_ids[end]).isspace():
            end += 1
        ends.add(end)
    if messages and length - max(ends, default=0) > _FEW_TOKENS:
        text = chat_text(tokenizer, messages, variables, begins_answer=False)
        asked = tokenizer.encode(text, add_bos=False, parse_special=True)
        alike = (one == other for one, other in zip(asked, token_ids, strict=False))
        ends.add(sum(takewhile(bool, alike)))
    return tuple(sorted(end for end in ends if 0 < end < length))


def chat_text(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    variables: Mapping[str, object] | None = None,
    *,
    begins_answer: bool = True,
) -> str:
    """The text of the prompt of `message_ids`.

    Raises:
        PromptError: the template refuses the messages.
    """
    from powerinfer.tokenizer.chat import FALLBACK_TEMPLATE, render_chat

    return render_chat(
        tokenizer.chat_template or FALLBACK_TEMPLATE,
        [answer(message, is_harmony=tokenizer.is_harmony) for message in messages],
        bos_token=_piece(tokenizer.bos_id, tokenizer),
        eos_token=_piece(tokenizer.eos_id, tokenizer),
        add_generation_prompt=begins_answer,
        **(variables or {}),
    )


def answer(message: Message, *, is_harmony: bool) -> Message:
    """A message as templates take it, without the marks that some models write into an answer."""
    return split_parts(message) if is_harmony and isinstance(message, Mapping) else message


def with_chat_stop(tokenizer: Tokenizer, params: SamplingParams) -> SamplingParams:
    """Add a stop text for a model without a template, which must not speak for the user."""
    if tokenizer.chat_template is not None or FALLBACK_STOP in params.stop_strings:
        return params
    return replace(params, stop=(*params.stop_strings, FALLBACK_STOP))


def _check_contents(messages: object) -> None:
    """Check contents, which only tool calls may lack; `render_chat` checks the rest."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise PromptError(
            f"messages must be a list such as [{_EXAMPLE}], got {repr(messages)[:60]}"
        )
    if not messages:
        raise PromptError(f"there are no messages to answer; give at least one, such as {_EXAMPLE}")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or isinstance(message.get("content"), str):
            continue
        if message.get("content") is not None or not message.get("tool_calls"):
            got = f"got {message['content']!r:.60}" if "content" in message else "it has none"
            raise PromptError(f"the content of message {index} must be a text, {got}")


_EXAMPLE = "{'role': 'user', 'content': 'Hello'}"


def _piece(token_id: int | None, tokenizer: Tokenizer) -> str:
    return "" if token_id is None else tokenizer.piece(token_id)
