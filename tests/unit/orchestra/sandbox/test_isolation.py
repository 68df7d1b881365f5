"""The sandbox: what a program finds inside, and attempts to get out or to use up the machine."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from patience import PATIENCE_S
from powerinfer.errors import UnsupportedError
from powerinfer.orchestra.sandbox import isolation
from powerinfer.orchestra.sandbox.isolation import PROGRAM, run_isolated
from powerinfer.orchestra.sandbox.limits import Limits
from sandbox_cases import (
    WAYS,
    guards,
    is_program_running,
    need_sandbox,
    need_way,
    run_code,
    wait_until,
)


@pytest.fixture(params=list(WAYS))
def way(request: pytest.FixtureRequest) -> str:
    """Each way into the sandbox that works on this machine."""
    need_way(request.param)
    return str(request.param)


def test_a_program_runs_as_in_a_session(way: str) -> None:
    ended = run_code("import math, sys\nprint(math.pi)\nsys.stderr.write('e')\n6 * 7", way)
    assert ended.stdout == b"3.141592653589793\n42\n"
    assert ended.stderr == b"e"
    assert (ended.code, ended.limit) == (0, None)


def test_errors_show_the_program_alone(way: str) -> None:
    ended = run_code("def f():\n    return 1 / 0\nf()", way)
    assert ended.code == 1
    lines = ended.stderr.decode().splitlines()
    assert lines[1:3] == ['  File "program.py", line 3, in <module>', "    f()"]
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert run_code("exit(3)", way).code == 3


_PEEK = """
import json, os, socket
def tried(action):
    try:
        action()
    except OSError as error:
        return error.errno
    return 0
def connect(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.settimeout(1)
        s.connect(address)
print(json.dumps({
    "root": sorted(os.listdir("/")), "tmp": os.listdir("/tmp"), "dev": sorted(os.listdir("/dev")),
    "environ": sorted(os.environ), "uid": os.getuid(),
    "groups": [g for g in os.getgroups() if g != 65534],
    "processes": sorted(int(p) for p in os.listdir("/proc") if p.isdecimal()),
    "interfaces": [line.split(":")[0].strip() for line in list(open("/proc/self/net/dev"))[2:]],
    "capabilities": [
        line.split()[1] for line in open("/proc/self/status") if line.startswith(("CapEff", "CapP"))
    ],
    "descriptors": len(os.listdir("/proc/self/fd")),
    "secret": tried(lambda: open(SECRET)),
    "here": tried(lambda: open(HERE)),
    "tcp": tried(lambda: connect(socket.AF_INET, ("127.0.0.1", PORT))),
    "unix": tried(lambda: connect(socket.AF_UNIX, "\\0" + ABSTRACT)),
    "vsock": tried(lambda: socket.socket(40, socket.SOCK_STREAM)),
    "writes": [tried(lambda: open(path, "w")) for path in PATHS],
    "guard": tried(lambda: open("/proc/1/mem", "rb+")),
    "kill": tried(lambda: os.kill(1, 9)),
}))
"""


def test_nothing_of_the_machine_is_inside(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_KEY", "sesame")
    (tmp_path / "secret").write_text("sesame")
    abstract = f"powerinfer-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind("\0" + abstract)
        unix.listen()
        given = {
            "SECRET": str(tmp_path / "secret"),
            "HERE": __file__,
            "PORT": tcp.getsockname()[1],
            "ABSTRACT": abstract,
            "PATHS": ["/x", "/usr/lib/x", "/dev/x", "/sandbox/guard.py"],
        }
        names = "".join(f"{name} = {value!r}\n" for name, value in given.items())
        found = json.loads(run_code(names + _PEEK, way).stdout)
    assert set(found["root"]) <= {
        *("dev", "etc", "lib", "lib64", "proc", "sandbox", "tmp", "usr"),
        Path(sys.base_prefix).parts[1],
    }
    assert found["tmp"] == []
    assert set(found["dev"]) == {"null", "urandom"}
    assert set(found["environ"]) <= {"HOME", "LANG", "LC_CTYPE", "PWD"}
    assert found["uid"] == 1000
    assert found["groups"] == []
    assert found["processes"] == [1, 2]
    assert found["interfaces"] == ["lo"]
    assert found["capabilities"] == ["0" * 16] * 2
    assert found["descriptors"] == 4  # and the listing itself
    for name in ("secret", "here", "tcp", "unix", "vsock", "guard"):
        assert found[name] != 0, name
    assert 0 not in found["writes"]
    # Linux drops signals to process 1 from inside.
    assert found["kill"] == 0


_CALLS = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def refused(name, *arguments):
    return getattr(libc, name)(*arguments) == -1
print([
    refused("unshare", 0x10000000), refused("ptrace", 16, 1, 0, 0),
    refused("memfd_create", b"x", 0), refused("shmget", 0, 4096, 0o1600),
    refused("mount", b"x", b"/tmp", b"tmpfs", 0, 0),
    refused("chroot", b"/tmp"), refused("setuid", 0),
    refused("syscall", CLONE, 0x10000011, 0, 0, 0, 0),
])
"""


def test_calls_that_lead_out_are_refused(way: str) -> None:
    clone = {"x86_64": 56}.get(os.uname().machine, 220)
    ended = run_code(_CALLS.replace("CLONE", str(clone)), way)
    assert ended.stdout.decode().strip() == str([True] * 8)


@pytest.mark.parametrize(
    ("code", "limits", "wanted"),
    [
        ("while True: pass", Limits(seconds=0.3), "time"),
        (
            "import signal\nsignal.signal(15, signal.SIG_IGN)\nsignal.pause()",
            Limits(seconds=0.2),
            "time",
        ),
        ("while True: print('x' * 9999)", Limits(output_bytes=10_000), "output"),
        (
            "import sys\nwhile True: sys.stderr.write('x' * 9999)",
            Limits(output_bytes=10_000),
            "output",
        ),
    ],
)
def test_limits_of_one_process(way: str, code: str, limits: Limits, wanted: str) -> None:
    ended = run_code(code, way, limits)
    assert ended.limit == wanted
    assert len(ended.stdout + ended.stderr) <= limits.output_bytes


def test_memory_of_one_process_is_its_error(way: str) -> None:
    ended = run_code("x = bytearray(1 << 30)", way)
    assert ended.stderr.decode().splitlines()[-1] == "MemoryError"


_TOGETHER = """
import mmap, os, time
for _ in range(4):
    if os.fork() == 0:
        m = mmap.mmap(-1, 24 << 20)
        m.write(b"x" * len(m))
        time.sleep(60)
time.sleep(60)
"""


def test_memory_of_all_processes_together(way: str) -> None:
    assert run_code(_TOGETHER, way, Limits(memory_bytes=64 << 20)).limit == "memory"


_BOMB = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""


def test_a_fork_bomb_ends(way: str) -> None:
    limits = Limits(seconds=0.5, processes=8)
    assert run_code(_BOMB, way, limits).limit in ("time", "processes")


def test_files_are_bounded(way: str) -> None:
    code = """
for name in range(9):
    with open(f"/tmp/{name}", "wb") as file:
        file.write(b"x" * (1 << 20))
"""
    ended = run_code(code, way, Limits(file_bytes=4 << 20))
    assert b"No space left on device" in ended.stderr
    whole = run_code("open('/tmp/x', 'wb').truncate(1 << 40)", way)
    assert b"File too large" in whole.stderr


def test_what_is_left_in_the_background_ends_too(way: str) -> None:
    code = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\nprint('end')"
    ended = run_code(code, way, Limits(seconds=31.75))
    assert ended.stdout == b"end\n"
    assert guards(31.75) == []


@pytest.mark.parametrize("is_started", [False, True])
def test_cancelling_leaves_no_process(way: str, is_started: bool) -> None:
    """At once, too: while the program is being started, and while it makes its namespaces."""
    limits = Limits(seconds=32.25)

    async def cancel() -> None:
        allowed = {way: WAYS[way]}
        running = asyncio.create_task(
            run_isolated(PROGRAM, b"while True: pass", limits, allowed=allowed)
        )
        is_far_enough = is_program_running if is_started else guards
        while not is_far_enough(limits.seconds):
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    for _ in range(1 if is_started else 4):
        asyncio.run(cancel())
        wait_until(lambda: guards(limits.seconds) == [])


_HOST = """
import asyncio, sys
from powerinfer.orchestra.sandbox import ways
from powerinfer.orchestra.sandbox.isolation import PROGRAM, run_isolated
from powerinfer.orchestra.sandbox.limits import Limits
way, seconds = getattr(ways, sys.argv[1]), float(sys.argv[2])
code = b"import time; time.sleep(60)"
asyncio.run(run_isolated(PROGRAM, code, Limits(seconds=seconds), allowed={"": way}))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.usefixtures("unmeasured_programs")
def test_the_end_of_the_host_ends_the_sandbox(way: str, number: int) -> None:
    seconds = 33.0 + number / 128
    paths = os.pathsep.join(filter(None, sys.path))
    with subprocess.Popen(
        [sys.executable, "-c", _HOST, way, str(seconds)],
        env={**os.environ, "PYTHONPATH": paths},
        stderr=subprocess.DEVNULL,
    ) as host:
        wait_until(lambda: is_program_running(seconds) or host.poll() is not None)
        assert host.poll() is None
        host.send_signal(number)
        host.wait()
    wait_until(lambda: guards(seconds) == [])


def test_a_sandbox_ends_when_nobody_reads_its_report(way: str) -> None:
    """The signal of the host's death is lost if it comes before process 1 has asked for it."""
    limits = Limits(seconds=10 * PATIENCE_S)
    for is_dead_from_the_start in (True, False):
        reading, writing = os.pipe()
        argv = WAYS[way](PROGRAM, {}, limits, writing)
        with subprocess.Popen(
            argv, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, pass_fds=(writing,)
        ) as outer:
            os.close(writing)
            if not is_dead_from_the_start:
                # The program waits for its text.
                assert os.read(reading, 99) == b'{"started": true}\n'
            os.close(reading)
            try:
                outer.wait(PATIENCE_S)
            finally:
                outer.kill()
        assert guards(limits.seconds) == []


def test_two_sandboxes_run_at_once() -> None:
    need_sandbox()

    async def both() -> list[bytes]:
        code = b"import os\nfor _ in range(5):\n    if os.fork() == 0: os._exit(0)\nprint(1)"
        limits = Limits(processes=8)
        ended = await asyncio.gather(*(run_isolated(PROGRAM, code, limits) for _ in range(2)))
        return [each.stdout for each in ended]

    assert asyncio.run(both()) == [b"1\n", b"1\n"]


def test_without_a_way_one_line_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"kernel/unprivileged_userns_clone": "0"}
    monkeypatch.setattr(isolation, "_setting", lambda name: settings.get(name, ""))

    def broken(*_: object) -> list[str]:
        return [sys.executable, "-c", "import sys; sys.exit('no such luck')"]

    with pytest.raises(UnsupportedError) as raised:
        asyncio.run(run_isolated(PROGRAM, b"", Limits(), allowed={"namespaces": broken}))
    assert str(raised.value) == (
        "no sandbox works here (namespaces: no such luck): install bubblewrap, or allow user "
        "namespaces: sudo sysctl -w kernel.unprivileged_userns_clone=1"
    )
    settings.clear()
    with pytest.raises(UnsupportedError, match=r"\(it needs Linux\): install bubblewrap \(apt"):
        asyncio.run(run_isolated(PROGRAM, b"", Limits(), allowed={}))
