"""Small vectors on the device and in page-locked host memory, and running scores of neurons.

One launch each, so that a recorded step needs no copy nodes.
"""

import triton.language as tl
from torch import Tensor
from torch.autograd.graph import increment_version

from powerinfer.ops.gpu.kernels.overlap import begin_small, overlapping

__all__ = ["add_to", "copy_to_host", "update_scores"]

_BLOCK = 1024


@overlapping
def copy_kernel(x, out, count, BLOCK: tl.constexpr):
    """Copy x to out."""
    begin_small()
    numbers = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = numbers < count
    tl.store(out + numbers, tl.load(x + numbers, mask=inside, other=0.0), mask=inside)


@overlapping
def add_kernel(y, other, count, BLOCK: tl.constexpr):
    """Add other to y."""
    begin_small()
    numbers = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = numbers < count
    sums = tl.load(y + numbers, mask=inside, other=0.0)
    sums += tl.load(other + numbers, mask=inside, other=0.0)
    tl.store(y + numbers, sums, mask=inside)


@overlapping
def score_kernel(scores, mask, num_tokens, num_neurons, decay, BLOCK: tl.constexpr):
    """New scores: decay * scores + (1 - decay) * whether any token's mask has the neuron."""
    begin_small()
    neurons = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = neurons < num_neurons
    fires = tl.zeros([BLOCK], tl.int32)
    for token in range(num_tokens):
        found = tl.load(mask + token * num_neurons + neurons, mask=inside, other=0)
        fires = tl.maximum(fires, found.to(tl.int32))
    before = tl.load(scores + neurons, mask=inside, other=0.0)
    fired = (fires > 0).to(tl.float32)
    tl.store(scores + neurons, decay * before + (1.0 - decay) * fired, mask=inside)


def copy_to_host(x: Tensor, out: Tensor) -> None:
    """Queue out = x, from the device to page-locked host memory, contiguous f32 both."""
    copy_kernel[_grid(x.numel())](x, out, x.numel(), BLOCK=_BLOCK)


def add_to(y: Tensor, other: Tensor) -> None:
    """Queue y += other, which may be page-locked host memory; contiguous f32 both."""
    add_kernel[_grid(y.numel())](y, other, y.numel(), BLOCK=_BLOCK)
    # As torch does, so that blocks of y that were rounded before are not taken for its own.
    increment_version(y)


def update_scores(scores: Tensor, mask: Tensor, decay: float) -> None:
    """Queue scores = decay * scores + (1 - decay) * activity.

    Args:
        scores: f32[num_neurons].
        mask: u8[num_tokens, num_neurons], contiguous; a neuron is active if any token has it.
        decay: between 0 and 1.
    """
    num_tokens, num_neurons = mask.shape
    score_kernel[_grid(num_neurons)](scores, mask, num_tokens, num_neurons, decay, BLOCK=_BLOCK)


def _grid(count: int) -> tuple[int]:
    return (-(-count // _BLOCK),)
