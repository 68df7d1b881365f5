"""State and totals of an engine, and the check that it has lost nothing."""

from dataclasses import dataclass

from powerinfer.engine.queue import Queue
from powerinfer.errors import PowerInferError
from powerinfer.models import LayerShares, Model

__all__ = ["EngineStatistics", "check_integrity", "statistics_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatistics:
    """State of an engine between two steps, and totals since it was made.

    Attributes:
        blocks: number of blocks of keys and values.
        blocks_used: blocks used by running texts.
        blocks_cached: blocks kept for prompts with the same beginning; freed when room is needed.
        states: slots of state, 0 for models without; `states_used` and `states_cached` likewise.
        steps: number of decode steps.
        prompt_tokens: number of prompt tokens, including those found in the cache.
        cached_tokens: number of prompt tokens found in the cache.
        drafted_tokens: number of drafted tokens that steps computed; `accepted_tokens` of them
            were right.
        text_steps: number of decode steps, a step counted for each of its texts.
        head_computed_share: share of the head's rows that a screened head computed; None without.
        layers: share of the neurons that each layer needed in the last decode step; None before
            the first, or if the backend does not count.
    """

    running: int
    waiting: int
    blocks: int
    blocks_used: int
    blocks_cached: int
    steps: int
    generated_tokens: int
    prompt_tokens: int
    cached_tokens: int
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    text_steps: int = 0
    states: int = 0
    states_used: int = 0
    states_cached: int = 0
    layers: LayerShares | None = None
    head_computed_share: float | None = None

    @property
    def active_share(self) -> float | None:
        """Share of the neurons that a text of the last step needed on average."""
        return None if self.layers is None else float(self.layers.active.mean())

    @property
    def union_share(self) -> float | None:
        """Share of the neurons that any text of the last step needed."""
        return None if self.layers is None else float(self.layers.union.mean())


def statistics_of(queue: Queue, model: Model, num_steps: int) -> EngineStatistics:
    """Collect them; any thread may call this."""
    cache, states, counts = queue.cache, queue.cache.states, queue.token_counts
    head = model.screened_head
    return EngineStatistics(
        running=len(queue.running),
        waiting=queue.num_waiting,
        blocks=cache.num_blocks,
        blocks_used=cache.num_used_blocks,
        blocks_cached=cache.num_unused_blocks,
        steps=num_steps,
        generated_tokens=counts.generated,
        prompt_tokens=queue.num_prompt_tokens,
        cached_tokens=queue.num_cached_tokens,
        drafted_tokens=counts.drafted,
        accepted_tokens=counts.accepted,
        text_steps=counts.steps,
        states=0 if states is None else states.num_slots,
        states_used=0 if states is None else states.num_used,
        states_cached=0 if states is None else states.num_unused,
        layers=model.layer_shares(),
        head_computed_share=None if head is None else head.computed_share,
    )


def check_integrity(queue: Queue) -> None:
    """Raise PowerInferError if a block is lost, or if an idle engine uses one, or a state."""
    cache = queue.cache
    cache.check_integrity()
    if queue.is_empty and cache.num_used_blocks:
        raise PowerInferError(f"{cache.num_used_blocks} blocks are in use by no text")
    if queue.is_empty and cache.states is not None and cache.states.num_used:
        raise PowerInferError(f"{cache.states.num_used} states are in use by no text")
