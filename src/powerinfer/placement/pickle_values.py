"""What a pickle says, as plain values: nothing is imported, called or built.

A small stack machine over the opcodes that torch writes for a tensor, in any protocol from 2 on
(the opcodes are documented in CPython's `pickletools`). A call is a value here, not something that
happens, so a hostile pickle can do no more than be wrong.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["Call", "Global", "PersistentId", "parse_pickle"]

Value: TypeAlias = Any
"""None, bool, int, float, str, tuple, list, or a class of this file; a dictionary is `_INERT`."""

_LONGEST_INTEGER = 16


@dataclass(frozen=True, eq=False, slots=True)
class Global:
    """A name in a module."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module:.60}.{self.name:.60}"


@dataclass(frozen=True, eq=False, slots=True)
class Call:
    """A function that the pickle wants called with these arguments."""

    function: Global
    arguments: tuple[Value, ...]


@dataclass(frozen=True, eq=False, slots=True)
class PersistentId:
    """Something that is stored outside of the pickle."""

    value: Value


class _Inert:
    """Something that has contents which nobody needs."""


_INERT = _Inert()


def parse_pickle(data: bytes) -> tuple[Value, int]:
    """Read the pickle at the start of `data`.

    Args:
        data: the pickle, and anything after it.

    Returns:
        Its value, and the bytes it took.

    Raises:
        ValueError: it is damaged or cut off, or uses something that no tensor needs.
    """
    machine = _Machine(data)
    try:
        while not machine.is_done:
            machine.step()
    except (IndexError, KeyError, UnicodeDecodeError) as error:
        raise ValueError(f"the pickle is damaged near byte {machine.position}") from error
    return machine.result, machine.position


class _Machine:
    """State of the reading."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._stack: list[Value] = []
        self._marks: list[int] = []
        self._memo: dict[int, Value] = {}
        self.position = 0
        self.is_done = False
        self.result: Value = None

    def step(self) -> None:
        """Run one opcode."""
        opcode = self.raw(1)[0]
        action = _ACTIONS.get(opcode)
        if action is None:
            raise ValueError(f"the pickle has opcode {opcode:#04x}, which no tensor needs")
        action(self)

    def raw(self, size: int) -> bytes:
        """Take bytes that must be there."""
        if size > len(self._data) - self.position:
            raise ValueError("the pickle is cut off")
        self.position += size
        return self._data[self.position - size : self.position]

    def unsigned(self, size: int) -> int:
        return int.from_bytes(self.raw(size), "little")

    def line(self) -> str:
        """Take text up to a line end."""
        end = self._data.find(b"\n", self.position)
        if end < 0:
            raise ValueError("the pickle is cut off")
        text = self.raw(end - self.position).decode()
        self.position += 1
        return text

    def push(self, value: Value) -> None:
        self._stack.append(value)

    def pop(self) -> Value:
        if self._marks and len(self._stack) <= self._marks[-1]:
            raise IndexError("a mark is in the way")
        return self._stack.pop()

    def pop_many(self, count: int) -> list[Value]:
        return [self.pop() for _ in range(count)][::-1]

    def mark(self) -> None:
        self._marks.append(len(self._stack))

    def pop_to_mark(self) -> list[Value]:
        start = self._marks.pop()
        found = self._stack[start:]
        del self._stack[start:]
        return found

    def skip_arguments(self, size: int) -> None:
        self.raw(size)

    def stop(self) -> None:
        self.result = self.pop()
        self.is_done = True

    def signed_long(self) -> None:
        size = self.unsigned(1)
        if size > _LONGEST_INTEGER:
            raise ValueError(f"the pickle has an integer of {size} bytes, which no tensor needs")
        self.push(int.from_bytes(self.raw(size), "little", signed=True))

    def global_name(self) -> None:
        module = self.line()
        self.push(Global(module, self.line()))

    def stack_global(self) -> None:
        module, name = self.pop_many(2)
        if not isinstance(module, str) or not isinstance(name, str):
            raise ValueError("the pickle names something by what is no text")
        self.push(Global(module, name))

    def reduce(self) -> None:
        function, arguments = self.pop_many(2)
        if not isinstance(function, Global) or not isinstance(arguments, tuple):
            raise ValueError("the pickle calls something that is no function")
        self.push(Call(function, arguments))

    def put(self, index: int) -> None:
        if self._marks and len(self._stack) <= self._marks[-1]:
            raise IndexError("nothing to remember")
        self._memo[index] = self._stack[-1]

    def memoize(self) -> None:
        self.put(len(self._memo))

    def get(self, index: int) -> None:
        self.push(self._memo[index])

    def extend(self, items: list[Value]) -> None:
        target = self._stack[-1]
        if not isinstance(target, list):
            raise ValueError("the pickle appends to what is no list")
        target.extend(items)

    def drop(self, _: object) -> None:
        """Of items for a dictionary, or an object's state."""


def _text(size: int) -> Callable[[_Machine], None]:
    return lambda machine: machine.push(machine.raw(machine.unsigned(size)).decode())


def _integer(size: int, *, signed: bool = False) -> Callable[[_Machine], None]:
    return lambda machine: machine.push(
        int.from_bytes(machine.raw(size), "little", signed=signed),
    )


def _constant(value: Value) -> Callable[[_Machine], None]:
    return lambda machine: machine.push(value)


def _tuple(size: int) -> Callable[[_Machine], None]:
    return lambda machine: machine.push(tuple(machine.pop_many(size)))


_ACTIONS: dict[int, Callable[[_Machine], None]] = {
    ord(opcode): action
    for opcode, action in {
        b"\x80": lambda machine: machine.skip_arguments(1),  # protocol
        b"\x95": lambda machine: machine.skip_arguments(8),  # frame
        b".": _Machine.stop,
        b"(": _Machine.mark,
        b"N": _constant(None),
        b"\x88": _constant(value=True),
        b"\x89": _constant(value=False),
        b"J": _integer(4, signed=True),
        b"K": _integer(1),
        b"M": _integer(2),
        b"\x8a": _Machine.signed_long,
        b"G": lambda machine: machine.push(struct.unpack(">d", machine.raw(8))[0]),
        b"U": _text(1),  # text as Python 2 wrote it
        b"T": _text(4),
        b"\x8c": _text(1),
        b"X": _text(4),
        b"\x8d": _text(8),
        b")": _constant(()),
        b"\x85": _tuple(1),
        b"\x86": _tuple(2),
        b"\x87": _tuple(3),
        b"t": lambda machine: machine.push(tuple(machine.pop_to_mark())),
        b"]": lambda machine: machine.push([]),
        b"l": lambda machine: machine.push(machine.pop_to_mark()),
        b"a": lambda machine: machine.extend([machine.pop()]),
        b"e": lambda machine: machine.extend(machine.pop_to_mark()),
        b"}": _constant(_INERT),
        b"s": lambda machine: machine.drop(machine.pop_many(2)),
        b"u": lambda machine: machine.drop(machine.pop_to_mark()),
        b"b": lambda machine: machine.drop(machine.pop()),
        b"c": _Machine.global_name,
        b"\x93": _Machine.stack_global,
        b"R": _Machine.reduce,
        b"Q": lambda machine: machine.push(PersistentId(machine.pop())),
        b"q": lambda machine: machine.put(machine.unsigned(1)),
        b"r": lambda machine: machine.put(machine.unsigned(4)),
        b"\x94": _Machine.memoize,
        b"h": lambda machine: machine.get(machine.unsigned(1)),
        b"j": lambda machine: machine.get(machine.unsigned(4)),
    }.items()
}
"""What each opcode does; the state of the machine is all that changes."""
