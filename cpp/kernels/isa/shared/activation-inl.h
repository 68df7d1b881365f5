// silu and gelu of whole rows on the vectors of gemm_transpose-inl.h; everything has internal
// linkage (isa_tables.h). No fused multiply-add: every instruction set gives the same bits.
#pragma once

#include <cstdint>

#include "kernels/isa/shared/gemm_transpose-inl.h"

namespace powerinfer {
namespace {

typedef std::int32_t IntVec __attribute__((vector_size(kLanes * 4)));

/// e^x to about 2 units in the last place, kept within the normal numbers of f32; NaN stays NaN.
GEMM_INLINE Vec Exp(Vec x) {
  constexpr float kHighest = 87.0F;
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693359375F;  // few bits: n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kRoundToInteger = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  const Vec highest = Vec{} + kHighest;
  x = x > highest ? highest : x;
  x = x < -highest ? -highest : x;
  const Vec shifted = x * kLog2E + kRoundToInteger;
  const Vec n = shifted - kRoundToInteger;
  const Vec r = (x - n * kLn2High) - n * kLn2Low;
  // Taylor coefficients of e^r, adjusted to |r| <= ln(2) / 2 (Cephes, S. Moshier: expf).
  Vec p = r * 1.9875691500e-4F + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  // The low bits of `shifted` hold n; moved into the exponent they scale by 2^n.
  const IntVec bits = reinterpret_cast<IntVec>(shifted);
  const IntVec exponent = (bits + 127) << 23;
  return p * reinterpret_cast<Vec>(exponent);
}

GEMM_INLINE Vec Sigmoid(Vec x) { return 1.0F / (1.0F + Exp(-x)); }

GEMM_INLINE Vec SiluOf(Vec x) { return x * Sigmoid(x); }

/// 0.5 x (1 + tanh(s)) with s = sqrt(2 / pi) (x + 0.044715 x^3), which equals x sigmoid(2 s).
GEMM_INLINE Vec GeluOf(Vec x) {
  constexpr float kTwoSqrt2OverPi = 1.59576912F;
  return x * Sigmoid(kTwoSqrt2OverPi * (x + 0.044715F * x * x * x));
}

/// gate[i] = function(gate[i]) * up[i], or without up.
template <typename Function>
GEMM_INLINE void ApplyRow(std::int64_t n, float* gate, const float* up, const Function& function) {
  const std::int64_t whole = n / kLanes * kLanes;
  for (std::int64_t i = 0; i < whole; i += kLanes) {
    const Vec y = function(Load(gate + i));
    Store(gate + i, up != nullptr ? y * Load(up + i) : y);
  }
  if (whole == n) return;
  float tail[kLanes] = {};
  for (std::int64_t i = whole; i < n; ++i) tail[i - whole] = gate[i];
  Store(tail, function(Load(tail)));
  for (std::int64_t i = whole; i < n; ++i) {
    gate[i] = up != nullptr ? tail[i - whole] * up[i] : tail[i - whole];
  }
}

void Silu(std::int64_t n, float* gate, const float* up) {
  ApplyRow(n, gate, up, [](Vec x) { return SiluOf(x); });
}

void Gelu(std::int64_t n, float* gate, const float* up) {
  ApplyRow(n, gate, up, [](Vec x) { return GeluOf(x); });
}

}  // namespace
}  // namespace powerinfer
