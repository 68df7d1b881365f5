"""Why a generation ended."""

from enum import StrEnum

__all__ = ["FinishReason"]


class FinishReason(StrEnum):
    """Why a generation ended.

    STOP: the model chose a token that ends the generation, or a stop string appeared.
    LENGTH: `max_tokens` were generated, or the context was full.
    CANCELLED: the caller closed the stream or pressed Ctrl-C.
    """

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
