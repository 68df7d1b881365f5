"""Weights of experts that no token chose are not read, neither at load nor in a step."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from patience import PATIENCE_S
from tiny_models import TINY_MODELS, wide, write_model

# Takes the right to read the pages of experts away before the model is loaded, and gives it back
# for those that the reference chooses: who reads others dies.
_STEP = """
import ctypes, mmap, sys
import numpy as np
from powerinfer.gguf import open_gguf
from powerinfer.models import load_model
from powerinfer.models.blocks import Stage
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.reference.ops import ReferenceOps

path, reads_all = sys.argv[1], sys.argv[2] == "all"
libc = ctypes.CDLL(None, use_errno=True)

def forward(model, observe=None):
    cache = model.new_cache()
    return model.forward(cache.batch([(0, [5], 0)], [False]), cache, observe=observe)

def protect(part, access):
    first = -(-part.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (part.ctypes.data + part.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    assert last > first
    assert libc.mprotect(ctypes.c_void_p(first), ctypes.c_size_t(last - first), access) == 0

oracle, chosen = load_model(open_gguf(path), ReferenceOps(), context_length=32), []

def observe(stage, number, x):
    if stage is Stage.FFN_INPUT:
        chosen.extend(oracle.ops.route(x, oracle.weights.layers[0].ffn)[0][0].tolist())

forward(oracle, observe)
file = open_gguf(path)
parts = [
    np.split(tensor.data, tensor.shape[0])
    for name, tensor in file.tensors.items() if "_exps" in name
]
for part in (part for experts in parts for part in experts):
    protect(part, 0)
model = load_model(file, NativeOps(2), context_length=32)
for experts in parts:
    for expert in chosen:
        protect(experts[expert], mmap.PROT_READ)
assert len(chosen) == 2 and len(parts) == 3
print("loaded", flush=True)
assert np.isfinite(forward(model)).all()
print("stepped", flush=True)
fresh = load_model(file, NativeOps(2), context_length=32)
up = fresh.weights.layers[0].ffn.up.matrix
size = fresh.ops.matrix_shape(up)[0] // len(parts[0])
ends = [[expert * size, expert * size + size - 1] for expert in chosen]
fresh.ops.encoded_rows(up, np.array(ends, np.int32).ravel())
print("read some", flush=True)
if reads_all:
    fresh.ops.encoded_rows(up)
    print("read all", flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory cannot be limited here")
@pytest.mark.parametrize("format_name", ["q4_0", "q8_0"])
def test_unchosen_experts_stay_unread(tmp_path: Path, format_name: str) -> None:
    """Q4_0 is repacked when an expert is chosen, Q8_0 is read where it lies."""
    recipe = replace(wide(TINY_MODELS["mixtral"], format_name), num_layers=1, num_experts=6)
    path = write_model(tmp_path / "m.gguf", recipe)
    printed = "loaded\nstepped\nread some\n"
    for what in ("chosen", "all"):
        ran = subprocess.run(
            [sys.executable, "-c", _STEP, str(path), what],
            check=False,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert ran.stdout == printed, ran.stderr
        assert (ran.returncode == 0) == (what == "chosen")
