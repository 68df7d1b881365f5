// tanh for soft caps: plain arithmetic, as in base/exp.h.
#pragma once

#include <bit>
#include <cstdint>

#include "base/exp.h"

namespace powerinfer {

/// tanh x with a relative error below 4e-7. NaN stays NaN. Method: below 0.625 the polynomial of
/// Cephes' tanhf (netlib.org/cephes, Moshier), above 1 - 2 / (e^2x + 1). Magnitudes are compared as
/// integers: GCC does not vectorize a loop that compares floats, which may trap.
[[gnu::always_inline]] static inline float FastTanh(float x) {
  constexpr auto kNear = std::bit_cast<std::uint32_t>(0.625F);
  constexpr auto kOne = std::bit_cast<std::uint32_t>(10.0F);  // from here on, 1 to the last bit
  constexpr std::uint32_t kInfinity = 0x7F800000U;
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  const float square = x * x;
  float p = -5.70498872745e-3F;
  p = p * square + 2.06390887954e-2F;
  p = p * square - 5.37397155531e-2F;
  p = p * square + 1.33314422036e-1F;
  p = p * square - 3.33332819422e-1F;
  const float near = x + x * square * p;
  const float power = ExpWithin(2.0F * std::bit_cast<float>(magnitude < kOne ? magnitude : kOne));
  const auto far = std::bit_cast<std::uint32_t>(1.0F - 2.0F / (power + 1.0F)) | (bits ^ magnitude);
  const std::uint32_t takes_near =  // NaN too
      (magnitude < kNear ? ~0U : 0U) | (magnitude > kInfinity ? ~0U : 0U);
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(near) & takes_near) |
                              (far & ~takes_near));
}

}  // namespace powerinfer
