"""Reasons for the end of a generation."""

from enum import StrEnum

__all__ = ["FinishReason"]


class FinishReason(StrEnum):
    """Reason for the end of a generation.

    STOP: the model chose a token that ends the generation, or a stop string appeared.
    LENGTH: `max_tokens` were generated, or the context was full.
    CANCELLED: the caller closed the stream or pressed Ctrl-C.
    """

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
