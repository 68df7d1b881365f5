"""Normalisation of rows: one program per row, which it holds in registers.

y[i] = x[i] / sqrt(mean(x^2) + eps) * w[i], and (x[i] - mean) / sqrt(variance + eps) * w[i] + b[i].
Bound by the launch in decode; 8 bytes per number else. f32 throughout, sums in a tree.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["layer_norm", "layer_norm_kernel", "rms_norm", "rms_norm_kernel"]


@triton.jit
def rms_norm_kernel(x, weight, y, x_stride, columns, eps, BLOCK: tl.constexpr):
    """Root mean square normalisation (arXiv 1910.07467) of row `program_id(0)`."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    valid = column < columns
    values = tl.load(x + row * x_stride + column, mask=valid, other=0.0).to(tl.float32)
    scales = tl.load(weight + column, mask=valid, other=0.0).to(tl.float32)
    mean = tl.sum(values * values, axis=0) / columns
    normed = values * tl.div_rn(1.0, tl.sqrt_rn(mean + eps)) * scales
    tl.store(y + row * columns + column, normed, mask=valid)


@triton.jit
def layer_norm_kernel(
    x, weight, bias, y, x_stride, columns, eps, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr
):
    """Layer normalisation (arXiv 1607.06450), population variance, of row `program_id(0)`."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    valid = column < columns
    values = tl.load(x + row * x_stride + column, mask=valid, other=0.0).to(tl.float32)
    scales = tl.load(weight + column, mask=valid, other=0.0).to(tl.float32)
    mean = tl.sum(values, axis=0) / columns
    centred = tl.where(valid, values - mean, 0.0)
    variance = tl.sum(centred * centred, axis=0) / columns
    normed = centred * tl.div_rn(1.0, tl.sqrt_rn(variance + eps)) * scales
    if HAS_BIAS:
        normed += tl.load(bias + column, mask=valid, other=0.0).to(tl.float32)
    tl.store(y + row * columns + column, normed, mask=valid)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise each row: new f32[num_tokens, columns].

    Args:
        x: f32[num_tokens, columns], rows contiguous.
        weight: f32[columns].
        eps: added to the mean of the squares.
    """
    rows, columns = x.shape
    y = torch.empty((rows, columns), dtype=torch.float32, device=x.device)
    block, warps = _launch(columns)
    rms_norm_kernel[(rows,)](x, weight, y, x.stride(0), columns, eps, BLOCK=block, num_warps=warps)
    return y


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """Normalise each row: new f32[num_tokens, columns].

    Args:
        x: f32[num_tokens, columns], rows contiguous.
        weight: f32[columns].
        bias: f32[columns] or None.
        eps: added to the variance.
    """
    rows, columns = x.shape
    y = torch.empty((rows, columns), dtype=torch.float32, device=x.device)
    block, warps = _launch(columns)
    layer_norm_kernel[(rows,)](
        x,
        weight,
        weight if bias is None else bias,
        y,
        x.stride(0),
        columns,
        eps,
        HAS_BIAS=bias is not None,
        BLOCK=block,
        num_warps=warps,
    )
    return y


def _launch(columns: int) -> tuple[int, int]:
    """Row length in registers, and warps: 8 to 32 numbers in each thread at model widths."""
    block = int(triton.next_power_of_2(columns))
    return block, min(16, max(1, block // 512))
