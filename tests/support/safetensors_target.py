"""What fuzzing runs: open a safetensors file and touch all of it; see gguf_target.py."""

from pathlib import Path

import numpy as np

from checkpoint_files import bf16, safetensors_bytes
from powerinfer.convert.checkpoint import CheckpointTensor
from powerinfer.convert.checkpoint.safetensors import read_safetensors
from powerinfer.errors import CheckpointError

__all__ = ["read_everything", "seeds"]


def seeds() -> list[bytes]:
    """Small valid files."""
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    return [
        safetensors_bytes({}),
        safetensors_bytes({"w": values, "b": bf16(values[0]), "n": np.arange(2)}),
        safetensors_bytes({"e": np.zeros((0, 3), np.float16), "s": np.array(1.0), "u": values}),
    ]


def read_everything(path: Path) -> dict[str, CheckpointTensor] | None:
    """Open `path` and read all data; None where it is refused as it should be."""
    try:
        tensors = read_safetensors(path)
    except CheckpointError as error:
        message = str(error)
        if str(path) not in message or "\n" in message or len(message) > 2000:
            raise RuntimeError(f"not a clear message: {message[:3000]!r}") from error
        return None
    for tensor in tensors.values():
        if tensor.values.size and tensor.values.shape != tensor.shape:
            raise RuntimeError(f"shape of {tensor}")
        tensor.values.tobytes()
    return tensors
