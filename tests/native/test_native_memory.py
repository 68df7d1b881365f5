"""What the CPU's operations ask of the process's memory."""

import os
import platform
import subprocess
import sys

import pytest

from patience import PATIENCE_S

# Some arrays of a prompt's step, taken, written and freed again and again.
_ROUNDS = """
import resource
from powerinfer.ops.cpu.ops import NativeOps

ops = NativeOps(1)

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

counts = []
for _ in range(6):
    before = faults()
    arrays = [bytearray(8 << 20) for _ in range(6)]
    for array in arrays:
        array[::4096] = bytes(len(array) // 4096)
    del arrays, array
    counts.append(faults() - before)
print(min(counts[2:]))
"""


# Sanitizers bring an allocator of their own.
@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or "asan" in os.environ.get("LD_PRELOAD", ""),
    reason="only glibc's allocator is told",
)
def test_freed_arrays_are_used_again_without_new_pages() -> None:
    output = subprocess.run(
        [sys.executable, "-c", _ROUNDS],
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    ).stdout
    assert int(output) < 1000  # of 12,288 pages
