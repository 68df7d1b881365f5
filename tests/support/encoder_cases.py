"""Numbers and importances for tests of encoders, the same on every machine and with any numpy."""

import numpy as np

from powerinfer.values import FloatArray

__all__ = ["KINDS", "STORED_COLUMNS", "importance", "numbers_of_kind"]

KINDS = ("normal", "heavy_tailed", "uniform", "positive", "sparse", "odd")
STORED_COLUMNS = 512
"""Numbers of each row whose blocks are stored."""


def numbers_of_kind(kind: str) -> FloatArray:
    """f32[6, 2048], of sums and products of uniform numbers only."""
    rng = np.random.Generator(np.random.PCG64(KINDS.index(kind)))
    uniform = rng.random((6, 2048, 12)) - 0.5
    normal = uniform.sum(axis=-1)
    if kind == "heavy_tailed":
        normal = normal / (0.02 + np.abs(uniform[..., 0] + uniform[..., 1]))
    elif kind == "uniform":
        normal = uniform[..., 0]
    elif kind == "positive":
        normal = np.abs(normal) * np.abs(uniform[..., 0])
    elif kind == "sparse":
        normal = normal * (uniform[..., 0] > 0.1)
    values: FloatArray = (normal * 0.02).astype(np.float32)
    if kind == "odd":
        _make_odd(values)
    return values


def _make_odd(values: FloatArray) -> None:
    values[0, :128] = 0
    values[0, 128:256] = values[0, 128]
    values[0, 256:512] = -np.abs(values[0, 256:512])
    values[1, :1024] = np.round(values[1, :1024] * 100)  # ties
    values[2, ::7] *= 100
    values[3] *= np.float32(1e-6)
    values[4] *= np.float32(1e5)
    values[5, ::2] = values[5, 0]


def importance(spread: float) -> FloatArray:
    """f32[2048]: `spread` is about how many times the largest is the mean."""
    rng = np.random.Generator(np.random.PCG64(99))
    weights: FloatArray = (1 / (1 / spread + rng.random(2048))).astype(np.float32)
    return weights
