"""How far results may be apart, in one table, each row with its reason.

Numbers are shares of the spread (standard deviation) of the expected values unless a row says
otherwise, so one row serves logits of any model.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["TOLERANCES", "Tolerance", "assert_close"]


@dataclass(frozen=True)
class Tolerance:
    """Limits of |got - expected| / standard deviation of expected.

    Attributes:
        largest: of any element.
        mean: of all elements.
        reason: why it is not zero.
    """

    largest: float
    mean: float
    reason: str


TOLERANCES = {
    "transformers": Tolerance(
        3e-3, 3e-4, "our keys and values are stored as f16 (11 bits); transformers keeps f32"
    ),
    "llama.cpp unquantized": Tolerance(
        5e-3, 1e-3, "both keep an f16 cache, f32 sums in another order; its f16 products round x"
    ),
    "llama.cpp quantized": Tolerance(
        0.25, 0.03, "llama.cpp quantizes activations to int8 (bf16 for bf16) before each product"
    ),
    "same backend, other batch": Tolerance(
        2e-5, 2e-6, "the same sums in another order: f32 rounding through a few layers"
    ),
    "exact sparse": Tolerance(
        2e-5,
        2e-6,
        "terms that are exactly zero are left out of sums; the order of the rest differs",
    ),
    "kv q8_0": Tolerance(
        0.1, 0.01, "keys and values in 8 bits per 32-block instead of f16: about 0.4 % per element"
    ),
    "native f32": Tolerance(
        5e-3,
        5e-4,
        "f32 sums instead of f64, and an f16 cache that rounds the other way now and then",
    ),
    "native quantized": Tolerance(
        0.15, 0.02, "activations are quantized to int8 blocks of 32 before each product"
    ),
}


def assert_close(
    got: npt.NDArray[np.floating], expected: npt.NDArray[np.floating], name: str
) -> None:
    """Fail where `got` leaves the row `name` of the table; says by how much.

    Args:
        got: any shape.
        expected: the same shape.
        name: key of `TOLERANCES`.
    """
    tolerance = TOLERANCES[name]
    assert got.shape == expected.shape, f"shape {got.shape}, expected {expected.shape}"
    wide = np.asarray(expected, np.float64)
    spread = float(wide.std()) or 1.0
    error = np.abs(np.asarray(got, np.float64) - wide) / spread
    largest, mean = float(error.max(initial=0.0)), float(error.mean()) if error.size else 0.0
    assert largest <= tolerance.largest and mean <= tolerance.mean, (
        f"{name}: largest error {largest:.3g} (limit {tolerance.largest:g}), "
        f"mean {mean:.3g} (limit {tolerance.mean:g}); {tolerance.reason}"
    )
