"""Tokens of a running text: computed ones and those to be computed."""

from collections.abc import Sequence

from powerinfer.errors import PromptError

__all__ = ["RunningSequence", "blocks_for"]


class RunningSequence:
    """State of one sequence that steps read and change.

    A prompt is computed in chunks. After that only the last token is to be computed, except after
    a shift: the tokens that it moved are computed again, as prompt or generated as before.

    Attributes:
        key: key of its blocks in the KV cache.
        token_ids: prompt and generated tokens, without those that a shift dropped.
        is_prompt: one flag per token, see `Batch.is_prompt`.
        num_computed: number of tokens whose keys and values are in the cache.
        num_reused: number of these that were not computed for this sequence.
        is_decoding: its prompt is computed.
        num_shifts: number of shifts so far.
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
        """Start with a prompt of at least one token, none of them computed."""
        self.key = object()
        self.token_ids = list(token_ids)
        self.is_prompt = list(is_prompt)
        self.num_computed = self.num_reused = 0
        self.num_shifts = 0
        self.is_decoding = False

    @property
    def num_pending(self) -> int:
        """Number of tokens left to chunks: all of a prompt, later all but the last token."""
        return len(self.token_ids) - self.num_computed - self.is_decoding

    @property
    def num_to_read(self) -> int:
        """Number of tokens that chunks compute in all, for the prompt or since the last shift."""
        return len(self.token_ids) - self.num_reused - self.is_decoding

    @property
    def state(self) -> tuple[int, int, bool]:
        """Number of tokens, number computed, and whether it is decoding, for restoring them."""
        return len(self.token_ids), self.num_computed, self.is_decoding

    @state.setter
    def state(self, kept: tuple[int, int, bool]) -> None:
        length, self.num_computed, self.is_decoding = kept
        del self.token_ids[length:]
        del self.is_prompt[length:]

    def append(self, token_id: int) -> None:
        """Append a generated token, which is to be computed next."""
        self.token_ids.append(token_id)
        self.is_prompt.append(False)
        self.is_decoding = True

    def pending_run(self, limit: int) -> tuple[list[int], bool]:
        """Return at most `limit` next tokens for a chunk, all of one kind, and this kind."""
        start = self.num_computed
        end = start + min(limit, self.num_pending)
        kind = self.is_prompt[start]
        others = (index for index in range(start, end) if self.is_prompt[index] != kind)
        end = next(others, end)
        return self.token_ids[start:end], kind

    def shift(self, num_kept: int) -> None:
        """Drop the older half of the computed tokens after the first `num_kept`.

        Raises:
            PromptError: `num_kept` leaves nothing to drop.
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
    """Return the number of blocks that hold positions [0, num_positions)."""
    return -(-num_positions // block_size)
