"""What an engine is doing, as plain values."""

from dataclasses import dataclass

from powerinfer.models import LayerShares

__all__ = ["EngineStatistics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatistics:
    """The state of an engine between two steps, and what it did since it was made.

    Attributes:
        running: texts that are computed.
        waiting: texts that wait to be.
        blocks: of keys and values there are.
        blocks_used: by texts that run.
        blocks_cached: kept for prompts that may begin alike; given up where room is needed.
        steps: steps of decoding texts, each of one or several of them.
        generated_tokens: tokens chosen.
        prompt_tokens: tokens of prompts, those found in the cache included.
        cached_tokens: of these the ones whose keys and values were there already.
        layers: share of the neurons that each layer needed for the last decode step; None before
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
    layers: LayerShares | None = None

    @property
    def active_share(self) -> float | None:
        """Share of the neurons that a text of the last step needed, on average."""
        return None if self.layers is None else float(self.layers.active.mean())

    @property
    def union_share(self) -> float | None:
        """Share of the neurons that any text of the last step needed."""
        return None if self.layers is None else float(self.layers.union.mean())
