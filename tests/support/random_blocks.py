"""Random blocks of every weight format, whose weights are about as large as asked."""

import numpy as np
import numpy.typing as npt

from powerinfer.quant import get_format

__all__ = ["half_fields", "random_blocks"]

# Byte offset of each f16 scale in a block, and its value for weights of standard deviation 1 if the
# codes (and the inner scales of k-formats) are uniform: 1 / spread of code times inner scale. A
# minimum cancels the mean of the codes. Blocks of other formats are encoded instead.
_SCALES: dict[str, tuple[tuple[int, float], ...]] = {
    "q4_0": ((0, 1 / 4.6),),
    "q4_1": ((0, 1 / 4.6), (2, -7.5 / 4.6)),
    "q5_0": ((0, 1 / 9.2),),
    "q5_1": ((0, 1 / 9.2), (2, -15.5 / 9.2)),
    "q8_0": ((0, 1 / 73.9),),
    "q4_k": ((0, 1 / 250.0), (2, 7.5 / 250.0)),
    "q5_k": ((0, 1 / 500.0), (2, 15.5 / 500.0)),
    "q6_k": ((208, 1 / 1370.0),),
}
_BYTE_SPREAD = 73.9


def half_fields(format_name: str) -> list[int]:
    """Byte offsets of the f16 scales in a block of a file's format."""
    return [offset for offset, _ in _SCALES.get(format_name, ())]


def random_blocks(
    format_name: str, codes: npt.NDArray[np.uint8], spread: float, jitter: npt.NDArray[np.float64]
) -> npt.NDArray[np.uint8]:
    """Blocks in which every code may occur.

    Args:
        format_name: a format with blocks.
        codes: u8[num_blocks, block_bytes], random.
        spread: standard deviation of the weights, about.
        jitter: f64[num_blocks]: the spread of each block, relative to `spread`.

    Returns:
        u8[num_blocks, block_bytes], newly allocated.
    """
    blocks = codes.copy()
    if format_name == "mxfp4":  # the exponent of scale * 2^128; uniform codes spread by 5.9
        blocks[:, 0] = 128 + np.frexp(spread * jitter / 5.9)[1]
        return blocks
    if format_name not in _SCALES:
        known = get_format(format_name)
        numbers = np.resize(codes - 127.5, (len(codes), known.block_size)) / _BYTE_SPREAD
        return known.encode((numbers * spread * jitter[:, np.newaxis]).astype(np.float32))
    for offset, scale in _SCALES[format_name]:
        halves = (scale * spread * jitter).astype("<f2")
        blocks[:, offset : offset + 2] = halves.view(np.uint8).reshape(-1, 2)
    return blocks
