// tanh for soft caps: plain arithmetic, as base/exp.h.
#pragma once

#include <cmath>

#include "base/exp.h"

namespace powerinfer {

/// tanh x with a relative error below 4e-7. NaN stays NaN. Method: below 0.625 the polynomial of
/// Cephes' tanhf (netlib.org/cephes, Moshier), above 1 - 2 / (e^2x + 1).
[[gnu::always_inline]] static inline float FastTanh(float x) {
  const float square = x * x;
  float p = -5.70498872745e-3F;
  p = p * square + 2.06390887954e-2F;
  p = p * square - 5.37397155531e-2F;
  p = p * square + 1.33314422036e-1F;
  p = p * square - 3.33332819422e-1F;
  const float near = x + x * square * p;
  const float magnitude = std::fabs(x);
  const float far = std::copysign(1.0F - 2.0F / (FastExp(2.0F * magnitude) + 1.0F), x);
  return magnitude < 0.625F ? near : far;
}

}  // namespace powerinfer
