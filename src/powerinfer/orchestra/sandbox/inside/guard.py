"""Process 1 of a sandbox: starts one program with limits, watches its tree, ends with it.

Run as `python -I -S guard.py SPEC`, with SPEC a JSON object of the fields of `Spec`. Nothing of
this package can be imported here. When process 1 ends, Linux kills all processes of its namespace.
"""

import ctypes
import json
import os
import platform
import resource
import select
import signal
import struct
import sys
import time
from dataclasses import dataclass

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_LOOK_AGAIN_S = 0.01
_PAGE = os.sysconf("SC_PAGESIZE")


@dataclass(frozen=True)
class Spec:
    """What to run and its limits.

    Attributes:
        argv: of the program.
        report_fd: gets a line of JSON before the program starts and one at its end; when nobody can
            read it any more, the host has died, and the sandbox ends.
        seconds: see `Limits`; so the next three.
    """

    argv: list[str]
    report_fd: int
    seconds: float
    memory_bytes: int
    processes: int
    file_bytes: int


def main() -> None:
    """Run the program of the first argument."""
    spec = Spec(**json.loads(sys.argv[1]))
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The program has the same user id: it must not trace this process.
    _prctl(_PR_SET_DUMPABLE, 0)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    restrict_calls()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    _report(spec, {"started": True})
    program = os.fork()
    if program == 0:
        _become(spec)
    code, limit = _watch(program, spec)
    _report(spec, {"code": code, "limit": limit})
    os._exit(0)


def _become(spec: Spec) -> None:
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        os.close(spec.report_fd)
        # What it sends to its process group must stay inside.
        os.setsid()
        for kind, most in (
            (resource.RLIMIT_AS, spec.memory_bytes),
            (resource.RLIMIT_CPU, int(spec.seconds) + 1),
            (resource.RLIMIT_FSIZE, spec.file_bytes),
            (resource.RLIMIT_NOFILE, 64),
            # Process 1 counts too.
            (resource.RLIMIT_NPROC, spec.processes + 1),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_MEMLOCK, 0),
            (resource.RLIMIT_MSGQUEUE, 0),
        ):
            _limit(kind, most)
        os.execv(spec.argv[0], spec.argv)
    finally:
        os._exit(127)


def _limit(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


def _watch(program: int, spec: Spec) -> tuple[int, str | None]:
    """Wait for the program's end or a limit; return its exit code and the limit that it passed."""
    deadline = time.monotonic() + spec.seconds
    host = select.poll()
    host.register(spec.report_fd, 0)
    while not host.poll(0):
        code = _reap(program)
        if code is not None:
            is_at_time_limit = code == -signal.SIGXCPU
            return code, "time" if is_at_time_limit else None
        limit = "time" if time.monotonic() > deadline else _passed(spec)
        if limit is not None:
            return -signal.SIGKILL, limit
        signal.sigtimedwait({signal.SIGCHLD}, _LOOK_AGAIN_S)
    os._exit(1)


def _reap(program: int) -> int | None:
    """Reap all that have ended, orphans too; return the program's exit code if it is among them."""
    code = None
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if ended == 0:
            return code
        if ended == program:
            code = os.waitstatus_to_exitcode(status)


def _passed(spec: Spec) -> str | None:
    """The limit that the tree has passed: memory in processes and files, or their number."""
    files = os.statvfs("/tmp")
    used = (files.f_blocks - files.f_bfree) * files.f_frsize
    members = [name for name in os.listdir("/proc") if name.isdecimal() and name != "1"]
    if len(members) > spec.processes:
        return "processes"
    used += sum(_PAGE * _resident_pages(member) for member in members)
    return "memory" if used > spec.memory_bytes else None


def _resident_pages(member: str) -> int:
    try:
        with open(f"/proc/{member}/statm", "rb") as file:
            return int(file.read().split()[1])
    except (OSError, IndexError):
        return 0  # It has ended meanwhile.


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _report(spec: Spec, fields: dict[str, object]) -> None:
    os.write(spec.report_fd, json.dumps(fields).encode() + b"\n")


# Calls that no Python program needs and that lead to the kernel's larger surfaces, to memory that
# no limit counts, or to sockets that no network namespace bounds.
_REFUSED = {
    "x86_64": (
        *(29, 64, 68),  # shmget, semget, msgget
        *(101, 310, 311, 312, 438),  # ptrace, process_vm_*, kcmp, pidfd_getfd
        *(155, 161, 165, 166, 272, 308),  # pivot_root, chroot, mount, umount2, unshare, setns
        *(175, 246, 313, 320),  # init_module, kexec_load, finit_module, kexec_file_load
        *(
            248,
            249,
            250,
            298,
            303,
            304,
        ),  # add_key, request_key, keyctl, perf_event_open, *_by_handle
        *(319, 447, 321, 323, 425),  # memfd_create, memfd_secret, bpf, userfaultfd, io_uring_setup
        *(428, 429, 430, 432, 442),  # open_tree, move_mount, fsopen, fsmount, mount_setattr
    ),
    "aarch64": (
        *(194, 190, 186),
        *(117, 270, 271, 272, 438),
        *(41, 51, 40, 39, 97, 268),
        *(105, 104, 273, 294),
        *(217, 218, 219, 241, 264, 265),
        *(279, 447, 280, 282, 425),
        *(428, 429, 430, 432, 442),
    ),
}
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE = {"x86_64": 56, "aarch64": 220}
_SOCKET = {"x86_64": 41, "aarch64": 198}
_CLONE3 = 435
_NEW_NAMESPACES = 0x7E020080
_SOCKET_FAMILIES = (1, 2, 10)  # Unix, IPv4, IPv6; not vsock, which reaches a virtual machine's host
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_NUMBER, _ARCHITECTURE, _ARGUMENT = 0, 4, 16
"""Offsets in seccomp_data."""


def filter_program(machine: str) -> bytes:
    """Assemble the filter of system calls for a processor; empty where its numbers are unknown."""
    if machine not in _REFUSED:
        return b""

    def refuse(number: int) -> list[tuple[int, int, int, int]]:
        return [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERROR | _EPERM)]

    families = [(_EQUAL, len(_SOCKET_FAMILIES) - i, 0, f) for i, f in enumerate(_SOCKET_FAMILIES)]
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        # Numbers of another convention (x32).
        (_AT_LEAST, 0, 1, 0x40000000),
        (_RETURN, 0, 0, _ERROR | _ENOSYS),
        *(step for number in _REFUSED[machine] for step in refuse(number)),
        # Its flags are in memory, where no filter can look; libraries then use clone.
        (_EQUAL, 0, 1, _CLONE3),
        (_RETURN, 0, 0, _ERROR | _ENOSYS),
        (_EQUAL, 0, 4, _CLONE[machine]),
        (_LOAD, 0, 0, _ARGUMENT),
        (_ANY_BIT, 0, 1, _NEW_NAMESPACES),
        (_RETURN, 0, 0, _ERROR | _EPERM),
        (_RETURN, 0, 0, _ALLOW),
        (_EQUAL, 0, len(families) + 2, _SOCKET[machine]),
        (_LOAD, 0, 0, _ARGUMENT),
        *families,
        (_RETURN, 0, 0, _ERROR | _EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def restrict_calls() -> None:
    """Install the filter for this processor, for this process and all that it starts."""
    code = filter_program(platform.machine())
    if not code:
        return
    buffer = ctypes.create_string_buffer(code, len(code))
    fprog = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    pointer = ctypes.create_string_buffer(fprog, len(fprog))
    if _LIBC.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(2), pointer, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


if __name__ == "__main__":
    main()
