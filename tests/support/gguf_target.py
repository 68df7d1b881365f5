"""What fuzzing runs: open a file and touch everything in it; only `PowerInferError` may come out.

Shared by the hypothesis tests, the kept crashers and ``scripts/fuzz``.
"""

import tracemalloc
from pathlib import Path

import numpy as np

import gguf_bytes as gb
from powerinfer.cli.report.summary import summarize
from powerinfer.errors import GGUFError, PowerInferError, UnsupportedError
from powerinfer.gguf import GGUFFile, open_gguf
from powerinfer.models import architecture_of, read_config
from powerinfer.models.tensors.tensor_finder import TensorFinder

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
    return [
        *(bytes(image) for image in (rich, index, part, gb.Image())),
        *(bytes(_experts(is_merged=is_merged)) for is_merged in (True, False)),
    ]


def _experts(*, is_merged: bool) -> gb.Image:
    """A model of one layer with two experts, in one tensor or one by one."""
    numbers = {
        "context_length": 8,
        "embedding_length": 4,
        "block_count": 1,
        "feed_forward_length": 2,
        "attention.head_count": 1,
        "expert_count": 2,
        "expert_used_count": 1,
    }
    shapes = {
        "token_embd": [4, 3],
        "output_norm": [4],
        "blk.0.attn_norm": [4],
        "blk.0.ffn_norm": [4],
        **{f"blk.0.attn_{name}": [4, 4] for name in ("q", "k", "v", "output")},
        "blk.0.ffn_gate_inp": [4, 2],
    }
    for name, shape in {"gate": [4, 2], "up": [4, 2], "down": [2, 4]}.items():
        if is_merged:
            shapes[f"blk.0.ffn_{name}_exps"] = [*shape, 2]
        else:
            shapes |= {f"blk.0.ffn_{name}.{expert}": shape for expert in range(2)}
    return gb.Image(
        entries=[
            gb.entry("general.architecture", gb.STRING, gb.text("llama")),
            gb.entry("llama.attention.layer_norm_rms_epsilon", gb.F32, np.float32(1e-5).tobytes()),
            *(gb.u32(f"llama.{key}", value) for key, value in numbers.items()),
        ],
        tensors=[
            gb.tensor(f"{name}.weight", shape, offset=64 * number)
            for number, (name, shape) in enumerate(shapes.items())
        ],
        data=bytes(64 * len(shapes)),
    )


def read_everything(path: Path) -> GGUFFile | None:
    """Open `path`, read all metadata and data; None where it is refused as it should be."""
    try:
        file = open_gguf(path)
    except GGUFError as error:
        _check_message(str(error), path)
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
    summarize(file)
    try:
        find_tensors(file)
    except PowerInferError as error:
        _check_message(str(error), path)
    return file


def find_tensors(file: GGUFFile) -> None:
    """Look up the tensors of a model, as loading does before it reads one."""
    architecture = architecture_of(file)
    config = read_config(file, architecture)
    finder = TensorFinder(file, config, architecture)
    finder.all()
    finder.lookup.raise_problems()


def _check_message(message: str, path: Path) -> None:
    """Every error is one line that names the file, and does not repeat all of it."""
    if str(path.parent) not in message or "\n" in message or len(message) > 2000:
        raise RuntimeError(f"not a clear message: {message[:3000]!r}")


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
