"""Plain encoders of K-quants, for tests: nearest codes, no search for better scales."""

import numpy as np
import numpy.typing as npt

__all__ = ["encode_k_quant"]

Bytes = npt.NDArray[np.uint8]
FloatArray = npt.NDArray[np.float32]


def encode_k_quant(values: FloatArray, format_name: str) -> Bytes:
    """The blocks of f32[..., n] in `q4_k`, `q5_k` or `q6_k`, one after the other: u8[num_bytes]."""
    groups = np.ascontiguousarray(values, np.float32).reshape(-1, 256)
    if format_name == "q6_k":
        return _encode_q6_k(groups).reshape(-1)
    return _encode_with_minima(groups, bits={"q4_k": 4, "q5_k": 5}[format_name]).reshape(-1)


def _encode_with_minima(groups: FloatArray, bits: int) -> Bytes:
    blocks = groups.reshape(-1, 8, 32)
    lowest = np.minimum(blocks.min(axis=2), 0)
    steps = (blocks.max(axis=2) - lowest) / np.float32((1 << bits) - 1)
    scale, scales = _six_bits(steps)
    base, minima = _six_bits(-lowest)
    numerators = blocks + (base * minima)[:, :, None]
    codes = _codes(numerators, (scale * scales)[:, :, None], 0, (1 << bits) - 1).astype(np.uint8)
    low, high = codes & 15, codes >> 4
    parts = [_half(scale), _half(base), _packed_scales(scales, minima)]
    if bits == 5:
        parts.append(np.packbits(high, axis=1, bitorder="little").reshape(-1, 32))
    parts.append((low[:, 0::2] | low[:, 1::2] << 4).astype(np.uint8).reshape(-1, 128))
    return np.concatenate(parts, axis=1)


def _encode_q6_k(groups: FloatArray) -> Bytes:
    blocks = groups.reshape(-1, 16, 16)
    steps = np.abs(blocks).max(axis=2) / np.float32(31)
    scale = _rounded_half(steps.max(axis=1, keepdims=True) / 127)
    scales = _codes(steps, scale, 0, 127)
    codes = (_codes(blocks, (scale * scales)[:, :, None], -32, 31) + 32).astype(np.uint8)
    # Two halves of four runs of 32: nibbles of runs 0 and 1 below those of 2 and 3.
    runs = codes.reshape(-1, 2, 4, 32)
    nibbles, tops = runs & 15, runs >> 4
    low = (nibbles[:, :, :2] | nibbles[:, :, 2:] << 4).reshape(-1, 128)
    high = tops[:, :, 0] | tops[:, :, 1] << 2 | tops[:, :, 2] << 4 | tops[:, :, 3] << 6
    signed = scales.astype(np.int8).view(np.uint8)
    return np.concatenate([low, high.reshape(-1, 64), signed, _half(scale)], axis=1)


def _six_bits(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """f32[n, 8] as one half for each row times numbers below 64."""
    scale = _rounded_half(values.max(axis=1, keepdims=True) / 63)
    return scale, _codes(values, scale, 0, 63)


def _codes(values: FloatArray, scale: FloatArray, least: int, most: int) -> FloatArray:
    divisor = np.where(scale > 0, scale, np.float32(1))
    return np.clip(np.rint(values / divisor), least, most)


def _rounded_half(values: FloatArray) -> FloatArray:
    return values.astype(np.float16).astype(np.float32)


def _half(values: FloatArray) -> Bytes:
    return np.ascontiguousarray(values.astype("<f2")).view(np.uint8)


def _packed_scales(scales: FloatArray, minima: FloatArray) -> Bytes:
    s, m = scales.astype(np.uint8), minima.astype(np.uint8)
    first = s[:, :4] | s[:, 4:] >> 4 << 6
    second = m[:, :4] | m[:, 4:] >> 4 << 6
    third = (s[:, 4:] & 15) | (m[:, 4:] & 15) << 4
    return np.concatenate([first, second, third], axis=1)
