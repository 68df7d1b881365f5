"""How far results may be apart, in one table, each row with its reason.

Numbers are shares of the spread (standard deviation) of the expected values unless a row says
otherwise, so one row serves logits of any model.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["PERPLEXITY", "REAL_MODEL_PERPLEXITY", "TOLERANCES", "Tolerance", "assert_close"]

PERPLEXITY = 1e-3
"""Relative: of a quantized model, to that of the same weights multiplied in f32. Prompts round
activations to int8 in blocks of 32."""

REAL_MODEL_PERPLEXITY = {"reference": 3e-3, "llama.cpp": 5e-3}
"""Relative, of SmolLM2 in Q4_1: rounding to int8 moves it by 0.2 % from exact arithmetic with
AVX-512 and by 0.01 % with AVX2, and llama.cpp's by 0.26 %."""


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
    "llama.cpp f32": Tolerance(2e-3, 3e-4, "both keep an f16 cache; f32 sums in another order"),
    "llama.cpp f16": Tolerance(
        5e-3, 1e-3, "llama.cpp rounds activations to f16 before products with f16 weights"
    ),
    "llama.cpp bf16": Tolerance(
        3e-2, 6e-3, "llama.cpp rounds activations to bf16 (8 bits) before products"
    ),
    "llama.cpp blocks of 32": Tolerance(
        0.12, 0.02, "llama.cpp, and we in decode, quantize activations to int8 blocks of 32"
    ),
    "llama.cpp blocks of 256": Tolerance(
        0.25, 0.03, "llama.cpp quantizes activations to int8 with one scale for 256 elements"
    ),
    "same backend, other batch": Tolerance(
        4e-3,
        8e-4,
        "sums in another order (f32; bf16 pairs on AMX) turn an f16 rounding in the cache now and "
        "then, half a unit of 11 bits",
    ),
    "exact sparse": Tolerance(
        4e-3,
        8e-4,
        "terms that are exactly zero are left out of sums; the order of the rest differs",
    ),
    "kv q8_0": Tolerance(
        0.1, 0.01, "keys and values in 8 bits per 32-block instead of f16: about 0.4 % per element"
    ),
    "native float": Tolerance(
        4e-3, 8e-4, "f32 sums instead of f64 (bf16 pairs on AMX), and f16 roundings they turn"
    ),
    "native quantized": Tolerance(
        0.2, 0.04, "activations are quantized to int8 blocks of 32 before products"
    ),
    "hybrid": Tolerance(
        6e-3,
        1.2e-3,
        "products of prompts on a GPU round activations to f16 (11 bits), decoding sums f32 in "
        "another order, and both turn f16 roundings in the cache",
    ),
    "one operation, float": Tolerance(
        1e-4, 1e-5, "f32 sums instead of f64; AMX splits each factor into two bf16 (16 bits)"
    ),
    "one operation, bf16": Tolerance(
        1.5e-2,
        2.5e-3,
        "with AVX512_BF16 prompts round activations to bf16 (8 bits) before products with BF16 "
        "weights; an FFN does it twice",
    ),
    "one operation, bf16 on a GPU": Tolerance(
        2.5e-2,
        2.5e-3,
        "likewise; results of some tokens are spread wider than of others",
    ),
    "one operation, f16": Tolerance(
        4e-3,
        5e-4,
        "a GPU multiplies f16: activations of many tokens, and what a q8_0 cache holds, are "
        "rounded to 11 bits first",
    ),
    "one operation, quantized": Tolerance(
        0.06,
        0.015,
        "int8 blocks of normal activations err by 0.6 % of their spread; an FFN does it twice",
    ),
    "one operation, quantized experts": Tolerance(
        0.08,
        0.015,
        "as an FFN of quantized weights; results of some tokens are spread wider than of others",
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
    if not expected.size:
        return
    wide = np.asarray(expected, np.float64)
    spread = float(wide.std()) or 1.0
    error = np.abs(np.asarray(got, np.float64) - wide) / spread
    largest, mean = float(error.max()), float(error.mean())
    assert largest <= tolerance.largest and mean <= tolerance.mean, (
        f"{name}: largest error {largest:.3g} (limit {tolerance.largest:g}), "
        f"mean {mean:.3g} (limit {tolerance.mean:g}); {tolerance.reason}"
    )
