"""Additions to the logits of some tokens, as an immutable mapping."""

from collections.abc import Iterator, Mapping

__all__ = ["TokenBias"]


class TokenBias(Mapping[int, float]):
    """Numbers by token id; equal to a dictionary of the same content, and can be pickled."""

    __slots__ = ("_by_id",)

    def __init__(self, by_id: dict[int, float]) -> None:
        """Take a dictionary over, which nobody may change from now on."""
        self._by_id = by_id

    def __getitem__(self, token_id: int) -> float:
        return self._by_id[token_id]

    def __iter__(self) -> Iterator[int]:
        return iter(self._by_id)

    def __len__(self) -> int:
        return len(self._by_id)

    def __repr__(self) -> str:
        return repr(self._by_id)
