"""Answers of a chat: their pieces on stdout, a line on stderr about how they ended."""

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

import click

if TYPE_CHECKING:
    from powerinfer import LLM, Generation, SamplingParams

__all__ = [
    "IN_CHAT",
    "IN_COMPLETION",
    "IN_RUN",
    "Advice",
    "LoopNotice",
    "announce_template",
    "explain_end",
    "without_blank_start",
]

SMALL_MODEL = "smollm2"
"""Entry of the catalogue that chats and is quick to fetch."""
# Pieces between two looks for a loop, which take less time than a token.
_LOOK_EVERY = 32


@dataclass(frozen=True)
class Advice:
    """What a user can do about the end of an answer, in the words of a command."""

    no_limit: str
    again: str
    against_loops: str
    text: str = "answer"


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
IN_COMPLETION = Advice(
    no_limit=IN_RUN.no_limit,
    again="",
    against_loops="--repeat-penalty 1.1 or a higher --temp",
    text="text",
)


def without_blank_start(pieces: Iterable[str]) -> Iterator[str]:
    """Pieces of an answer, without the white space at its beginning."""
    is_first = True
    for piece in pieces:
        # The space that follows `Assistant:` in the prompt is not part of the answer.
        yield piece.lstrip() if is_first else piece
        is_first = is_first and not piece.strip()


def explain_end(
    last: "Generation | None", params: "SamplingParams", advice: Advice, loops: "LoopNotice"
) -> None:
    """Explain why an answer was cut or is empty, and that it went round in circles."""
    if last is None:
        return
    if last.finish_reason == "stop":
        if not last.text.strip():
            _say(f"the model gave an empty answer{advice.again}")
        return
    if last.finish_reason == "length":
        limit = params.max_tokens
        if limit is not None and len(last.token_ids) >= limit:
            _say(f"cut after {limit} tokens, the limit; {advice.no_limit}")
        else:
            _say("cut: the context is full; a larger -c holds more")
    loops.look(last.token_ids)


class LoopNotice:
    """Says on stderr, once, that a text repeats the same tokens over and over."""

    def __init__(self, advice: Advice) -> None:
        """Nothing is noticed yet."""
        self._advice = advice
        self._is_known = False

    def watch(
        self, pieces: Iterable[str], last_token_ids: Callable[[int], list[int]]
    ) -> Iterator[str]:
        """Pass the pieces of a text on, and look at its tokens meanwhile.

        Args:
            last_token_ids: gives the last so many tokens of the text that was passed on.
        """
        from powerinfer.sampling.loops import LONGEST_TAIL

        for number, piece in enumerate(pieces, start=1):
            # Printed by whoever takes it, before the next one is asked for.
            yield piece
            if not self._is_known and number % _LOOK_EVERY == 0:
                is_in_line = _is_terminal(sys.stdout) and not piece.endswith("\n")
                self.look(last_token_ids(LONGEST_TAIL), is_in_line=is_in_line, is_running=True)

    def look(
        self, token_ids: list[int], *, is_in_line: bool = False, is_running: bool = False
    ) -> None:
        """Say that a text ends in a loop, if it does and it was not said before.

        Args:
            is_in_line: the terminal shows an unfinished line of the text, which needs an end.
            is_running: the text goes on.
        """
        from powerinfer.sampling.loops import loop_length

        length = None if self._is_known else loop_length(token_ids)
        if length is None:
            return
        self._is_known = True
        if is_in_line:
            click.echo(err=True)
        what = "token" if length == 1 else f"{length} tokens"
        stop = "; Ctrl-C stops it" if is_running else ""
        _say(
            f"the {self._advice.text} repeats the same {what}{stop}; what helps: "
            f"{self._advice.against_loops}"
        )


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


def _is_terminal(stream: TextIO | None) -> bool:
    # Python sets sys.stdout to None if descriptor 1 was closed before the start.
    return stream is not None and stream.isatty()


def _say(text: str) -> None:
    click.echo(f"({text})", err=True)
