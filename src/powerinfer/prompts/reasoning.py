"""The marks that models put around what they think, where their prompts end within them."""

from collections.abc import Sequence

from powerinfer.tokenizer import Tokenizer

__all__ = ["ends_within"]

# At least as many as a mark and line ends have where they are not single tokens.
_TOKENS_OF_A_MARK = 12


def ends_within(tokenizer: Tokenizer, prompt_ids: Sequence[int], mark: str = "<think>") -> bool:
    """Whether a prompt ends with the mark that begins thoughts, so that the answer lacks it."""
    end = tokenizer.decode(prompt_ids[-_TOKENS_OF_A_MARK:], skip_special=False)
    return end.rstrip().endswith(mark)
