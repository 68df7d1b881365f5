"""Prompts that end within the marks around a model's reasoning."""

from collections.abc import Sequence

from powerinfer.tokenizer import Tokenizer

__all__ = ["ends_within"]

# Enough for a mark and newlines that are not single tokens.
_TOKENS_OF_A_MARK = 12


def ends_within(tokenizer: Tokenizer, prompt_ids: Sequence[int], mark: str = "<think>") -> bool:
    """True if a prompt ends with the mark that begins reasoning, so that the answer lacks it."""
    end = tokenizer.decode(prompt_ids[-_TOKENS_OF_A_MARK:], skip_special=False)
    return end.rstrip().endswith(mark)
