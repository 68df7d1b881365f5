"""Reading `.bin` and `.pt` files of torch: only tensors, mapped; no code in them is run."""

import pickle
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from powerinfer._extras import how_to_install
from powerinfer.convert.checkpoint.tensor import STORAGE, CheckpointTensor
from powerinfer.errors import CheckpointError, DeviceError

if TYPE_CHECKING:
    import torch

__all__ = ["read_torch_file"]

_FORMATS = {
    "torch.float64": "f64",
    "torch.float32": "f32",
    "torch.float16": "f16",
    "torch.bfloat16": "bf16",
    "torch.uint8": "u8",
}
_ZIP_MAGIC = b"PK\x03\x04"


def read_torch_file(path: Path) -> dict[str, CheckpointTensor]:
    """Map the tensors of a state dict, by name. Files of torch before 1.6 are read into memory.

    Raises:
        DeviceError: torch is not installed.
        CheckpointError: the file cannot be read, would run code, or holds something else.
    """
    try:
        import torch
    except ImportError:
        # Weights may exist in another form; predictors exist only as .pt files.
        another = ", or convert a checkpoint of safetensors files" if path.suffix == ".bin" else ""
        raise DeviceError(
            f"{path}: reading it needs torch, which is not installed; "
            f"{how_to_install('train')}{another}"
        ) from None
    try:
        with path.open("rb") as file:
            is_zip = file.read(len(_ZIP_MAGIC)) == _ZIP_MAGIC
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from None
    except pickle.UnpicklingError as error:
        raise CheckpointError(_refusal(path, str(error))) from None
    except Exception as error:  # noqa: BLE001  torch raises anything on a damaged file
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise CheckpointError(f"{path}: torch cannot read it: {reason:.120}") from None
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        raise CheckpointError(f"{path}: expected tensors by name, got {type(state).__name__}")
    return {name: _as_tensor(path, name, value) for name, value in state.items()}


def _refusal(path: Path, reason: str) -> str:
    """Summarize torch's long refusal of a pickle that asks for more than tensors."""
    parts = reason.split("Unsupported global: GLOBAL ", 1)
    if len(parts) == 2:
        name = parts[1].split(" was not", 1)[0]
        return f"{path}: refused: loading it would run code ({name:.60}); expected only tensors"
    return f"{path}: refused: it is damaged, or loading it would run code; expected only tensors"


def _as_tensor(path: Path, name: str, value: object) -> CheckpointTensor:
    import torch

    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        raise CheckpointError(f"{path}: {name} is {type(value).__name__}; expected a dense tensor")
    shape = tuple(value.shape)
    name_of_type = str(value.dtype)
    if name_of_type not in _FORMATS:
        empty = np.empty(0, np.uint8)
        return CheckpointTensor(name, name_of_type, empty, shape, path)
    return CheckpointTensor(name, _FORMATS[name_of_type], _as_array(value), shape, path)


def _as_array(value: "torch.Tensor") -> npt.NDArray[np.generic]:
    import torch

    value = value.detach()
    bits = value.view(torch.uint16) if value.dtype == torch.bfloat16 else value
    array: npt.NDArray[np.generic] = bits.numpy()
    return array.view(STORAGE[_FORMATS[str(value.dtype)]])
