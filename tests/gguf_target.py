"""What fuzzing runs: open a file and touch everything in it; only `PowerInferError` may come out.

Shared by the hypothesis tests, the kept crashers and ``scripts/fuzz``.
"""

import tracemalloc
from pathlib import Path

import numpy as np

import gguf_bytes as gb
from powerinfer.errors import GGUFError, UnsupportedError
from powerinfer.gguf import GGUFFile, model_identity, open_gguf

# Memory that opening may take: this per byte of the file (a one-byte string costs 9 bytes in the
# file and about 60 in Python, an empty tensor 25 and about 1,000), plus a constant.
BYTES_PER_BYTE = 64
BYTES_AT_LEAST = 1 << 20


def seeds() -> list[bytes]:
    """Small valid files that together use every feature of the format."""
    rich = gb.Image(
        entries=[
            gb.entry("general.architecture", gb.STRING, gb.text("llama")),
            gb.u32("general.alignment", 64),
            gb.u32("llama.block_count", 1),
            gb.entry("a.float", gb.F32, np.float32(1.5).tobytes()),
            gb.entry("a.flag", gb.BOOL, b"\x01"),
            gb.entry("a.wide", gb.I64, bytes(8)),
            gb.entry("texts", gb.ARRAY, gb.array(gb.STRING, 2, gb.text("one") + gb.text("é"))),
            gb.entry("scores", gb.ARRAY, gb.array(gb.F32, 2, bytes(8))),
            gb.entry("flags", gb.ARRAY, gb.array(gb.BOOL, 2, b"\x01\x00")),
        ],
        tensors=[
            gb.tensor("token_embd.weight", [4, 2]),
            gb.tensor("blk.0.ffn_down_t.weight", [32, 1], 2, offset=64),
            gb.tensor("blk.0.fc1.weight", [256], 14, offset=128),
        ],
        data=bytes(384),
        alignment=64,
    )
    index = gb.Image(
        entries=[gb.u32("generic.gpu_index.block_count", 1)],
        tensors=[gb.tensor("blk.0.gpu_idx", [4], 18), gb.tensor("blk.0.gpu_bucket", [0], 18)],
        data=bytes(16),
        magic=b"PWRI",
    )
    part = gb.Image(
        entries=[
            gb.entry("split.no", gb.U16, b"\0\0"),
            gb.entry("split.count", gb.U16, b"\1\0"),
            gb.entry("split.tensors.count", gb.I32, bytes(4)),
        ],
        version=2,
    )
    return [bytes(rich), bytes(index), bytes(part), bytes(gb.Image())]


def read_everything(path: Path) -> GGUFFile | None:
    """Open `path`, read all metadata and data; None where it is refused as it should be."""
    try:
        file = open_gguf(path)
    except GGUFError as error:
        message = str(error)
        if str(path.parent) not in message or "\n" in message or len(message) > 2000:
            raise RuntimeError(f"not a clear message: {message[:3000]!r}") from error
        return None
    for tensor in file.tensors.values():
        try:
            if tensor.decode().shape != tensor.shape:
                raise RuntimeError(f"decoded shape of {tensor}")
        except UnsupportedError:
            tensor.rows.sum()
    for key in file.metadata:
        for getter in (file.get_int, file.get_float, file.get_str, file.get_array):
            try:
                getter(key)
            except GGUFError:
                continue
    model_identity(file)
    return file


def open_within_budget(path: Path) -> None:
    """Open `path` and raise if that took more memory than the size of the file justifies."""
    tracemalloc.start()
    try:
        open_gguf(path)
    except GGUFError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    budget = BYTES_AT_LEAST + BYTES_PER_BYTE * path.stat().st_size
    if peak > budget:
        raise RuntimeError(f"opening took {peak} bytes, budget {budget}")
