"""The tokens of one text that runs: which of them are computed, and which are to be."""

from collections.abc import Sequence

from powerinfer.errors import PromptError

__all__ = ["RunningSequence", "blocks_for"]


class RunningSequence:
    """What a step reads and changes of one sequence.

    A prompt is computed in chunks; from then on the last token alone is to be computed, except
    behind a shift, which moves tokens: these are computed anew, as what they were.

    Attributes:
        key: of its blocks in the KV cache.
        token_ids: of the prompt and of what was generated, those that a shift dropped left out.
        is_prompt: of each whether it is prompt, see `Batch.is_prompt`.
        num_computed: how many of them have keys and values in the cache.
        num_reused: how many of these were not computed for it.
        is_decoding: its prompt is computed.
        num_shifts: how often tokens were moved.
    """

    __slots__ = (
        "is_decoding",
        "is_prompt",
        "key",
        "num_computed",
        "num_reused",
        "num_shifts",
        "token_ids",
    )

    def __init__(self, token_ids: Sequence[int], is_prompt: Sequence[bool]) -> None:
        """Start with a prompt, of which nothing is computed.

        Args:
            token_ids: at least one.
            is_prompt: one for each.
        """
        self.key = object()
        self.token_ids = list(token_ids)
        self.is_prompt = list(is_prompt)
        self.num_computed = self.num_reused = 0
        self.num_shifts = 0
        self.is_decoding = False

    @property
    def num_pending(self) -> int:
        """Tokens to be computed by chunks: all of a prompt, later all but the last token."""
        return len(self.token_ids) - self.num_computed - self.is_decoding

    @property
    def num_to_read(self) -> int:
        """Tokens that chunks compute or have computed, for its prompt or since a shift."""
        return len(self.token_ids) - self.num_reused - self.is_decoding

    @property
    def state(self) -> tuple[int, int, bool]:
        """Number of tokens, number computed, and whether it is decoding: to put back later."""
        return len(self.token_ids), self.num_computed, self.is_decoding

    @state.setter
    def state(self, kept: tuple[int, int, bool]) -> None:
        length, self.num_computed, self.is_decoding = kept
        del self.token_ids[length:]
        del self.is_prompt[length:]

    def append(self, token_id: int) -> None:
        """Add a generated token; it is to be computed next."""
        self.token_ids.append(token_id)
        self.is_prompt.append(False)
        self.is_decoding = True

    def pending_run(self, limit: int) -> tuple[list[int], bool]:
        """The next tokens to be computed by a chunk, all of one kind, and whether they are prompt.

        Args:
            limit: most of them.
        """
        start = self.num_computed
        end = start + min(limit, self.num_pending)
        kind = self.is_prompt[start]
        others = (index for index in range(start, end) if self.is_prompt[index] != kind)
        end = next(others, end)
        return self.token_ids[start:end], kind

    def shift(self, num_kept: int) -> None:
        """Drop the older half of what is computed behind the first `num_kept` tokens.

        Raises:
            PromptError: so much is to be kept that nothing can be dropped.
        """
        length = self.num_computed
        if length - num_kept < 2:
            raise PromptError(
                f"a context of {length} tokens cannot be shifted while its first "
                f"{num_kept} tokens are kept",
                remedy="use a larger context ({context_length}) or keep less ({keep_tokens})",
            )
        first = num_kept + (length - num_kept + 1) // 2
        token_ids = self.token_ids[:num_kept] + self.token_ids[first:]
        is_prompt = self.is_prompt[:num_kept] + self.is_prompt[first:]
        self.num_shifts += 1
        self.num_reused = num_kept
        self.token_ids, self.is_prompt, self.num_computed = token_ids, is_prompt, num_kept


def blocks_for(num_positions: int, block_size: int) -> int:
    """Blocks that hold positions [0, num_positions)."""
    return -(-num_positions // block_size)
