"""The type to compute in while training: bfloat16 where the device multiplies it, else f32."""

import os
from contextlib import AbstractContextManager

import torch
from torch import Tensor

__all__ = ["autocast", "compute_repeatably", "has_bf16", "working"]


def has_bf16(device: torch.device) -> bool:
    """Check for bfloat16 instructions; a device without them is slower with it than with f32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    known = torch.cpu.get_capabilities()
    return any(known.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def autocast(device: torch.device, *, is_on: bool) -> AbstractContextManager[None]:
    """Compute matrix products in bfloat16; weights stay as they are."""
    return torch.autocast(device.type, torch.bfloat16, enabled=is_on)


def compute_repeatably(device: torch.device) -> None:
    """Make a GPU repeat its bits, as far as torch can; a CPU does so anyway."""
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(mode=True, warn_only=True)


def working(x: Tensor) -> Tensor:
    """Cast x once to autocast's type, not once for each matrix that reads it."""
    if torch.is_autocast_enabled(x.device.type):
        return x.to(torch.get_autocast_dtype(x.device.type))
    return x
