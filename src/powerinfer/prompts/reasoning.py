"""Marks around reasoning, in answers and in prompts that end inside them."""

from collections.abc import Iterable, Iterator, Sequence

from powerinfer.prompts.harmony import shown_parts
from powerinfer.tokenizer import Tokenizer

__all__ = ["ends_within", "shown_answer"]

# Enough for a mark and line ends that are not single tokens.
_TOKENS_OF_A_MARK = 12


def ends_within(tokenizer: Tokenizer, prompt_ids: Sequence[int], mark: str = "<think>") -> bool:
    """Tell whether a prompt ends with the mark that begins reasoning: the answer lacks it then."""
    end = tokenizer.decode(prompt_ids[-_TOKENS_OF_A_MARK:], skip_special=False)
    return end.rstrip().endswith(mark)


def shown_answer(
    tokenizer: Tokenizer, prompt_ids: Sequence[int], pieces: Iterable[str]
) -> Iterator[str]:
    """Pieces of an answer as users see it, with reasoning between `<think>` and `</think>`.

    So it is even if the model writes other marks (gpt-oss), or the prompt has the first of them.
    The tokenizer is read at once and not kept.
    """
    opened = "<think>\n" if ends_within(tokenizer, prompt_ids) else ""
    return _with_beginning(opened, shown_parts(pieces) if tokenizer.is_harmony else pieces)


def _with_beginning(beginning: str, pieces: Iterable[str]) -> Iterator[str]:
    """Prefix the first piece that is not empty with `beginning`."""
    for piece in filter(None, pieces):
        yield beginning + piece
        beginning = ""
