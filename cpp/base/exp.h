// e^x for softmax: plain arithmetic, so compilers vectorize loops over it and every machine agrees.
#pragma once

#include <bit>
#include <cstdint>

namespace powerinfer {

/// e^x with a relative error below 2e-7, for x in [-87, 88] or NaN, which stays NaN. Method:
/// x = n ln 2 + r, |r| <= ln 2 / 2, e^r by its Taylor polynomial of degree 7 (remainder under
/// 6e-9), 2^n by the exponent bits. Always inlined: kernels of every instruction set use it, and a
/// shared copy could be any of theirs.
[[gnu::always_inline]] static inline float ExpWithin(float x) {
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693359375F;    // ten bits, so n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4F;  // ln 2 - kLn2High
  constexpr float kRound = 12582912.0F;       // 1.5 * 2^23: adding it rounds to an integer
  const float shifted = x * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float p = 1.0F / 5040.0F;
  p = p * r + 1.0F / 720.0F;
  p = p * r + 1.0F / 120.0F;
  p = p * r + 1.0F / 24.0F;
  p = p * r + 1.0F / 6.0F;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  // The low bits of `shifted` hold n; 127 is the exponent's bias, 23 its place.
  const std::uint32_t biased = std::bit_cast<std::uint32_t>(shifted) + 127U;
  return p * std::bit_cast<float>(biased << 23U);
}

/// The same for any x: below -87 about 1.6e-38 (not zero), above 88 near 1.6e38.
[[gnu::always_inline]] static inline float FastExp(float x) {
  x = x < -87.0F ? -87.0F : x;
  x = x > 88.0F ? 88.0F : x;
  return ExpWithin(x);
}

}  // namespace powerinfer
