"""Marks around reasoning, in prompts that end inside them."""

from collections.abc import Sequence

from powerinfer.tokenizer import Tokenizer

__all__ = ["ends_within"]

# Enough for a mark and line ends that are not single tokens.
_TOKENS_OF_A_MARK = 12


def ends_within(tokenizer: Tokenizer, prompt_ids: Sequence[int], mark: str = "<think>") -> bool:
    """Tell whether a prompt ends with the mark that begins reasoning: the answer lacks it then."""
    end = tokenizer.decode(prompt_ids[-_TOKENS_OF_A_MARK:], skip_special=False)
    return end.rstrip().endswith(mark)
