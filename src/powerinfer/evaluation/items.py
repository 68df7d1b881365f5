"""Items of a task in three forms, which task files share."""

from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["Choices", "Contexts", "Continuation", "Item", "Items"]


@dataclass(frozen=True, slots=True)
class Choices:
    """One context, several continuations; right if continuation `gold` is the likeliest.

    Attributes:
        query: the context; may be empty.
        choices: at least two, none empty. One space joins the query and a choice.
    """

    query: str
    choices: tuple[str, ...]
    gold: int


@dataclass(frozen=True, slots=True)
class Contexts:
    """Several contexts, one continuation; right if it is likeliest after context `gold`.

    Attributes:
        context_options: at least two, none empty.
        continuation: not empty. One space joins a context and the continuation.
    """

    context_options: tuple[str, ...]
    continuation: str
    gold: int


@dataclass(frozen=True, slots=True)
class Continuation:
    """One context, one continuation; right if greedy decoding would write it.

    Attributes:
        context: may be empty.
        continuation: not empty. One space joins the two, unless it begins with white space.
    """

    context: str
    continuation: str


Item: TypeAlias = Choices | Contexts | Continuation
Items: TypeAlias = tuple[Item, ...]
"""At least one, all in the same form."""
