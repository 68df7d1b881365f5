"""What primitives share: the call they get, the observation they return, what they may use."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from powerinfer.errors import PowerInferError

__all__ = ["Asking", "Call", "Observation", "Permissions", "Primitive", "PrimitiveError"]


@dataclass(frozen=True)
class Observation:
    """What a primitive found.

    Attributes:
        text: for the policy to read.
        untrusted: True if it comes from files, addresses or programs, or was made from such text.
    """

    text: str
    ok: bool = True
    untrusted: bool = False


class PrimitiveError(PowerInferError):
    """A primitive cannot answer; the message is one line, shown to the policy as an observation.

    Whatever text of documents or programs it quotes is put on that line, in characters of UTF-8.
    """

    def __init__(self, message: object = "", *, remedy: str = "") -> None:
        line = " ".join(str(message).split())
        super().__init__(line.encode("utf-8", "replace").decode(), remedy=remedy)


class Asking(Protocol):
    """Puts a message to the worker of a route and returns its answer's text."""

    async def __call__(
        self,
        message: str,
        *,
        system: str | None = None,
        max_tokens: int = 512,
        json_schema: Mapping[str, object] | None = None,
    ) -> str:
        """Ask; with `json_schema` the answer is JSON of that form, unless it was cut off."""
        ...


@dataclass(frozen=True)
class Permissions:
    """What the person who started the orchestra allows.

    Attributes:
        allowed: names of primitives that need leave, such as `execute_python`.
        documents: files and folders that may be read.
        databases: SQLite files that may be queried.
        hosts: names, and names with ports, to which `call_api` may connect.
        commands: search commands by name, each a program with its arguments.
        let_data_leave: whether data from untrusted input may leave the machine.
    """

    allowed: frozenset[str] = frozenset()
    documents: tuple[Path, ...] = ()
    databases: tuple[Path, ...] = ()
    hosts: frozenset[str] = frozenset()
    commands: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    let_data_leave: bool = False


@dataclass(frozen=True)
class Call:
    """One routed subtask.

    Attributes:
        query: what the policy asks for.
        inputs: observations of the subtasks that it depends on, by their ids.
        ask: asks the worker; None if the worker is a tool without a model.
        permissions: what the user allows.
        has_untrusted_input: True if the query or an input was made from untrusted text.
    """

    query: str
    inputs: Mapping[int, str]
    ask: Asking | None
    permissions: Permissions
    has_untrusted_input: bool = False


@dataclass(frozen=True)
class Primitive:
    """A kind of work that a worker can do.

    Attributes:
        summary: one line, read by the policy.
        needs_model: True if a worker of this primitive must be a model.
        leaves_machine: True if it may carry data out of the machine.
        run: does the work, or raises PrimitiveError.
    """

    name: str
    summary: str
    needs_model: bool
    leaves_machine: bool
    run: Callable[[Call], Awaitable[Observation]]
