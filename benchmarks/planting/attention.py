"""Norms and attention of the synthetic models in numpy, as the engine computes them."""

import numpy as np

from planting.random_rows import FloatRows
from planting.shapes import NORM_EPS, PlantedShape

__all__ = ["attend", "normalise"]


def normalise(x: FloatRows, weight: FloatRows, *, is_layer_norm: bool) -> FloatRows:
    """RMSNorm, or LayerNorm without bias."""
    if is_layer_norm:
        x = x - x.mean(axis=-1, keepdims=True)
    square = (x * x).mean(axis=-1, keepdims=True)
    normed: FloatRows = x / np.sqrt(square + np.float32(NORM_EPS)) * weight
    return normed


def _rotate(x: FloatRows, *, is_interleaved: bool) -> FloatRows:
    """Rotary embedding of f32[tokens, heads, head_dim]; the token's number is its position."""
    tokens, _, head_dim = x.shape
    frequency = 10000.0 ** (-np.arange(0, head_dim, 2) / head_dim)
    angle = (np.arange(tokens)[:, None] * frequency)[:, None, :]
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    half = head_dim // 2
    first = np.s_[..., 0::2] if is_interleaved else np.s_[..., :half]
    second = np.s_[..., 1::2] if is_interleaved else np.s_[..., half:]
    out = np.empty_like(x)
    out[first] = x[first] * cos - x[second] * sin
    out[second] = x[first] * sin + x[second] * cos
    return out


def attend(shape: PlantedShape, q: FloatRows, k: FloatRows, v: FloatRows) -> FloatRows:
    """Causal grouped-query attention over one sequence that starts at position 0.

    Args:
        shape: heads.
        q: f32[tokens, hidden_size].
        k: f32[tokens, kv_size].
        v: f32[tokens, kv_size].

    Returns:
        f32[tokens, hidden_size], before the output projection.
    """
    tokens, group = len(q), shape.num_heads // shape.num_kv_heads
    heads = q.reshape(tokens, shape.num_heads, shape.head_dim)
    keys = k.reshape(tokens, shape.num_kv_heads, shape.head_dim)
    if shape.architecture != "opt":
        is_interleaved = shape.is_gated
        heads = _rotate(heads, is_interleaved=is_interleaved)
        keys = _rotate(keys, is_interleaved=is_interleaved)
    grouped = heads.reshape(tokens, shape.num_kv_heads, group, shape.head_dim)
    values = v.reshape(tokens, shape.num_kv_heads, shape.head_dim)
    mask = np.triu(np.full((tokens, tokens), -np.inf, np.float32), 1)
    out = np.empty_like(grouped)
    for kv in range(shape.num_kv_heads):
        queries = grouped[:, kv].transpose(1, 0, 2)
        scores = queries @ keys[:, kv].T / np.float32(shape.head_dim**0.5) + mask
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        out[:, kv] = (scores @ values[:, kv]).transpose(1, 0, 2)
    return out.reshape(tokens, -1)
