"""Command lines into the sandbox, and the filter of system calls on every processor."""

import itertools
import os
import shutil
import struct
import sys
from pathlib import Path

import pytest

from powerinfer.orchestra.sandbox import ways
from powerinfer.orchestra.sandbox.inside import guard
from powerinfer.orchestra.sandbox.isolation import PROGRAM
from powerinfer.orchestra.sandbox.limits import Limits

_ALLOWED, _NOT_PERMITTED, _UNKNOWN_CALL, _KILLED = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000


def test_bubblewrap_is_not_for_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert list(ways.ways()) == ["bubblewrap", "namespaces"]
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert list(ways.ways()) == ["namespaces"]
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert list(ways.ways()) == ["namespaces"]
    monkeypatch.setattr(sys, "platform", "darwin")
    assert list(ways.ways()) == []


def test_bubblewrap_gets_nothing_to_write_to(tmp_path: Path) -> None:
    shown = {Path("/modules/x"): tmp_path}
    argv = ways.bubblewrap(PROGRAM, shown, Limits(file_bytes=77), 5)
    options, program = argv[: argv.index("--")], argv[argv.index("--") + 1 :]
    assert {"--unshare-all", "--die-with-parent", "--new-session", "--clearenv"} <= set(options)
    assert not {"--bind", "--dev", "--share-net"} & set(options)
    pairs = set(itertools.pairwise(options))
    assert {("--cap-drop", "ALL"), ("--remount-ro", "/"), ("--size", "77")} <= pairs
    binds = list(zip(options, options[1:], options[2:], strict=False))
    assert ("--ro-bind", str(tmp_path), "/modules/x") in binds
    assert [b for b in binds if b[0] == "--dev-bind" and not b[1].startswith("/dev/")] == []
    assert program[1:5] == ["-I", "-S", "-B", "/sandbox/guard.py"]


def _verdict(code: bytes, number: int, argument: int = 0, architecture: int = 0) -> int:
    """Run a filter as the kernel does, on one call."""
    data = struct.pack("=IIQQ", number, architecture, 0, argument)
    steps = list(struct.iter_unpack("=HBBI", code))
    accumulator = 0
    position = 0
    while True:
        kind, if_true, if_false, value = steps[position]
        position += 1
        match kind:
            case 0x20:
                accumulator = int.from_bytes(data[value : value + 4], sys.byteorder)
            case 0x06:
                return int(value)
            case _:
                holds = {
                    0x15: accumulator == value,
                    0x35: accumulator >= value,
                    0x45: bool(accumulator & value),
                }[kind]
                position += if_true if holds else if_false


@pytest.mark.parametrize(
    ("machine", "architecture", "clone", "socket", "ptrace", "read"),
    [("x86_64", 0xC000003E, 56, 41, 101, 0), ("aarch64", 0xC00000B7, 220, 198, 117, 63)],
)
def test_the_filter(
    machine: str, architecture: int, clone: int, socket: int, ptrace: int, read: int
) -> None:
    code = guard.filter_program(machine)

    def verdict(number: int, argument: int = 0) -> int:
        return _verdict(code, number, argument, architecture)

    assert verdict(read) == _ALLOWED
    assert verdict(ptrace) == _NOT_PERMITTED
    assert verdict(435) == _UNKNOWN_CALL  # clone3
    assert verdict(425) == _NOT_PERMITTED  # io_uring_setup
    assert verdict(0x40000000 + read) == _UNKNOWN_CALL
    # A thread, a process; then one in a namespace of users, of the network, of time.
    assert verdict(clone, 0x3D0F00) == verdict(clone, 0x01200011) == _ALLOWED
    for flag in (0x10000000, 0x40000000, 0x80):
        assert verdict(clone, flag | 17) == _NOT_PERMITTED
    families = {family: verdict(socket, family) for family in range(50)}
    assert {each for each, found in families.items() if found == _ALLOWED} == {1, 2, 10}
    assert set(families.values()) == {_ALLOWED, _NOT_PERMITTED}
    assert _verdict(code, read, architecture=0x40000003) == _KILLED
    refused = sum(verdict(number) == _NOT_PERMITTED for number in range(500))
    # Those of the table, and a socket of family 0.
    assert refused == len(guard._REFUSED[machine]) + 1


def test_other_processors_have_no_filter() -> None:
    assert guard.filter_program("riscv64") == b""
