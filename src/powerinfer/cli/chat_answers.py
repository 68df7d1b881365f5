"""Answers of a chat: their pieces on stdout, a line on stderr about how they ended."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from powerinfer import LLM, Generation, SamplingParams

__all__ = ["IN_CHAT", "IN_RUN", "Advice", "announce_template", "explain_end", "without_blank_start"]

SMALL_MODEL = "smollm2"
"""Entry of the catalogue that chats and is quick to fetch."""


@dataclass(frozen=True)
class Advice:
    """What a user can do about the end of an answer, in the words of a command."""

    no_limit: str
    again: str
    against_loops: str


IN_CHAT = Advice(
    no_limit="/set n -1 lifts it",
    again="; /retry asks it again",
    against_loops="/set repeat-penalty 1.1, a higher /set temp or another /system",
)
IN_RUN = Advice(
    no_limit="-n -1 lifts it",
    again="",
    against_loops="--repeat-penalty 1.1, a higher --temp or another --system",
)


def without_blank_start(pieces: Iterable[str]) -> Iterator[str]:
    """Pieces of an answer, without the white space at its beginning."""
    is_first = True
    for piece in pieces:
        # The space that follows `Assistant:` in the prompt is not part of the answer.
        yield piece.lstrip() if is_first else piece
        is_first = is_first and not piece.strip()


def explain_end(
    last: "Generation | None",
    params: "SamplingParams",
    advice: Advice,
    *,
    knows_loop: bool = False,
) -> bool:
    """Explain why an answer was cut or is empty, and that it went round in circles.

    Returns:
        True if such a loop was noticed; it is not mentioned to those who know.
    """
    if last is None:
        return False
    if last.finish_reason == "stop":
        if not last.text.strip():
            _say(f"the model gave an empty answer{advice.again}")
        return False
    if last.finish_reason == "length":
        limit = params.max_tokens
        if limit is not None and len(last.token_ids) >= limit:
            _say(f"cut after {limit} tokens, the limit; {advice.no_limit}")
        else:
            _say("cut: the context is full; a larger -c holds more")
    return _notice_loop(last, advice, is_known=knows_loop)


def _notice_loop(last: "Generation", advice: Advice, *, is_known: bool) -> bool:
    from powerinfer.sampling.loops import loop_length

    length = loop_length(last.token_ids)
    if length is None:
        return False
    if not is_known:
        what = "token" if length == 1 else f"{length} tokens"
        _say(f"the answer repeats the same {what}; what helps: {advice.against_loops}")
    return True


def announce_template(llm: "LLM", *, is_embedded: bool) -> None:
    """Explain what a model without a chat template does."""
    from powerinfer.cli.report.tables import print_paragraph

    if llm.loaded.tokenizer.chat_template is not None:
        return
    if is_embedded:
        from powerinfer.hub.catalogue import catalogue
        from powerinfer.store.memory import format_bytes

        entry = catalogue()[SMALL_MODEL]
        text = (
            "the bundled model tells stories and has no chat template: begin one, such as 'Once "
            f"upon a time', and it continues; use -m for a model that can talk: `powerinfer chat "
            f"{entry.name}` opens one, fetched once ({format_bytes(entry.size or 0)}, "
            f"{entry.licence})"
        )
    else:
        text = (
            "this model has no chat template: it gets a plain dialogue of User: and Assistant:, "
            "which it may not understand"
        )
    print_paragraph(text, err=True)


def _say(text: str) -> None:
    click.echo(f"({text})", err=True)
