"""Normalisation of rows: one program per row, which it holds in registers.

y[i] = x[i] / sqrt(mean(x^2) + eps) * w[i], and (x[i] - mean) / sqrt(variance + eps) * w[i] + b[i].
Bound by the launch in decode; 8 bytes per number else. f32 throughout, sums in a tree. For packed
weights the same kernel rounds what it wrote to int8 blocks, which saves a launch.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from powerinfer.ops.gpu.kernels import MAX_TOKENS
from powerinfer.ops.gpu.kernels.blocks import keep_blocks, new_blocks, store_rounded
from powerinfer.ops.gpu.kernels.overlap import begin_small, overlapping

__all__ = ["layer_norm", "layer_norm_kernel", "rms_norm", "rms_norm_kernel"]


@overlapping
def rms_norm_kernel(
    x, weight, y, blocks, x_stride, num_rows, columns, width, eps,
    HAS_BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Root mean square normalisation (arXiv 1910.07467) of row `program_id(0)`."""
    begin_small()
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    valid = column < tl.where(row < num_rows, columns, 0)
    values = tl.load(x + row * x_stride + column, mask=valid, other=0.0).to(tl.float32)
    scales = tl.load(weight + column, mask=valid, other=0.0).to(tl.float32)
    mean = tl.sum(values * values, axis=0) / columns
    normed = values * tl.div_rn(1.0, tl.sqrt_rn(mean + eps)) * scales
    _store(normed, y, blocks, row, column, valid, columns, width, HAS_BLOCKS, BLOCK)


@overlapping
def layer_norm_kernel(
    x, weight, bias, y, blocks, x_stride, num_rows, columns, width, eps,
    HAS_BIAS: tl.constexpr, HAS_BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Layer normalisation (arXiv 1607.06450), population variance, of row `program_id(0)`."""
    begin_small()
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    valid = column < tl.where(row < num_rows, columns, 0)
    values = tl.load(x + row * x_stride + column, mask=valid, other=0.0).to(tl.float32)
    scales = tl.load(weight + column, mask=valid, other=0.0).to(tl.float32)
    mean = tl.sum(values, axis=0) / columns
    centred = tl.where(valid, values - mean, 0.0)
    variance = tl.sum(centred * centred, axis=0) / columns
    normed = centred * tl.div_rn(1.0, tl.sqrt_rn(variance + eps)) * scales
    if HAS_BIAS:
        normed += tl.load(bias + column, mask=valid, other=0.0).to(tl.float32)
    _store(normed, y, blocks, row, column, valid, columns, width, HAS_BLOCKS, BLOCK)


@triton.jit
def _store(
    normed, y, blocks, row, column, valid, columns, width,
    HAS_BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store a row, and its int8 blocks."""
    tl.store(y + row * columns + column, normed, mask=valid)
    if HAS_BLOCKS:
        numbers = tl.reshape(tl.where(valid, normed, 0.0), [BLOCK // 32, 8, 4])
        store_rounded(numbers, blocks + row * (11 * width), tl.arange(0, BLOCK // 32), width)


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, is_rounded: bool = False) -> Tensor:
    """Normalise each row: new f32[num_tokens, columns].

    Args:
        x: f32[num_tokens, columns], rows contiguous.
        weight: f32[columns].
        eps: added to the mean of the squares.
        is_rounded: make the int8 blocks of up to 8 tokens too, which `quantized` then finds.
    """
    y, blocks, sizes = _outputs(x, is_rounded=is_rounded)
    rms_norm_kernel[(len(x) if blocks is None else len(blocks),)](
        x, weight, y, y if blocks is None else blocks, x.stride(0), eps=eps, **sizes
    )
    return y


def layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, *, is_rounded: bool = False
) -> Tensor:
    """Normalise each row, see `rms_norm`; `bias` is like `weight`, `eps` added to the variance."""
    y, blocks, sizes = _outputs(x, is_rounded=is_rounded)
    layer_norm_kernel[(len(x) if blocks is None else len(blocks),)](
        x,
        weight,
        weight if bias is None else bias,
        y,
        y if blocks is None else blocks,
        x.stride(0),
        eps=eps,
        HAS_BIAS=bias is not None,
        **sizes,
    )
    return y


def _outputs(x: Tensor, *, is_rounded: bool) -> tuple[Tensor, Tensor | None, dict[str, int]]:
    """Allocate the result and its blocks, if wanted; with sizes for the kernel, by name.

    A row is held in registers: 8 to 32 numbers in each thread at model widths.
    """
    rows, columns = x.shape
    y = torch.empty((rows, columns), dtype=torch.float32, device=x.device)
    blocks, block = None, int(triton.next_power_of_2(columns))
    if is_rounded and 0 < rows <= MAX_TOKENS:
        blocks = new_blocks(y)
        keep_blocks(y, blocks)
        # As many blocks as the smallest tile of a product.
        block = max(128, block)
    sizes = {
        "num_rows": rows,
        "columns": columns,
        "width": 0 if blocks is None else blocks.shape[2],
        "HAS_BLOCKS": blocks is not None,
        "BLOCK": block,
        "num_warps": min(16, max(1, block // 512)),
    }
    return y, blocks, sizes
