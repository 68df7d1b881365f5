"""Enters new namespaces with an empty root and becomes the guard there.

Run as `python -I -S enter.py SPEC`, with SPEC a JSON object of the fields of `Spec`. Nothing of
this package can be imported here.
"""

import ctypes
import json
import os
import select
import signal
import struct
import sys
from dataclasses import dataclass

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_NEW_USER, _NEW_PID, _NEW_OTHERS = 0x10000000, 0x20000000, 0x4E020000
"""The others: mount, cgroup, uts, ipc, net."""
_BIND, _REC, _PRIVATE = 4096, 16384, 1 << 18
_NO_SUID, _NO_DEV, _NO_EXEC = 2, 4, 8
_DETACH = 2
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE = 442, -100, 0x8000
"""Of Linux 5.12; new calls have the same number on all processors."""
_INSIDE_ID, _NOBODY = 1000, 65534
_BASE = "/tmp"


@dataclass(frozen=True)
class Spec:
    """What the sandbox holds.

    Attributes:
        parent: process that started this one.
        report_fd: gets a line of JSON if this fails.
        binds: files and folders, as (path here, path inside), read-only.
        links: symbolic links, as (target, path inside).
        file_bytes: that all files in /tmp may have together.
        argv: of the guard, with paths inside.
    """

    parent: int
    report_fd: int
    binds: list[tuple[str, str]]
    links: list[tuple[str, str]]
    file_bytes: int
    argv: list[str]


def main() -> None:
    """Enter the sandbox of the first argument, and wait for its end."""
    spec = Spec(**json.loads(sys.argv[1]))
    _call("prctl", _PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != spec.parent:
        sys.exit("the process that wanted a sandbox has ended")
    try:
        _enter(spec)
    except (OSError, ChildProcessError) as error:
        os.write(spec.report_fd, json.dumps({"failed": _described(error)}).encode() + b"\n")
        os._exit(1)


def _described(error: OSError) -> str:
    return f"{error.filename or 'namespaces'}: {error.strerror or error}"


def _enter(spec: Spec) -> None:
    is_root = os.geteuid() == 0
    _unshare_with_ids(is_root=is_root)
    watched, held = os.pipe()
    if child := os.fork():
        os.waitpid(child, 0)
        os._exit(0)
    # Process 1 of the namespace. The pipe tells it of a death before it asked for the signal.
    os.close(held)
    _call("prctl", _PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    if select.select([watched], [], [], 0)[0]:
        os._exit(1)
    os.close(watched)
    _build_root(spec)
    if is_root:
        os.setgroups([])
        os.setresgid(_INSIDE_ID, _INSIDE_ID, _INSIDE_ID)
        os.setresuid(_INSIDE_ID, _INSIDE_ID, _INSIDE_ID)
    # Starting a program as another user than root drops all capabilities.
    os.execve(spec.argv[0], spec.argv, {"LANG": "C.UTF-8", "HOME": "/tmp"})


def _unshare_with_ids(*, is_root: bool) -> None:
    """Enter the namespaces. Root becomes nobody there, for Linux does not count its processes."""
    uid, gid = os.geteuid(), os.getegid()
    flags = _NEW_USER | _NEW_PID | _NEW_OTHERS
    if not is_root:
        _call("unshare", flags)
        _write_maps("self", f"{_INSIDE_ID} {uid} 1", f"{_INSIDE_ID} {gid} 1")
        return
    # Only a process outside may map ids that are not its own.
    ready, told = os.pipe()
    if not (helper := os.fork()):
        os.close(told)
        both = f"0 0 1\n{_INSIDE_ID} {_NOBODY} 1"
        try:
            # Without a word, the process that waits for its ids has ended.
            if not os.read(ready, 1):
                os._exit(1)
            _write_maps(str(os.getppid()), both, both)
        except OSError:
            os._exit(1)
        os._exit(0)
    os.close(ready)
    _call("unshare", flags)
    os.write(told, b"1")
    os.close(told)
    if os.waitpid(helper, 0)[1] != 0:
        raise ChildProcessError(1, "users cannot be mapped here", "uid_map")


def _write_maps(process: str, uids: str, gids: str) -> None:
    if process == "self":
        _write("/proc/self/setgroups", "deny")
    _write(f"/proc/{process}/uid_map", uids)
    _write(f"/proc/{process}/gid_map", gids)


def _write(path: str, text: str) -> None:
    file = os.open(path, os.O_WRONLY)
    os.write(file, text.encode())
    os.close(file)


def _build_root(spec: Spec) -> None:
    """Make an empty tmpfs the root, with what the program needs, all of it read-only but /tmp."""
    _mount(None, "/", None, _REC | _PRIVATE)
    _mount("tmpfs", _BASE, "tmpfs", _NO_SUID | _NO_DEV, "mode=0755,size=1m")
    os.mkdir(f"{_BASE}/old")
    _call("pivot_root", _BASE.encode(), f"{_BASE}/old".encode())
    os.chdir("/")
    for source, target in spec.binds:
        _bind(f"/old{source}", target)
    for source, target in spec.links:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.symlink(source, target)
    for folder in ("/tmp", "/proc"):
        os.mkdir(folder)
    options = f"mode=1777,size={spec.file_bytes},nr_inodes=4096"
    _mount("tmpfs", "/tmp", "tmpfs", _NO_SUID | _NO_DEV | _NO_EXEC, options)
    # Processes alone: nothing of the machine or its settings.
    _mount("proc", "/proc", "proc", _NO_SUID | _NO_DEV | _NO_EXEC, "subset=pid")
    # No namespaces inside, which would give the program capabilities over them. The setting is that
    # of the namespace that writes it, wherever it is.
    _write("/old/proc/sys/user/max_user_namespaces", "0")
    _call("umount2", b"/old", _DETACH)
    os.rmdir("/old")
    _make_read_only("/", recursive=False)
    os.chdir("/tmp")


def _bind(source: str, target: str) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
    _mount(source, target, None, _BIND | _REC)
    _make_read_only(target, recursive=True)


def _make_read_only(path: str, *, recursive: bool) -> None:
    attributes = struct.pack("=QQQQ", 1 | _NO_SUID, 0, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    arguments = (_AT_FDCWD, path.encode(), flags, attributes, ctypes.c_size_t(len(attributes)))
    _call("syscall", ctypes.c_long(_MOUNT_SETATTR), *arguments)


def _mount(
    source: str | None, target: str, kind: str | None, flags: int, options: str = ""
) -> None:
    given = [None if text is None else text.encode() for text in (source, target, kind)]
    _call("mount", *given, ctypes.c_ulong(flags), options.encode(), shown=target)


def _call(name: str, *arguments: object, shown: str = "") -> None:
    if getattr(_LIBC, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), f"{name} {shown}".strip())


if __name__ == "__main__":
    main()
